"""What an output holds already of the rollouts that are to be made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollout_trace.collection.facts import Facts, facts_of
from rollout_trace.file.addresses import is_address, is_folder_target, names_in
from rollout_trace.file.reader import read
from rollout_trace.record.recovery import recover

if TYPE_CHECKING:
    from rollout_trace.collection.job import Key
    from rollout_trace.data.trajectory import Trajectory

UNFINISHED = "aborted"
"""Status of a rollout that was cut. It is made again."""


@dataclass(slots=True)
class Earlier:
    """What an output holds."""

    latest: dict[Key, Facts] = field(default_factory=dict)
    """The last attempt at each rollout."""
    digests: dict[Key, str] = field(default_factory=dict)
    """The digest of the task that it was made with."""
    unfinished: set[Key] = field(default_factory=set)
    """Rollouts whose last attempt was cut, or was to be followed by another."""
    recovered: int = 0
    """Trajectories of dead processes that were written from their journals."""
    unreadable: int = 0
    """Lines that could not be read."""

    def is_done(self, key: Key, *, retry_failed: bool) -> bool:
        """Whether a rollout is not to be made again."""
        facts = self.latest.get(key)
        if facts is None or key in self.unfinished:
            return False
        return facts.status == "completed" or not retry_failed

    def add(self, facts: Facts, root: Trajectory) -> None:
        """Adds one attempt; of several the one with the highest number counts."""
        before = self.latest.get(facts.key)
        if before is not None and before.attempt > facts.attempt:
            return
        known = (root.metadata or {}).get("collect") or {}
        self.latest[facts.key] = facts
        self.digests[facts.key] = str(known.get("task_digest", ""))
        self.unfinished.discard(facts.key)
        if facts.status == UNFINISHED or known.get("will_retry"):
            self.unfinished.add(facts.key)


def exists(output: str) -> bool:
    """Whether an output holds anything, in its journal or in itself."""
    if is_address(output):
        return bool(_names_at(output))
    if is_folder_target(output):
        return os.path.isdir(output) and bool(os.listdir(output))
    return os.path.exists(f"{output}.journal") or (os.path.isfile(output) and os.path.getsize(output) > 0)


def _names_at(address: str) -> list[str]:
    try:
        return names_in(address) or []
    except FileNotFoundError:
        return []


def earlier(output: str) -> Earlier:
    """Writes what dead processes left in the journals of an output, and reads all of it.

    Raises:
        OSError: it cannot be read or written.
        ImportError: a package that reads it is not installed.
    """
    found = Earlier()
    if not exists(output):
        return found
    found.recovered = len(recover(output, write=True))
    try:
        reader = read(output, on_error="skip", media="keep")
    except FileNotFoundError:
        # A folder with a journal that held nothing, and no file.
        return found
    for family in _families(reader):
        facts = facts_of(family)
        if facts is not None:
            found.add(facts, family[0])
    found.unreadable = len(reader.skipped)
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
