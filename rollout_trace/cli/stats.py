"""``rollout-trace stats PATH... [--by FIELD]``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from rollout_trace.cli.common import Test, is_plain, json_option, say, show_problems, where_option, width_of_output
from rollout_trace.cli.reading import Trajectories, stdin_as_file

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.counted import NotCounted
    from rollout_trace.view.statistics import By, Facts

_BY = ("group", "task", "agent", "model", "name", "status")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--by", type=click.Choice(_BY), help="Also sum up by group, task, agent, ...")
@click.option(
    "--threshold", type=float, default=1.0, show_default=True, help="A run passes if its reward is at least this."
)
@where_option
@json_option
def stats(paths: tuple[str, ...], by: By | None, threshold: float, where: Test | None, as_json: bool) -> int:
    """Sum up trajectories: statuses, rewards with their spread, pass@k, tokens, cost, times, rows, drift, findings.

    Of lines with one trajectory id the last counts, and of several attempts of rollout-trace collect at one rollout the
    last one: pass@k is that of rt.pass_at_k. What was noted (rollout-trace annotate) is applied. Where lines turn out
    not to count after they were summed up, the files are read a second time. PATH is a file, a pattern, a folder, an
    address, or - for stdin.

    Exit code 1: lines that could not be read, which are left out.
    """
    from rollout_trace.view.counted import counted
    from rollout_trace.view.statistics import Statistics, facts_of

    found = Statistics(by, threshold)
    reading: Trajectories
    with stdin_as_file(paths) as (places, named):

        def read() -> Iterator[Trajectory]:
            nonlocal reading
            reading = Trajectories(places, where, progress=True)
            return (one.trajectory for one in reading)

        def start(left: NotCounted) -> Callable[[Facts], object]:
            nonlocal found
            found = Statistics(by, threshold, left.families)
            return found.add

        left = counted(read, facts_of, start)
        problems = [named(str(error)) for error in reading.problems]
    if as_json:
        not_counted = {"earlier_attempts": len(left.attempts), "doubles": len(left.doubles)}
        say([json.dumps({**found.as_dict(), "not_counted": not_counted, "unreadable": problems})])
    else:
        from rollout_trace.view.statistics_text import lines_of

        say(lines_of(found, left, width_of_output(), plain=is_plain()))
    show_problems(problems, as_json=as_json)
    return int(bool(problems))
