"""``rollout-trace check PATH...``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from rollout_trace.cli.common import json_option, show_problems
from rollout_trace.cli.reading import Trajectories, trajectories_of
from rollout_trace.cli.selection import compile_where, where_option
from rollout_trace.cli.terminal import say
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.train.check_codes import Grade
    from rollout_trace.view.findings import Findings, Place

_GRADES = ("fatal", "warning", "info")


def _codes(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> frozenset[str] | None:
    from difflib import get_close_matches

    from rollout_trace.train.check_codes import CODES

    for value in values:
        if value not in CODES:
            near = get_close_matches(value, CODES, 1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise click.BadParameter(f"there is no code {value!r}{meant} docs/checks.md lists them.")
    return frozenset(values) or None


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--fail-on", type=click.Choice((*_GRADES, "never")), default="fatal", show_default=True,
              help="The least grade for which the exit code is 1.")  # fmt: skip
@click.option("--code", "codes", multiple=True, callback=_codes, metavar="CODE", help="Only this one; may be repeated.")
@click.option("--vocab-size", type=click.IntRange(min=1), metavar="N", help="Token ids from N on are findings.")
@click.option("--all", "every", is_flag=True, help="Print each finding, as they are found; with --json a line each.")
@where_option
@json_option
def check(
    paths: tuple[str, ...],
    fail_on: str,
    codes: frozenset[str] | None,
    vocab_size: int | None,
    every: bool,
    where: str | None,
    as_json: bool,
) -> int:
    """Check trajectories before training: what trajectory.check() finds, by code, each with its first places.

    Also found is a rollout that is there twice, which one trajectory does not show.

    Findings have a grade: fatal (a step, or the trajectory, cannot be trained on), warning, or info. docs/checks.md has
    all codes. For what is wrong with the file itself, there is rollout-trace validate. PATH is a file, a pattern, a
    folder, an address, or - for stdin.

    Exit code 1: there is a finding of the grade --fail-on, or of a worse one, or lines could not be read.
    """
    from rollout_trace.view.findings import Findings, Repeated, findings_of

    found, repeated = Findings(), Repeated()
    files = trajectories_of(paths, compile_where(where), progress=not every)
    for one in files:
        places = list(findings_of(one.path, one.number, one.trajectory, codes=codes, vocab_size=vocab_size))
        if codes is None or "repeated_rollout" in codes:
            places += repeated.of(one.path, one.number, one.trajectory)
        found.add(places)
        if every:
            _print_each(places, as_json=as_json)
    if not every:
        _print_sums(found, files, as_json=as_json)
    show_problems(files.problems, as_json=as_json and not every)
    has_failed = fail_on != "never" and found.has(_grade(fail_on))
    return int(has_failed or bool(files.problems))


def _grade(text: str) -> Grade:
    return "fatal" if text == "fatal" else "warning" if text == "warning" else "info"


def _print_each(places: Iterable[Place], *, as_json: bool) -> None:
    if as_json:
        from rollout_trace.view.values import ascii_json

        say(map(ascii_json, places))
    else:
        say(printable(str(place)) for place in places)


def _print_sums(found: Findings, files: Trajectories, *, as_json: bool) -> None:
    if not as_json:
        say(map(printable, found.lines()))
        return
    from rollout_trace.view.values import ascii_json

    result = {
        "trajectories": found.trajectories,
        "with_findings": found.with_findings,
        "findings": [one.as_dict() for one in found.by_code()],
        "unreadable": [str(error) for error in files.problems],
    }
    say([ascii_json(result)])
