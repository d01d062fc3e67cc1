"""The rollouts of a run of ``collect``: what was asked for, and what the output holds of it already."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from rollout_trace.collection.facts import Facts, facts_of
from rollout_trace.collection.items import Key, TaskItem
from rollout_trace.collection.job import Job, Work
from rollout_trace.collection.places import LOCK
from rollout_trace.data import episodes
from rollout_trace.errors import WriteError
from rollout_trace.file.addresses import is_address, is_folder_target, names_in, shown
from rollout_trace.file.annotate import of_episodes
from rollout_trace.file.journal import folder_of
from rollout_trace.file.reader import read
from rollout_trace.file.shards_upload import spool_of, spooled
from rollout_trace.record.recovery import recover

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Spool: TypeAlias = "str | os.PathLike[str] | None"


@dataclass(slots=True)
class Earlier:
    """Rollouts that an output already holds."""

    latest: dict[Key, Facts] = field(default_factory=dict)
    """The last attempt at each rollout: of its own trajectory alone."""
    digests: dict[Key, str] = field(default_factory=dict)
    """The digest of the task that it was made with."""
    unfinished: set[Key] = field(default_factory=set)
    """Rollouts whose last attempt was cut, or was to be followed by another."""
    recovered: int = 0
    """Trajectories of dead processes that were written from their journals."""
    unreadable: int = 0
    read: int = 0
    """Trajectories that were, of whatever origin."""
    _ranks: dict[Key, tuple[int, bool]] = field(default_factory=dict)
    _attempts: episodes.Attempts = field(default_factory=episodes.Attempts)
    _trained: set[str] = field(default_factory=set)
    """Episodes with a step that a trainer would take."""

    def is_done(self, key: Key, *, retry_failed: bool) -> bool:
        """Whether a rollout is not to be made again."""
        facts = self.latest.get(key)
        if facts is None or key in self.unfinished:
            return False
        return facts.status not in episodes.NOT_SUCCEEDED or not retry_failed

    @property
    def has_thrown(self) -> bool:
        """Whether a trainer would take steps of thrown attempts: child processes wrote them, or a kill came first."""
        return not self._trained.isdisjoint(self._attempts.thrown)

    def add(self, trajectory: Trajectory) -> None:
        """Adds a trajectory; those of one rollout come in any order."""
        self.read += 1
        if any(map(episodes.may_be_trained, trajectory.steps)):
            self._trained.add(episodes.episode_of(trajectory))
        self._attempts.add(trajectory)
        facts = facts_of([trajectory])
        if facts is not None:
            self._add(facts, trajectory)

    def _add(self, facts: Facts, own: Trajectory) -> None:
        before, rank = self._ranks.get(facts.key), episodes.rank(own)
        if before is not None and before > rank:
            return
        self._ranks[facts.key] = rank
        self.latest[facts.key] = facts
        self.digests[facts.key] = str(episodes.noted(own).get("task_digest", ""))
        self.unfinished.discard(facts.key)
        if episodes.is_made_again(own):
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

    Without ``write`` that is read in the journals, and nothing is changed. Raises OSError, ImportError, WriteError;
    ValueError where it holds lines, and none of them is a trajectory.
    """
    found = Earlier()
    # Of an address, what was not uploaded is on this machine.
    if not is_address(output) and not exists(output):
        return found
    recovered = recover(output, write=write, spool=spool)
    if recovered.report.not_written:
        # Made again now, these rollouts would be in the output twice when a later recovery writes them.
        raise WriteError(
            f"what killed processes had recorded for {shown(output)} could not be written to it "
            f"({recovered.report.not_written[0]}). Nothing is lost: call collect again once it can be written."
        )
    found.recovered = len(recovered)
    for one in recovered if not write else ():
        found.add(one)
    try:
        reader = read(output, on_error="skip", media="keep")
    except FileNotFoundError:
        # A folder with a journal that held nothing, and no file; an address that nothing was uploaded to.
        return found
    for one in reader:
        found.add(one)
    found.unreadable = len(reader.skipped)
    # A line that was cut by a kill is among them where nothing is to be written: it would be cut off.
    if found.unreadable > (not write) and not found.read and not found.recovered:
        raise ValueError(
            f"{shown(output)} holds {found.unreadable} lines, and none of them is a trajectory: give another output."
        )
    return found


def inside(output: str, silent: Collection[str]) -> list[Facts]:
    """The facts of the attempts of these episodes whose calls were all made, and written, by child processes."""
    found = []
    for episode in episodes.episodes(one for _, one in of_episodes(output, silent)):
        for one in episode:
            if "reward" in episodes.noted(one):
                # The calls of reward functions in this process are counted already.
                one.steps = []
        facts = facts_of(episode) if len(episode) > 1 else None
        if facts is not None:
            found.append(facts)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The rollouts that were asked for, and those of them that are in the output."""

    work: Work
    tasks: list[TaskItem]
    samples: int
    seed: int | None
    retry_failed: bool
    earlier: Earlier = field(default_factory=Earlier)

    @property
    def size(self) -> int:
        """All rollouts, those in the output included."""
        return len(self.tasks) * self.samples

    def jobs(self) -> Iterator[Job]:
        """Yields the first attempt at each rollout to make, with the samples of a task one after the other."""
        for task, key in self._keys():
            if not self.is_done(key):
                yield self.job(task, key.index)

    def job(self, task: TaskItem, index: int) -> Job:
        """The first attempt at a rollout in this run."""
        seed = None if self.seed is None else self.seed + index
        job = Job(work=self.work, task=task, index=index, seed=seed)
        before = self.earlier.latest.get(job.key)
        return job if before is None else after(job, before.attempt, before.trajectory_id)

    def is_done(self, key: Key) -> bool:
        """Whether the output holds a rollout that is not to be made again."""
        return self.earlier.is_done(key, retry_failed=self.retry_failed)

    def kept(self) -> Iterator[Facts]:
        """The facts of the rollouts that are not made again."""
        for _, key in self._keys():
            if self.is_done(key):
                yield self.earlier.latest[key]

    def _keys(self) -> Iterator[tuple[TaskItem, Key]]:
        """All rollouts, the samples of a task one after the other."""
        for task in self.tasks:
            for index in range(self.samples):
                yield task, Key(self.work.name, task.id, index)


def after(job: Job, attempt: int, trajectory_id: str | None) -> Job:
    """The next attempt at a rollout; the one before has this number and this trajectory."""
    return replace(job, attempt=attempt + 1, retry_of=trajectory_id)


def found_in(plan: Plan) -> list[str]:
    """Sentences about what the output held."""
    found, statuses = plan.earlier, [facts.status for facts in plan.kept()]
    kept, failed = len(statuses), sum(status in episodes.NOT_SUCCEEDED for status in statuses)
    changed = [task.id for task in plan.tasks if _has_changed(plan, task.id, task.digest)]
    output, such = plan.work.shown_output, f", such as {changed[0]!r}" if changed else ""
    counts = {
        f"of {plan.size} rollouts are in {output} already": kept,
        'of these failed or timed out, and are kept; retries={"failed": True} makes them again': failed,
        "trajectories that a dead process left were written from its journal": found.recovered,
        f"lines of {output} could not be read, and are left where they are": found.unreadable,
        f"of the tasks changed after rollouts of them were made{such}; these rollouts are kept": len(changed),
    }
    return [f"{count} {text}" for text, count in counts.items() if count]


def _has_changed(plan: Plan, task: str, digest: str) -> bool:
    known = {plan.earlier.digests.get(Key(plan.work.name, task, index)) for index in range(plan.samples)}
    return bool(known - {None, "", digest})
