"""Which trajectories of files a command is to show: by id, by task, by position, or the first ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rollout_trace.cli.reading import STDIN, Trajectories, paths_of, stdin_as_file
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import has_magic, is_address
from rollout_trace.file.find import Found, at_position, number_of_lines, of_episode, position_of, with_id
from rollout_trace.guard import printable
from rollout_trace.view.terminal import Child

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_COUNTED = 100_000_000
"""Bytes of files whose trajectories are counted, at most: it takes a tenth of a second."""
_LISTED = 20
"""Trajectories that a message lists, at most."""


class Choice(NamedTuple):
    """A trajectory that is to be shown."""

    name: str
    id: str
    trajectory: Callable[[], Trajectory]
    """Gives it, with its notes."""
    line: bytes
    files: list[str]
    """Where the trajectories of its episode are looked for."""
    place: str | None = None
    """Which one of how many it is, where it was not asked for by an ID or an expression."""

    def records(self) -> list[dict[str, Any]]:
        """The steps of its line, as JSON."""
        steps: list[dict[str, Any]] = json.loads(self.line)["steps"]
        return steps

    def family(self, one: Trajectory) -> list[Child]:
        """The other trajectories of its episode; ``one``: the trajectory itself, which ``trajectory()`` gave."""
        if one.episode_id is None:
            return []
        return [_child(found) for found in of_episode(self.files, one.episode_id) if found.head.id != one.id]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Paths, and the ID of ``PATH ID`` or ``PATH#ID``: the last of several arguments, if there is no such file."""
    paths = list(arguments)
    if len(paths) > 1 and not _is_path(paths[-1]):
        return paths[:-1], paths[-1]
    if len(paths) == 1 and not _is_path(paths[0]) and "#" in paths[0]:
        path, _, wanted = paths[0].rpartition("#")
        return [path], wanted
    return paths, None


def _is_path(text: str) -> bool:
    return text == STDIN or os.path.lexists(text) or has_magic(text) or is_address(text)


def choices_of(
    paths: Sequence[str],
    wanted: str | None,
    *,
    number: int = 1,
    where: Callable[[Trajectory], bool] | None = None,
    problems: list[Any],
) -> Iterator[Choice]:
    """The trajectory of an ID; without one the first ``number`` ones for which ``where`` is true.

    ``problems`` gets an error for each line before these that is no trajectory. Raises OSError; while iterating
    click.ClickException where there is none, or the ID names several, and FormatError.
    """
    with _files_of(paths) as files:
        chosen: Iterator[Choice]
        if wanted is None and (where is not None or number > 1):
            chosen = _by_condition(files, number, where, problems)
        else:
            found = _by_search(files, wanted, problems)
            chosen = (one for one in found if where is None or where(one.trajectory()))
        is_empty = True
        for one in chosen:
            is_empty = False
            yield one
        if is_empty:
            raise click.ClickException(_none_found(paths, wanted, is_limited=where is not None, problems=problems))


@contextmanager
def _files_of(paths: Sequence[str]) -> Iterator[list[str]]:
    """The files of paths; stdin becomes a temporary file, because an ID is looked for in all of it."""
    if STDIN not in paths:
        yield paths_of(paths)
        return
    if len(paths) > 1:
        raise click.UsageError("- (stdin) cannot be read together with files.")
    with stdin_as_file(paths) as (files, named):
        try:
            yield files
        except (FormatError, click.ClickException) as error:
            # What is said is of stdin, not of a file that is gone.
            raise type(error)(named(str(error))) from error.__cause__


def _by_search(files: list[str], wanted: str | None, problems: list[Any]) -> Iterator[Choice]:
    position = 1 if wanted is None else position_of(wanted)
    place = _first_of(files) if wanted is None else None
    if position == 0:
        raise click.UsageError("there is no position 0: 1 is the first trajectory, -1 the last.")
    if position is not None:
        one = at_position(files, position, problems.append)
        found = [] if one is None else [one]
    else:
        found = with_id(files, wanted or "")
    if len(found) > 1:
        raise click.ClickException(_several(wanted or "", found))
    for one in found:
        yield Choice(one.head.name, one.head.id, one.load, one.line, files, place)


def _first_of(files: list[str]) -> str | None:
    number = number_of_lines(files, _COUNTED)
    if number is None:
        return "the first"
    return f"1 of {number:,}" if number > 1 else None


def _by_condition(
    files: list[str], number: int, where: Callable[[Trajectory], bool] | None, problems: list[Any]
) -> Iterator[Choice]:
    reading = Trajectories(files, where)
    for read in islice(reading, number):
        # Bound now: the generator goes on while the choice is in use.
        one = read.trajectory
        yield Choice(one.name, one.id, partial(_same, one), read.data, files)
    problems.extend(reading.problems)


def _same(trajectory: Trajectory) -> Trajectory:
    return trajectory


def _child(found: Found) -> Child:
    head = found.head
    started = None if head.started_at is None else head.started_at.timestamp()
    return Child(head.id, head.name, head.parent_id, head.parent_step_id, started, found.load)


def _several(wanted: str, found: Sequence[Found]) -> str:
    lines = [f"{printable(wanted)!r} names {len(found):,} trajectories. Give more of one id, or its position:"]
    for one in found[:_LISTED]:
        head = one.head
        facts = {
            "task": None if head.task is None else head.task.id,
            "group": head.group_id,
            "rollout": head.rollout_index,
        }
        named = "".join(f", {name} {value}" for name, value in facts.items() if value is not None)
        lines.append(f"  {head.id}  {head.name}, {head.status}{named} ({one.place})")
    if len(found) > _LISTED:
        lines.append(f"  and {len(found) - _LISTED:,} more")
    return "\n".join(map(printable, lines))


def _none_found(paths: Sequence[str], wanted: str | None, *, is_limited: bool, problems: Sequence[Any]) -> str:
    where = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    what = "no trajectory" if wanted is None else f"no trajectory {wanted}"
    such = " for which the expression is true" if is_limited else ""
    if problems:
        return f"there is {what}{such} in {where}. {problems[0]}"
    hint = "" if wanted is None else f". rollout-trace ls {where} lists them"
    return f"there is {what}{such} in {where}{hint}."
