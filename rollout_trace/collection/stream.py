"""Rollouts as a stream: which of them is begun next, and which group is handed over. All in one event loop."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from rollout_trace.collection.items import Key, TaskItem
from rollout_trace.collection.job import Job, Outcome
from rollout_trace.collection.resume import Plan, after
from rollout_trace.data.user_values import brief
from rollout_trace.train.groups import Group

if TYPE_CHECKING:
    from rollout_trace.collection.tally import Tally
    from rollout_trace.collection.versions import Version, Versions
    from rollout_trace.data.trajectory import Trajectory

Order: TypeAlias = Literal["ready", "tasks"]
_LOOKS, _SECONDS = 20, 0.05
"""How often it is looked whether the last trajectories are written, and the time between."""
REMAKES = 3
"""How often a rollout that is too old is made again before its group is given up."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """One rollout of a group, by its last attempt."""

    job: Job
    trajectory_id: str | None = None
    """None: it has not ended. Empty: it has no trajectory, its worker was lost."""
    trajectories: Sequence[Trajectory] = ()
    """Its own, and those opened inside it, once they are written."""
    outcome: Outcome | None = None
    """None: it has not ended, or an earlier run made it."""

    @property
    def is_complete(self) -> bool:
        return self.trajectory_id is not None and bool(self.trajectories or not self.trajectory_id)


@dataclass(slots=True, kw_only=True, eq=False)
class _Pending:
    """A group that has not been handed over."""

    id: str
    runs: list[_Run]
    left: int
    """Runs that have not ended."""
    is_awaited: bool = False
    """Whether somebody waits for it, so that it is handed over without any trajectory, too."""
    remakes: int = 0
    """How often rollouts of it were too old, and made again."""

    @property
    def is_complete(self) -> bool:
        return all(run.is_complete for run in self.runs)


class Listeners(NamedTuple):
    """Functions that a stream calls."""

    stale: Callable[[Sequence[Trajectory]], object] = id
    """With the trajectories of a rollout that was too old."""
    taken: Callable[[Group], object] = id
    """With each group that the consumer has got."""
    dropped: Callable[[Group], object] = id
    """With each group, without trajectories, that was given up."""
    left: Callable[[], object] = int
    """When the consumer takes no more."""


class Known(NamedTuple):
    """What the output holds at the beginning of a stream."""

    given: frozenset[str] = frozenset()
    """Ids of the groups that were handed over."""
    runs: Mapping[Key, Sequence[Trajectory]] = {}
    """The trajectories of the other rollouts."""


@dataclass(slots=True)
class Pace:
    """Estimates how many groups the consumer takes per version: with more, some would become too old."""

    _version: Version | None = None
    _count: int = 0
    _most: int | None = None
    """Groups that were taken of one version; None while it has not changed."""

    def taken(self, version: Version | None) -> None:
        """A group was taken while the weights had this version."""
        if self._count and version != self._version:
            self._most = max(self._most or 1, self._count)
            self._count = 0
        self._version = version
        self._count += 1

    def most_open(self, max_lag: int | None) -> float:
        """Groups that can be taken before the first of them is too old."""
        return math.inf if max_lag is None or self._most is None else (max_lag + 1) * self._most


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """The groups of a stream of tasks. Whoever makes rollouts asks ``next`` for them; the consumer takes groups."""

    tasks: Iterator[TaskItem] | AsyncIterator[TaskItem]
    in_flight: int
    """Rollouts in complete groups that may wait for the consumer."""
    order: Order
    versions: Versions
    size: int | None = None
    stale: int = 0
    dropped: int = 0
    """Groups that were given up: a rollout was too old again and again, or all were lost with their workers."""
    taken: int = 0
    _plan: Plan | None = None
    _tally: Tally | None = None
    _known: Known = field(default_factory=Known)
    _on: Listeners = field(default_factory=Listeners)
    _flush: Callable[[], Awaitable[object]] = field(default=lambda: asyncio.sleep(0))
    _open: dict[str, _Pending] = field(default_factory=dict)
    """The groups that have not been handed over, by id, in the order of their tasks."""
    _by_key: dict[Key, tuple[_Pending, int]] = field(default_factory=dict)
    _ready: dict[str, _Pending] = field(default_factory=dict)
    """Those that are complete, in the order in which they became so."""
    _again: deque[Job] = field(default_factory=deque)
    _new: deque[Job] = field(default_factory=deque)
    _waiting: int = 0
    """Rollouts of groups that have ended, and the consumer has not taken."""
    _pace: Pace = field(default_factory=Pace)
    _rounds: Counter[str] = field(default_factory=Counter)
    _indexes: Counter[str] = field(default_factory=Counter)
    """Of each task, the index of its next rollout."""
    _fetching: asyncio.Task[None] | None = None
    _tasks_ended: bool = False
    _failure: BaseException | None = None
    """What the tasks, or the run, raised."""
    _is_stopped: bool = False
    """Whether no further rollout is begun."""
    _has_ended: bool = False
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when the consumer is to look again."""
    _idle: int = 0
    """Those that wait for a rollout to make, and have not been told to look again."""
    _wakes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def bind(
        self,
        plan: Plan,
        tally: Tally,
        known: Known,
        *,
        on: Listeners,
        flush: Callable[[], Awaitable[object]],
    ) -> None:
        """Says what the run is, before it begins. ``flush`` returns when what has ended is written, if it can be."""
        self._plan, self._tally, self._known, self._flush = plan, tally, known, flush
        self._on = on

    # For the run

    async def next(self) -> Job | None:
        """Returns the next rollout to make, when there is room for it; None when there are no more."""
        while not self._is_stopped:
            if self._has_room and not self._again:
                self._take_tasks()
            if self._again or self._new:
                self._wake()  # There may be more.
                return (self._again or self._new).popleft()
            # What has not been taken may be too old then, and be made again.
            if self._tasks_ended and (self.versions.max_lag is None or not self._open):
                break
            if self._tasks_ended and not self._ready and all(run.trajectory_id is not None for run, _ in self._runs()):
                await self._settle()
                continue
            self._idle += 1
            await self._wakes.acquire()
        self._wake()
        return None

    async def _settle(self) -> None:
        """Waits for what is being written. A trajectory that could not be is not waited for any more."""
        for _ in range(_LOOKS):
            await self._flush()
            # That it is written is said after it is.
            await asyncio.sleep(_SECONDS)
            missing = [run for run, _ in self._runs() if run.trajectory_id and not run.trajectories]
            if not missing:
                return
        for run in missing:
            run.trajectory_id = ""
            self._look(run.job.key)

    def begun(self, job: Job) -> Job:
        """An attempt begins: the job with the version of the weights."""
        job = replace(job, policy_version=self.versions.now())
        self._run_of(job.key).job = job
        return job

    def ended(self, outcome: Outcome) -> None:
        """The last attempt at a rollout has ended."""
        if outcome.key not in self._by_key or outcome.will_retry:  # Stopped before it was tried again.
            return
        pending, at = self._by_key[outcome.key]
        run = pending.runs[at]
        run.outcome, run.trajectory_id = outcome, outcome.trajectory_id
        pending.left -= 1
        if not pending.left:
            self._waiting += len(pending.runs)
        if outcome.trajectories:
            run.trajectories = outcome.trajectories
        self._look(outcome.key)

    def written(self, key: Key, trajectories: Sequence[Trajectory]) -> None:
        """The trajectories of the last attempt at a rollout are in the output."""
        if key in self._by_key:
            self._run_of(key).trajectories = trajectories
            self._look(key)

    def stop(self) -> None:
        """No further rollout is begun."""
        self._is_stopped = True
        self._wake()
        self._changed()

    def end(self, failure: BaseException | None) -> None:
        """The run has ended; what is complete can still be taken."""
        self._failure = self._failure or failure
        if self._fetching is not None:
            self._fetching.cancel()
        for pending in list(self._open.values()):
            # What could not be written has no trajectory to give.
            if all(run.trajectory_id is not None for run in pending.runs):
                self._ready[pending.id] = pending
        self._has_ended = True
        self.stop()

    @property
    def ready(self) -> int:
        """Complete groups that wait for the consumer."""
        return len(self._ready)

    # For the consumer

    async def take(self) -> Group | None:
        """The next group, when there is one; then raises what the tasks or the run raised, or returns None."""
        while True:
            pending = self._pick()
            if pending is not None:
                group = self._hand_over(pending)
                if not group.trajectories:
                    self.dropped += 1
                    self._on.dropped(group)
                if group.trajectories or pending.is_awaited:
                    return group
            elif self._has_ended:
                if self._failure is not None:
                    raise self._failure
                return None
            else:
                await self._change.wait()

    def was_taken(self, group: Group) -> None:
        """The consumer has got a group."""
        if group.trajectories:
            self.taken += 1
            self._pace.taken(self.versions.now())
            self._on.taken(group)

    def left(self) -> None:
        """The consumer takes no more."""
        self._on.left()

    def _pick(self) -> _Pending | None:
        """A complete group that may be handed over now, none of whose rollouts is too old."""
        if self.order == "tasks":
            candidates: Iterable[_Pending] = list(self._open.values())
        else:
            # What was made again goes first: it may be too old soon.
            candidates = sorted(self._ready.values(), key=lambda one: not one.remakes)
        for pending in candidates:
            if pending.id not in self._ready:
                return None
            made = [run for run in pending.runs if run.trajectories]
            stale = [run for run in made if self.versions.is_stale(run.job.policy_version)]
            if stale and (self._is_stopped or pending.remakes >= REMAKES):
                self._give_up(pending)
                return pending
            if stale:
                self._make_again(pending, stale)
                if self.order == "tasks":
                    return None
            elif self.order == "tasks" or not made or not self._must_wait(pending):
                return pending
        return None

    def _must_wait(self, candidate: _Pending) -> bool:
        """Whether another group was too old more often, or came first, and would be so again after one more version.

        Otherwise a task that takes longer than others would never have a group.
        """
        is_before = True
        for one in self._open.values():
            is_before = is_before and one is not candidate
            if one.remakes > candidate.remakes - is_before and one.remakes and one.id not in self._ready:
                for run in one.runs:
                    if run.job.policy_version is not None and self.versions.is_stale(run.job.policy_version, after=1):
                        return True
        return False

    def _make_again(self, pending: _Pending, stale: Sequence[_Run]) -> None:
        pending.remakes += 1
        del self._ready[pending.id]
        self._waiting -= len(pending.runs)
        pending.left = len(stale)
        for run in stale:
            self._is_stale(run.trajectories)
            self._begin_again(run)
        self._wake()

    def _give_up(self, pending: _Pending) -> None:
        """Takes a group's trajectories from it: it was too old too often."""
        for run in pending.runs:
            self._is_stale(run.trajectories)
            run.trajectories = ()

    def _is_stale(self, trajectories: Sequence[Trajectory]) -> None:
        self.stale += 1
        self._on.stale(trajectories)

    def _begin_again(self, run: _Run) -> None:
        assert self._tally is not None
        assert self._plan is not None
        if run.outcome is not None:
            self._tally.retract(run.outcome)
        else:
            self._tally.add_earlier(self._plan.earlier.latest[run.job.key], by=-1)
        self._again.append(replace(after(run.job, run.job.attempt, run.trajectory_id or None), policy_version=None))
        run.job = self._again[-1]
        run.trajectory_id, run.trajectories, run.outcome = None, (), None

    def _hand_over(self, pending: _Pending) -> Group:
        self._close(pending)
        self._wake()
        own: list[Trajectory] = []
        inside: list[Trajectory] = []
        for run in pending.runs:
            for one in run.trajectories:
                (own if one.id == run.trajectory_id else inside).append(one)
        return Group(id=pending.id, trajectories=tuple(own), inside=tuple(inside))

    def _close(self, pending: _Pending) -> None:
        del self._open[pending.id], self._ready[pending.id]
        self._waiting -= len(pending.runs)
        for run in pending.runs:
            del self._by_key[run.job.key]

    # Tasks

    def _take_tasks(self) -> None:
        """Opens groups until there is a rollout to begin, or too much waits for the consumer, or the tasks end."""
        if isinstance(self.tasks, AsyncIterator):
            if not (self._new or self._fetching or self._tasks_ended):
                self._fetching = asyncio.ensure_future(self._fetch(self.tasks))
            return
        while not (self._new or self._tasks_ended) and self._has_room:
            try:
                self._open_group(next(self.tasks))
            except StopIteration:
                self._tasks_end(None)
            except Exception as error:
                self._tasks_end(error)

    async def _fetch(self, tasks: AsyncIterator[TaskItem]) -> None:
        try:
            self._open_group(await tasks.__anext__())
        except StopAsyncIteration:
            self._tasks_end(None)
        except Exception as error:
            self._tasks_end(error)
        finally:
            self._fetching = None
            self._wake()

    def _tasks_end(self, failure: Exception | None) -> None:
        self._tasks_ended, self._failure = True, failure
        if failure is None and not self._rounds:
            self._failure = ValueError("the stream of tasks is empty. Give at least one task.")
        self._changed()

    def _open_group(self, item: TaskItem) -> None:
        """Opens the group of a task: its rollouts are begun, unless the output holds them."""
        assert self._plan is not None
        assert self._tally is not None
        self._rounds[item.id] += 1
        item = replace(item, round=self._rounds[item.id])
        self._check_group(item)
        first = self._indexes[item.id]
        self._indexes[item.id] += item.samples or self._plan.samples
        jobs = [self._plan.job(item, index) for index in range(first, self._indexes[item.id])]
        if self.size is None:
            self._tally.planned += len(jobs)
        group, is_given = jobs[0].group, jobs[0].group in self._known.given
        runs = []
        for job in jobs:
            known = None if is_given else self._known.runs.get(job.key)
            facts = self._plan.earlier.latest.get(job.key)
            if is_given or (known and not self.versions.is_stale(facts.policy_version if facts else None)):
                if facts is not None:
                    self._tally.add_earlier(facts)
                own = facts.trajectory_id if facts else ""
                version = facts.policy_version if facts else None
                attempt = facts.attempt if facts else 1
                job = replace(job, attempt=attempt, policy_version=version)
                runs.append(_Run(job=job, trajectory_id=own, trajectories=known or ()))
            else:
                if known:
                    self._is_stale(known)
                runs.append(_Run(job=job))
                self._new.append(job)
        if is_given:
            return
        left = sum(run.trajectory_id is None for run in runs)
        self._waiting += 0 if left else len(runs)
        pending = self._open[group] = _Pending(id=group, runs=runs, left=left, is_awaited=item.samples is not None)
        self._by_key.update((run.job.key, (pending, at)) for at, run in enumerate(runs))
        self._look(runs[0].job.key)

    def _check_group(self, item: TaskItem) -> None:
        """Raises ValueError where another task has the group's id: one is ``x#2``, and the other is ``x``, again."""
        before, _, number = item.id.rpartition("#")
        is_used = item.round > 1 and item.group in self._rounds
        if is_used or number in map(str, range(2, self._rounds[before] + 1)):
            raise ValueError(
                f"the task {brief(item.id)} would have the group {brief(item.group)}, which another task has: a task "
                "that comes again gets the groups ID#2, ID#3. Give the tasks other ids."
            )

    # What waits

    @property
    def _has_room(self) -> bool:
        """Whether the rollouts of a further task may begin."""
        return self._waiting < self.in_flight and len(self._open) < self._pace.most_open(self.versions.max_lag)

    def _runs(self) -> Iterator[tuple[_Run, _Pending]]:
        return ((run, pending) for pending in self._open.values() for run in pending.runs)

    def _run_of(self, key: Key) -> _Run:
        pending, at = self._by_key[key]
        return pending.runs[at]

    def _look(self, key: Key) -> None:
        """Sees whether the group of a rollout is complete."""
        pending, _ = self._by_key[key]
        if pending.is_complete:
            self._ready[pending.id] = pending
            self._changed()

    def _wake(self) -> None:
        """Wakes one of the callers that wait for a rollout to make; it wakes the next one."""
        if self._idle:
            self._idle -= 1
            self._wakes.release()

    def _changed(self) -> None:
        """Wakes the consumer."""
        change, self._change = self._change, asyncio.Event()
        change.set()
