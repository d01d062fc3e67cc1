"""The rollouts of a run of ``collect``, and what the output holds of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollout_trace.collection.items import Key, TaskItem
from rollout_trace.collection.job import Job, Work
from rollout_trace.data.episodes import NOT_SUCCEEDED

if TYPE_CHECKING:
    from rollout_trace.collection.facts import Facts
    from rollout_trace.collection.resume import Earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The rollouts that were asked for, and those of them that are in the output."""

    work: Work
    tasks: list[TaskItem]
    samples: int
    seed: int | None
    earlier: Earlier
    retry_failed: bool

    @property
    def size(self) -> int:
        """All rollouts, those in the output included."""
        return len(self.tasks) * self.samples

    def jobs(self) -> Iterator[Job]:
        """The first attempt at each rollout that is to be made, the samples of a task one after the other."""
        for task, key in self._keys():
            if not self.earlier.is_done(key, retry_failed=self.retry_failed):
                seed = None if self.seed is None else self.seed + key.index
                job, before = Job(work=self.work, task=task, index=key.index, seed=seed), self.earlier.latest.get(key)
                yield job if before is None else after(job, before.attempt, before.trajectory_id)

    def kept(self) -> Iterator[Facts]:
        """The facts of the rollouts that are not made again."""
        for _, key in self._keys():
            if self.earlier.is_done(key, retry_failed=self.retry_failed):
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
    kept, failed = len(statuses), sum(status in NOT_SUCCEEDED for status in statuses)
    changed = [task.id for task in plan.tasks if _has_changed(plan, task.id, task.digest)]
    texts = [
        f"{kept} of {plan.size} rollouts are in {plan.work.shown_output} already" if kept else "",
        f"{failed} of these failed or timed out, and are kept; retry_failed makes them again" if failed else "",
        f"{found.recovered} trajectories that a dead process left were written from its journal"
        if found.recovered
        else "",
        f"{found.unreadable} lines of {plan.work.shown_output} could not be read, and are left where they are"
        if found.unreadable
        else "",
        f"{len(changed)} of the tasks changed after rollouts of them were made, such as {changed[0]!r}; these "
        "rollouts are kept"
        if changed
        else "",
    ]
    return [text for text in texts if text]


def _has_changed(plan: Plan, task: str, digest: str) -> bool:
    known = {plan.earlier.digests.get(Key(plan.work.name, task, index)) for index in range(plan.samples)}
    return bool(known - {None, "", digest})
