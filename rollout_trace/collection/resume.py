"""What an output holds already of the rollouts that are to be made."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.collection.account import NOT_SUCCEEDED
from rollout_trace.collection.claim import NAME as LOCK
from rollout_trace.collection.facts import Facts, facts_of
from rollout_trace.data import attempts
from rollout_trace.errors import WriteError
from rollout_trace.file.addresses import is_address, is_folder_target, names_in, shown
from rollout_trace.file.annotate import append_notes, checked_note
from rollout_trace.file.journal import folder_of
from rollout_trace.file.output import ids_in
from rollout_trace.file.reader import expand_paths, read
from rollout_trace.file.shards_spool import spool_of, spooled
from rollout_trace.record.recovery import recover

if TYPE_CHECKING:
    from rollout_trace.collection.items import Key
    from rollout_trace.data.trajectory import Trajectory

Spool: TypeAlias = "str | os.PathLike[str] | None"


@dataclass(slots=True)
class Earlier:
    """What an output holds."""

    latest: dict[Key, Facts] = field(default_factory=dict)
    """The last attempt at each rollout."""
    digests: dict[Key, str] = field(default_factory=dict)
    """The digest of the task that it was made with."""
    unfinished: set[Key] = field(default_factory=set)
    """Rollouts whose last attempt was cut, or was to be followed by another."""
    failed: dict[Key, dict[str, dict[str, int]]] = field(default_factory=dict)
    """The attempts that failed and have steps to train on: by id, the number of steps of each of their trajectories."""
    recovered: int = 0
    """Trajectories of dead processes that were written from their journals."""
    unreadable: int = 0
    """Lines that could not be read."""
    read: int = 0
    """Trajectories that were, of whatever origin."""
    _ranks: dict[Key, tuple[int, bool]] = field(default_factory=dict)

    def is_done(self, key: Key, *, retry_failed: bool) -> bool:
        """Whether a rollout is not to be made again."""
        facts = self.latest.get(key)
        if facts is None or key in self.unfinished:
            return False
        return facts.status not in NOT_SUCCEEDED or not retry_failed

    def overtaken(self, made: Collection[Key]) -> list[dict[str, int]]:
        """Of the attempts in ``failed`` those that others have taken the places of.

        Args:
            made: the rollouts that were made again in this run. Others were in an earlier run, which was killed before
                it could note it.
        """
        return [
            steps
            for key, by_id in self.failed.items()
            for name, steps in by_id.items()
            if key in made or (key not in self.unfinished and name != self.latest[key].trajectory_id)
        ]

    def add_all(self, trajectories: Iterable[Trajectory]) -> None:
        """Adds the rollouts among trajectories."""
        for family in _families(trajectories):
            self.read += len(family)
            facts = facts_of(family)
            if facts is not None:
                self._add(facts, family)

    def _add(self, facts: Facts, family: list[Trajectory]) -> None:
        """Adds one attempt, with its trajectory and those opened inside it."""
        root = next(one for one in family if one.id == facts.trajectory_id)
        is_made_again = attempts.is_made_again(root)
        if (
            root.status in NOT_SUCCEEDED
            and not is_made_again
            and any(step.trainable for one in family for step in one.steps)
        ):
            self.failed.setdefault(facts.key, {})[root.id] = {one.id: len(one.steps) for one in family}
        before, rank = self._ranks.get(facts.key), attempts.rank(root)
        if before is not None and before > rank:
            return
        self._ranks[facts.key] = rank
        self.latest[facts.key] = facts
        self.digests[facts.key] = str(attempts.noted(root).get("task_digest", ""))
        self.unfinished.discard(facts.key)
        if is_made_again:
            self.unfinished.add(facts.key)


def exists(output: str, *, spool: Spool = None) -> bool:
    """Whether an output holds anything, in its journal, its spool or in itself."""
    if is_address(output):
        here = spool_of(output, spool)
        return bool(_names_at(output) or spooled(here) or folder_of(here).exists())
    if is_folder_target(output):
        return os.path.isdir(output) and bool(set(os.listdir(output)) - {LOCK})
    return os.path.exists(f"{output}.journal") or (os.path.isfile(output) and os.path.getsize(output) > 0)


def _names_at(address: str) -> list[str]:
    try:
        return names_in(address) or []
    except FileNotFoundError:
        return []


def earlier(output: str, *, write: bool = True, spool: Spool = None) -> Earlier:
    """Writes what dead processes left in the journals of an output, and reads all of it.

    Args:
        output: where.
        write: False: what they left is read in the journals, and nothing is changed.
        spool: of an address, as for ``rt.recording``.

    Raises:
        OSError: it cannot be read or written.
        ValueError: it holds lines, and none of them is a trajectory.
        ImportError: a package that reads it is not installed.
    """
    found = Earlier()
    # Of an address, what was not uploaded is on this machine.
    if not is_address(output) and not exists(output):
        return found
    recovered = recover(output, write=write, spool=spool)
    if recovered.report.not_written:
        # Made again now, these rollouts would be in the output twice when a later recovery writes them.
        raise WriteError(
            f"what dead processes left of {shown(output)} could not be written to it "
            f"({recovered.report.not_written[0]}). Nothing is lost: call collect again when it can be."
        )
    found.recovered = len(recovered)
    if not write:
        found.add_all(recovered)
    try:
        reader = read(output, on_error="skip", media="keep")
    except FileNotFoundError:
        # A folder with a journal that held nothing, and no file; an address that nothing was uploaded to.
        return found
    found.add_all(reader)
    found.unreadable = len(reader.skipped)
    # A line that was cut by a kill is among them where nothing is to be written: it would be cut off.
    if found.unreadable > (not write) and not found.read and not found.recovered:
        raise ValueError(
            f"{shown(output)} holds {found.unreadable} lines, and none of them is a trajectory: give another output."
        )
    return found


def _families(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    """Trajectories that follow each other and belong to one episode: a rollout's stand together."""
    family: list[Trajectory] = []
    for one in trajectories:
        if family and (one.episode_id is None or one.episode_id != family[0].episode_id):
            yield family
            family = []
        family.append(one)
    if family:
        yield family


def leave_out(output: str, steps: Iterable[Mapping[str, int]]) -> None:
    """Notes that attempts which failed in an earlier run are not to be trained on: others have taken their places.

    Args:
        output: where; nothing is noted at an address, whose objects cannot be added to.
        steps: of each attempt its trajectories, by id, with the number of steps.

    Raises:
        WriteError, OSError: the notes cannot be written.
    """
    counts = {name: count for family in steps for name, count in family.items() if count}
    if is_address(output) or not counts:
        return
    for file in expand_paths(output):
        notes = [_untrained(name, counts[name]) for name in sorted(ids_in(file, counts))]
        if notes:
            append_notes(file, notes)


def _untrained(trajectory_id: str, count: int) -> dict[str, Any]:
    return checked_note(trajectory_id, {"steps": {index: {"trainable": False} for index in range(count)}})


def inside(output: str, silent: Collection[str]) -> list[Facts]:
    """The facts of attempts whose calls were all made by child processes; these wrote their trajectories themselves.

    Args:
        output: where.
        silent: ids of the attempts' trajectories.
    """
    families: dict[str, list[Trajectory]] = {}
    for one in read(output, on_error="skip", media="keep"):
        if one.episode_id is not None and one.episode_id in silent:
            if "reward" in attempts.noted(one):
                # The calls of reward functions in this process are counted already.
                one.steps = []
            families.setdefault(one.episode_id, []).append(one)
    found = (facts_of(family) for family in families.values() if len(family) > 1)
    return [facts for facts in found if facts is not None]
