"""``rollout-trace diff A B`` and ``rollout-trace diff FILE --ids X Y``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
import msgspec

from rollout_trace.cli.choice import Choice, choices_of, split_arguments
from rollout_trace.cli.common import json_option, load_tokenizer_of, show_problems, tokenizer_option
from rollout_trace.cli.reading import STDIN, paths_of
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollout_trace.view.difference import Pair, TrajectoryDifference

_LISTED = 50
"""Trajectories that are listed, unless everything is shown."""
_KINDS = {"equal": "equal", "differing": "differing", "only in a": "only_a", "only in b": "only_b"}
"""What a pair can be, and its name in JSON."""


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", required=False, metavar="[B]")
@click.option("--ids", nargs=2, metavar="X Y", help="Compare trajectory X (of A) with Y (of B, or of A).")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Ignore smaller differences of logprobs.  [default: 0.0001]",
)
@click.option("--full", is_flag=True, help="Show long texts and lists whole.")
@tokenizer_option
@json_option
def diff(
    first: str,
    second: str | None,
    ids: tuple[str, str] | None,
    tolerance: float | None,
    full: bool,
    tokenizer: str | None,
    as_json: bool,
) -> int:
    """Show the first difference of two trajectories, or of the trajectories of two files.

    A and B are files, folders, patterns or addresses, or FILE#ID for one trajectory of a file. The trajectories of two
    files are paired by their ids, else by name, task, group and rollout index. Not compared are ids, times, host,
    process and command line.

    \b
    rollout-trace diff before.jsonl after.jsonl
    rollout-trace diff rollouts.jsonl --ids 3f9a 77c1
    rollout-trace diff before.jsonl#-1 after.jsonl#-1

    Exit code 1: they differ, or lines could not be read.
    """
    from rollout_trace.view.difference import TOLERANCE

    options = {"decode": load_tokenizer_of(tokenizer), "tolerance": TOLERANCE if tolerance is None else tolerance}
    chosen = _chosen(first, second, ids)
    if chosen is not None:
        return _compare(*chosen, options, full=full, as_json=as_json)
    if second is None:
        raise click.UsageError("name two files, A and B, or two trajectories of one file with --ids X Y.")
    return _compare_files(first, second, options, full=full, as_json=as_json)


def _chosen(
    first: str, second: str | None, ids: tuple[str, str] | None
) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """The two trajectories that arguments name, as pairs of a path and an ID; None where they name whole files."""
    if ids is not None:
        return (first, ids[0]), (second or first, ids[1])
    if second is None:
        return None
    (a,), x = split_arguments([first])
    (b,), y = split_arguments([second])
    if x is None and y is None:
        return None
    if x is None or y is None:
        both = f"{printable(first)} and {printable(second)}"
        raise click.UsageError(f"{both}: one names an ID, the other does not. Name an ID in both, or in neither.")
    return (a, x), (b, y)


def _one(path: str, wanted: str) -> Choice:
    if path == STDIN:
        raise click.UsageError("diff cannot read stdin. Write it to a file first.")
    (found,) = choices_of([path], wanted, problems=[])
    return found


def _compare(a: tuple[str, str], b: tuple[str, str], options: dict[str, Any], *, full: bool, as_json: bool) -> int:
    from rollout_trace.view.difference import difference

    one, two = _one(*a).trajectory(), _one(*b).trajectory()
    found = difference(one, two, **options)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        _show(found, (f"{one.name} {one.id} ({a[0]})", f"{two.name} {two.id} ({b[0]})"), full=full)
    return int(not found.equal)


def _show(found: TrajectoryDifference, names: tuple[str, str], *, full: bool) -> None:
    from rollout_trace.view.styles import console
    from rollout_trace.view.terminal_difference import show_difference

    show_difference(console(), found, names, full=full)


def _compare_files(a: str, b: str, options: dict[str, Any], *, full: bool, as_json: bool) -> int:
    from rollout_trace.file.find import LineIndex
    from rollout_trace.view.difference import pairs_of

    if STDIN in (a, b):
        raise click.UsageError("diff cannot read stdin. Write it to a file first.")
    with ExitStack() as stack:
        one, two = (stack.enter_context(LineIndex(paths_of([path]))) for path in (a, b))
        pairs = pairs_of(one.lines, two.lines)
        problems = [*one.problems, *two.problems]
        if len(pairs) == 1 and None not in pairs[0] and not as_json and not problems:
            found, _, names = next(_differences(pairs, options))
            assert found is not None
            _show(found, names, full=full)
            return int(not found.equal)
        counts = _list_json(pairs, options) if as_json else _list(pairs, options, full=full)
        show_problems(problems)
    return int(bool(counts["equal"] != len(pairs) or problems))


def _differences(
    pairs: list[Pair], options: dict[str, Any]
) -> Iterator[tuple[TrajectoryDifference | None, str, tuple[str, str]]]:
    """The difference of each pair, None where one is missing; its kind; what both are called, or nothing."""
    from rollout_trace.view.difference import difference

    for one, two in pairs:
        names = ["" if line is None else f"{line.head.name} {line.head.id} ({line.place})" for line in (one, two)]
        found = None if one is None or two is None else difference(one.load(), two.load(), **options)
        alone = "only in b" if one is None else "only in a"
        yield found, alone if found is None else "equal" if found.equal else "differing", (names[0], names[1])


def _list(pairs: list[Pair], options: dict[str, Any], *, full: bool) -> dict[str, int]:
    counts = dict.fromkeys(_KINDS, 0)
    for found, kind, (a, b) in _differences(pairs, options):
        listed = sum(counts.values()) - counts["equal"]
        counts[kind] += 1
        if kind == "equal" or (listed >= _LISTED and not full):
            continue
        click.echo(printable(f"{kind}: {a or b}" if found is None else f"{a} | {b}"))
        if found is not None:
            click.echo(printable(f"    {found.sentence}"))
    left = sum(counts.values()) - counts["equal"] - _LISTED
    if left > 0 and not full:
        click.echo(f"and {left:,} more; --full lists them all")
    click.echo(", ".join(f"{number:,} {name}" for name, number in counts.items()))
    return counts


def _list_json(pairs: list[Pair], options: dict[str, Any]) -> dict[str, int]:
    """Prints one object, pair by pair."""
    click.echo('{"pairs": [', nl=False)
    counts, before = dict.fromkeys(_KINDS, 0), ""
    for found, kind, _ in _differences(pairs, options):
        counts[kind] += 1
        if found is not None and not found.equal:
            click.echo(f"{before}{json.dumps(msgspec.to_builtins(found))}", nl=False)
            before = ", "
    end = {
        "counts": {_KINDS[kind]: number for kind, number in counts.items()},
        "only_a": [one.head.id for one, two in pairs if one is not None and two is None],
        "only_b": [two.head.id for one, two in pairs if two is not None and one is None],
    }
    click.echo(f"], {json.dumps(end)[1:]}")
    return counts
