"""``rollout-trace stats PATH... [--by FIELD]``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from rollout_trace.cli.common import json_option, show_problems
from rollout_trace.cli.reading import Trajectories, stdin_as_file, trajectories_of
from rollout_trace.cli.selection import compile_where, where_option
from rollout_trace.cli.terminal import is_plain, say, width_of_output

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.counted import NotCounted
    from rollout_trace.view.statistics import By, Facts, Statistics

_BY = ("group", "task", "agent", "model", "name", "status")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--by", type=click.Choice(_BY), help="Also sum up each group, task, agent, ... of its own.")
@click.option("--threshold", type=float, default=1.0, show_default=True, help="A run passes with this reward or more.")
@where_option
@json_option
def stats(paths: tuple[str, ...], by: By | None, threshold: float, where: str | None, as_json: bool) -> int:
    """Sum up trajectories: statuses, rewards with their spread, pass@k, tokens, cost, times, rows, drift, findings.

    Of lines with one trajectory id the last counts, and of several attempts of rollout-trace collect at one rollout the
    last one: pass@k is that of rt.pass_at_k. What was noted (rollout-trace annotate) is applied. Where lines turn out
    not to count after they were summed up, the files are read a second time. PATH is a file, a pattern, a folder, an
    address, or - for stdin.

    Exit code 1: lines that could not be read, which are left out.
    """
    from rollout_trace.view.statistics import Statistics

    test = compile_where(where)
    found = Statistics(by, threshold)
    with stdin_as_file(paths) as (places, named):
        files = _Files(places, test, named)

        def start(left: NotCounted) -> Callable[[Facts], object]:
            nonlocal found
            found = Statistics(by, threshold, left.families)
            return found.add

        left = _count(files, start)
    _show(found, left, files, as_json=as_json)
    return int(bool(files.problems))


def _count(files: _Files, start: Callable[[NotCounted], Callable[[Facts], object]]) -> NotCounted:
    from rollout_trace.view.counted import counted
    from rollout_trace.view.statistics import facts_of

    return counted(files.read, facts_of, start)


def _show(found: Statistics, left: NotCounted, files: _Files, *, as_json: bool) -> None:
    if as_json:
        not_counted = {"earlier_attempts": len(left.attempts), "doubles": len(left.doubles)}
        say([json.dumps({**found.as_dict(), "not_counted": not_counted, "unreadable": files.problems})])
        return
    from rollout_trace.view.statistics_text import lines_of

    say(lines_of(found, left, width_of_output(), plain=is_plain()))
    show_problems(files.problems, as_json=as_json)


class _Files:
    """The files of the command, which may be read twice.

    Args:
        paths: of them; ``where``: which trajectories are read.
        named: gives a message as it is shown.
    """

    def __init__(
        self, paths: list[str], where: Callable[[Trajectory], bool] | None, named: Callable[[str], str]
    ) -> None:
        self._paths = paths
        self._where = where
        self._named = named
        self._reading: Trajectories | None = None

    @property
    def problems(self) -> list[str]:
        """What could not be read, the last time."""
        return [] if self._reading is None else [self._named(str(error)) for error in self._reading.problems]

    def read(self) -> Iterator[Trajectory]:
        """The trajectories, from the beginning."""
        self._reading = trajectories_of(self._paths, self._where, progress=True)
        return (one.trajectory for one in self._reading)
