"""``rollout-trace mismatch PATH...``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rollout_trace.cli.common import Test, json_option, on_words, say, show_problems, where_option, width_of_output
from rollout_trace.cli.reading import Trajectories
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.train.mismatch import Mismatch, MismatchPart

_COLUMNS = ("tokens", "ratio", "k1", "k3", "mean |d|", "max |d|")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--trainer-version", type=int, metavar="N", help="Version of the trainer's weights. Default: the newest.")
@where_option
@json_option
def mismatch(paths: tuple[str, ...], trainer_version: int | None, where: Test | None, as_json: bool) -> int:
    """Compare the logprobs that a trainer computed with those the engine sampled by, and name the cause.

    A trainer's logprobs are noted with rt.trainer_report or rt.annotate. d is their difference in nats, the ratio is
    exp(d), k1 and k3 estimate the divergence of the two. PATH is a file, a pattern, a folder, an address, or - for
    stdin.

    Exit code 1: they differ, no step has both, or lines could not be read.
    """
    from rollout_trace.train.mismatch import mismatch as compared
    from rollout_trace.view.values import ascii_json, plain

    files = Trajectories(paths, where, progress=True)
    found = compared((one.trajectory for one in files), trainer_version=trainer_version)
    if as_json:
        # A ratio beyond a float is inf, which JSON has no number for: null.
        say([ascii_json({**plain(asdict(found)), "unreadable": [str(error) for error in files.problems]})])
    else:
        say(on_words(_lines(found)))
    show_problems(files.problems, as_json=as_json)
    return int(bool(found.causes or files.problems) or not found.steps)


def _lines(found: Mismatch) -> Iterator[str]:
    if found.whole is None:
        yield (
            f"No step has logprobs of both sides ({found.steps_left_out} have ids). Note the trainer's with "
            "rt.trainer_report(path, rows, logprobs)."
        )
        return
    left_out = f" ({found.steps_left_out} others lack one side)" if found.steps_left_out else ""
    yield f"{found.whole.tokens} tokens of {found.steps} steps with logprobs of both sides{left_out}"
    yield from _table(found)
    yield ""
    yield from (f"{cause.code}: {printable(cause.message)}" for cause in found.causes)
    if not found.causes:
        yield "Both sides agree."


def _table(found: Mismatch) -> Iterator[str]:
    """The figures of all tokens, then of each part that there are several of."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1))
    table.add_column("")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    assert found.whole is not None
    _add(table.add_row, "all", found.whole)
    for name, parts in found.parts.items():
        if len(parts) > 1:
            table.add_section()
            for part in parts:
                _add(table.add_row, f"{name.replace('_', ' ')} {part.value}", part)
    console = Console(width=width_of_output(), color_system=None)
    with console.capture() as captured:
        console.print(table)
    yield from captured.get().rstrip().splitlines()


def _add(add_row: object, name: str, part: MismatchPart) -> None:
    figures = (part.ratio, part.k1, part.k3, part.mean_difference, part.greatest_difference)
    add_row(printable(name), str(part.tokens), *(f"{value:.3g}" for value in figures))  # type: ignore[operator]
