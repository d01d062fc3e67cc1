"""Makes rollouts in this process: opens the output, runs the agent in a trajectory of its own, sets its rewards."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from rollout_trace import guard
from rollout_trace.collection.calls import Ended, UserCall
from rollout_trace.collection.facts import Facts, facts_of
from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Job, Outcome, RolloutTimeout, Work
from rollout_trace.collection.logs import Rollout, RolloutLogs
from rollout_trace.collection.rewards import RewardPart, score
from rollout_trace.collection.tasks import recorded_task
from rollout_trace.data import episodes
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record import context, lifecycle, sink
from rollout_trace.record.lifecycle import change_episode, closed_inside
from rollout_trace.record.recording import recording
from rollout_trace.record.scope import current_scope
from rollout_trace.record.state import log_of, state_of

BACKLOG = 32 * 1024 * 1024
"""While so many bytes wait to be written, no rollout begins."""
_POLL = 0.02
"""Seconds between two looks at that."""
REWARD = "reward"
"""Name of the trajectories of calls that reward functions make."""


class _Nowhere:
    """A target of recordings that keeps nothing."""

    def write(self, trajectory: Trajectory) -> None:
        """Does nothing."""

    def __str__(self) -> str:
        return "no file"


NOWHERE = _Nowhere()


class Family(NamedTuple):
    """The trajectories of one attempt at a rollout that are being written."""

    id: str
    """Of the rollout's own."""
    key: Key | None
    """The rollout; None: the attempt is thrown away. Known here: ``redact=`` may change what is in a trajectory."""
    size: int
    written: list[Trajectory]
    refused: list[Trajectory]
    """By their file, which may take them later."""


class Worker:
    """Makes the rollouts of one run of ``collect`` in this process.

    ``on_written`` is called, on the thread that writes, with the trajectories of each attempt and their facts, None
    where ``redact=`` has changed them. Where the output refuses one, it is called at once, without facts, and once more
    when they are written, without the key. ``version`` gives the version of the weights for each call; None: the job's.
    """

    def __init__(
        self,
        work: Work,
        on_written: Callable[[Family, Facts | None], object],
        version: Callable[[], str | int | None] | None = None,
    ) -> None:
        self._work = work
        self._on_written = on_written
        self._version = version
        self._families: dict[str, Family] = {}
        """By the id of each of their trajectories."""
        self._logs = RolloutLogs(work.logs)
        self._opened = ExitStack()
        self._here = context.NOTHING
        self.recording: recording | None = None

    def open(self) -> None:
        """Opens the output, and records the process's clients. Raises as ``rt.recording``, and as the agent's class."""
        with ExitStack() as opened:
            if self._work.instrument:
                from rollout_trace.process.instrument import instrument

                opened.enter_context(instrument(engine=self._work.engine))
            # Makes the instance of a class: where that fails, it would fail in each rollout.
            self._work.agent.load()
            self._logs.install()
            opened.callback(self._logs.uninstall)
            sink.on_written.append(self._written)
            opened.callback(sink.on_written.remove, self._written)
            sink.on_refused.append(self._refused)
            opened.callback(sink.on_refused.remove, self._refused)
            # Last, so that it ends first. In a context of its own: the caller's recording stays what it was.
            output = recording(NOWHERE if self._work.output is None else self._work.output, **self._work.recording)
            contextvars.copy_context().run(opened.enter_context, output)
            self.recording, self._here = output, context.Carried(None, None, output)
            self._opened = opened.pop_all()

    async def flush(self) -> None:
        """Waits until what has ended is written, as far as it can be."""
        if self.recording is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.recording.flush)

    def close(self) -> None:
        """Waits until everything is written. Raises WriteError where something could not be."""
        self.recording = None
        self._opened.close()

    async def attempt(self, job: Job) -> Outcome:
        """Makes one attempt at a rollout. Its trajectory is passed on to be written, and not waited for."""
        # Agents that never wait leave the thread that writes little time: what they recorded would fill the memory.
        while self.recording is not None and self.recording.backlog > BACKLOG:
            await asyncio.sleep(_POLL)
        context.switch(self._here)
        trajectory = _opened(job)
        if job.policy_version is not None and (calls := log_of(trajectory)) is not None:
            calls.policy_version = self._version or (lambda: job.policy_version)
        current_scope.set(trajectory)
        log = self._logs.begin(job, trajectory.id)
        rollout = Rollout(
            task_id=job.task.id,
            group=job.group,
            index=job.index,
            seed=job.seed,
            attempt=job.attempt,
            name=self._work.name,
            log=log.logger,
            artifacts=self._work.artifacts,
        )
        began, error, will_retry = time.monotonic(), None, False
        key: Key | None = None
        try:
            # Its rewards get the same one: an agent may leave them something there.
            task = self._work.agent.own_task(job.task.value)
            agent = self._work.agent
            call = UserCall(partial(agent.call, task, rollout), is_async=agent.is_async)
            ended = await call.wait(self._work.timeout)
            seconds = time.monotonic() - began
            error = self._failure(ended, trajectory)
            failures: tuple[str, ...] = ()
            if error is None and self._work.rewards is not None:
                call_reward = partial(_call_reward, trajectory)
                failures = await score(self._work.rewards, task, ended.result, trajectory, call_reward)
            kinds = () if error is None else tuple(kind.__name__ for kind in type(error).__mro__[:-2])
            will_retry = self._work.retries.applies(kinds, job.failures + 1)
            if will_retry:
                change_episode(trajectory, episodes.supersede)
            else:
                key = job.key
        except BaseException as interruption:
            # Cut, by Ctrl-C or the end of the run: the next one makes it again.
            error = interruption
            change_episode(trajectory, episodes.supersede)
            raise
        finally:
            _identify(trajectory, job, will_retry=will_retry)
            self._finish(trajectory, key, error)
            log.end(error)
        return Outcome(
            key=job.key,
            attempt=job.attempt,
            trajectory_id=trajectory.id,
            status=trajectory.status,
            error=trajectory.error,
            error_kinds=kinds,
            reward=trajectory.reward,
            rewards=None if trajectory.rewards is None else dict(trajectory.rewards),
            reward_errors=failures,
            will_retry=will_retry,
            is_left_behind=ended.is_left_behind,
            seconds=seconds,
        )

    def _failure(self, ended: Ended, trajectory: Trajectory) -> BaseException | None:
        """The exception that ended a rollout, with the trajectory's status; None where it went well."""
        if ended.is_late:
            trajectory.status = trajectory.stop_reason = "timeout"
            return RolloutTimeout(f"the rollout took longer than {self._work.timeout:g} seconds")
        if ended.error is not None:
            # Also of exceptions that are no `Exception`: the agent ended by itself, nobody cut it.
            trajectory.status = "failed"
        return ended.error

    def _finish(self, trajectory: Trajectory, key: Key | None, error: BaseException | None) -> None:
        current_scope.set(None)
        family = closed_inside(trajectory)
        together = Family(trajectory.id, key, len(family), [], [])
        self._families.update((one.id, together) for one in family)
        lifecycle.finish(trajectory, None, error)
        for one in family:
            # The agent is done: what it left unread must not hold up the writing. Not before the trajectory is closed:
            # a thread that was left behind could begin one more call.
            state = state_of(one)
            log = None if state is None else state.closed_log
            if log is not None:
                log.abandon()

    def _written(self, trajectory: Trajectory, target: str) -> None:
        """Counts a trajectory that is in the output. Runs on the thread that writes."""
        family = self._families.pop(trajectory.id, None)
        if family is None:
            return
        family.written.append(trajectory)
        if len(family.written) == family.size:
            self._on_written(family, facts_of(family.written))

    def _refused(self, trajectory: Trajectory, target: str) -> None:
        """Passes on an attempt that its file refuses: who waits for it would wait for as long as a disk is full."""
        family = self._families.get(trajectory.id)
        if family is None:
            return
        family.refused.append(trajectory)
        made = {one.id: one for one in (*family.refused, *family.written)}
        if len(made) == family.size:
            self._on_written(family._replace(written=list(made.values())), None)
            # Nobody waits for it any more, and memory may have no room for it.
            family.refused.clear()
            counted = family._replace(key=None)
            self._families.update((name, counted) for name in made if name in self._families)


def _opened(job: Job) -> Trajectory:
    """The open trajectory of an attempt."""
    trajectory = Trajectory(
        name=job.work.name,
        task=recorded_task(job.task),
        group_id=job.group,
        rollout_index=job.index,
        metadata={episodes.FIELD: _known(job)},
    )
    lifecycle.begin(trajectory, None, is_root=True)
    return trajectory


def _known(job: Job) -> dict[str, Any]:
    """What is noted of an attempt in its trajectory."""
    known: dict[str, Any] = {"run": job.work.run_id, "attempt": job.attempt, "task_digest": job.task.digest}
    if job.seed is not None:
        known["seed"] = job.seed
    if job.retry_of is not None:
        known["retry_of"] = job.retry_of
    if job.policy_version is not None:
        known["policy_version"] = job.policy_version
    return known


def _identify(trajectory: Trajectory, job: Job, *, will_retry: bool) -> None:
    """Sets what identifies an attempt, where something else was set: it would not be found, and be made again."""
    if episodes.rollout_of(trajectory) != job.key:
        trajectory.name, trajectory.task, trajectory.rollout_index = job.work.name, recorded_task(job.task), job.index
    known = _known(job)
    if will_retry:
        known["will_retry"] = True
    if episodes.noted(trajectory) != known:
        trajectory.metadata = {**(trajectory.metadata or {}), episodes.FIELD: known}


async def _call_reward(trajectory: Trajectory, part: RewardPart, given: tuple[Any, ...], timeout: float | None) -> Any:
    """Calls a reward function. Its own calls, of a judge, are recorded in a trajectory inside the rollout's."""
    judge = Trajectory(name=REWARD, metadata={episodes.FIELD: {"reward": part.name}})
    lifecycle.begin(judge, trajectory)
    if (calls := log_of(judge)) is not None:
        calls.policy_version = None  # It is another model.
    current_scope.set(judge)
    error: BaseException | None = None
    try:
        ended = await UserCall(partial(part.function, *given), is_async=part.is_async).wait(timeout)
        error = ended.error
        if ended.is_late:
            error = RolloutTimeout(f"it took longer than {timeout:g} seconds")
    except BaseException as interruption:
        error = interruption
        raise
    finally:
        current_scope.set(trajectory)
        _give_rewards(judge, trajectory)
        if not lifecycle.discard(judge, trajectory):
            change_episode(judge, episodes.leave_out)
            lifecycle.finish(judge, trajectory, error)
    if error is None:
        return ended.result
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(f"it ended with {guard.describe(error)}")


def _give_rewards(judge: Trajectory, trajectory: Trajectory) -> None:
    """Gives the rollout the rewards that a reward function set with ``rt.reward()``."""
    if judge.rewards:
        trajectory.rewards, judge.rewards = {**(trajectory.rewards or {}), **judge.rewards}, None
    if judge.reward is not None:
        trajectory.reward, judge.reward = judge.reward, None
