"""The trajectories of an output by their episodes: which attempts it holds, and what is noted of those thrown away."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

from rollout_trace.data.episodes import Attempts, episode_of, may_be_trained
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.addresses import is_address
from rollout_trace.file.annotate import append_notes, checked_note
from rollout_trace.file.decode import decode
from rollout_trace.file.find import TrajectoryHead, heads, is_plain
from rollout_trace.file.line_format import BadLine, LineFormat, at_any_depth
from rollout_trace.file.lines import Place
from rollout_trace.file.notes import load_notes
from rollout_trace.file.reader import expand_paths
from rollout_trace.file.records import SCHEMA


class _AttemptHead(TrajectoryHead):
    name: str = "agent"
    episode_id: str | None = None
    status: str = "completed"
    metadata: dict[str, Any] | None = None


_FORMAT = LineFormat(SCHEMA, _AttemptHead)


def attempts_in(output: str | os.PathLike[str], *, since: int = 0) -> Attempts:
    """The attempts at rollouts of an output; of each line only the head is decoded.

    Args:
        output: where.
        since: of a file, the size that it had: lines before that are not looked at.

    Raises:
        OSError: it cannot be read.
    """
    found = Attempts()
    for file in _files(output):
        start = None if not since else Place(begin=since) if is_plain(file) else Place(member=since)
        for _, head in heads(file, _ignore, _FORMAT, start):
            found.add(head)
    return found


def of_episodes(output: str | os.PathLike[str], wanted: Collection[str]) -> Iterator[tuple[str, Trajectory]]:
    """Yields the trajectories of episodes, with their notes, each with its file. The other lines are not decoded.

    Raises:
        OSError: the output cannot be read.
    """
    for file in _files(output):
        notes = load_notes(file, _ignore)
        for line, head in heads(file, _ignore, _FORMAT):
            if episode_of(head) not in wanted:
                continue
            try:
                trajectory = at_any_depth(decode, line)
            except BadLine:
                continue
            if notes is not None:
                notes.apply(trajectory)
            yield file, trajectory


def leave_out(output: str | os.PathLike[str], episodes: Collection[str]) -> None:
    """Notes that no step of these episodes is to be trained on, whichever process wrote it.

    Steps that are ``superseded``, or not to be trained on already, need no note. Nothing is noted at an address, whose
    objects cannot be added to.

    Raises:
        WriteError, OSError: the notes cannot be written.
    """
    if is_address(output) or not episodes:
        return
    notes: dict[str, list[dict[str, Any]]] = {}
    for file, one in of_episodes(output, episodes):
        steps = {step.index: {"trainable": False} for step in one.steps if may_be_trained(step)}
        if steps:
            notes.setdefault(file, []).append(checked_note(one.id, {"steps": steps}))
    for file, found in notes.items():
        append_notes(file, found)


def _files(output: str | os.PathLike[str]) -> list[str]:
    try:
        return expand_paths(output)
    except FileNotFoundError:
        return []


def _ignore(problem: object) -> None:
    """Leaves what cannot be read where it is; who reads all of the output says so."""
