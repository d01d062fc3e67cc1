"""Jobs, which hold what one run of an agent needs anywhere, their outcomes (both picklable), and executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rollout_trace._field_docs import document_fields
from rollout_trace.collection.items import Key, RetryPolicy, TaskItem
from rollout_trace.file.addresses import shown

if TYPE_CHECKING:
    from rollout_trace.collection.agents import Agent
    from rollout_trace.collection.facts import Facts
    from rollout_trace.collection.rewards import Rewards
    from rollout_trace.data.model import ErrorInfo
    from rollout_trace.data.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Data shared by all jobs of one run of ``collect``."""

    run_id: str
    name: str
    agent: Agent
    rewards: Rewards | None
    retries: RetryPolicy
    output: str | None
    """An absolute path or an address; None: nothing is written to a file."""
    recording: Mapping[str, Any] = field(default_factory=dict)
    instrument: bool = True
    engine: Any = None
    timeout: float | None = None
    """Seconds of one attempt."""
    groups_by_name: bool = False
    """Whether group ids contain the agent's name, because several agents or models share the output."""
    artifacts: str = ""
    """Folder for files of the agents; each rollout gets a subfolder on first use."""
    logs: str | None = None
    hands_over: bool = False
    """Whether outcomes from other processes include their trajectories."""

    @property
    def shown_output(self) -> str:
        """The output for messages and other files: an address without user and password."""
        return "no file" if self.output is None else shown(self.output)

    def finish(self) -> None:
        """Finishes writing the rollouts of this process and closes its output, as its end does. Raises WriteError."""
        from rollout_trace.collection.serving import finish

        finish(self)


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One attempt at one rollout. ``run()`` makes the attempt, in any process."""

    work: Work
    """What all jobs of the run share: the agent, the output, the options."""
    task: TaskItem
    """The task."""
    index: int
    """Position among the samples of the task, from 0."""
    seed: int | None = None
    """Seed of the rollout; None without one."""
    attempt: int = 1
    """Number of the attempt, from 1."""
    retry_of: str | None = None
    """Id of the trajectory of the previous attempt."""
    policy_version: str | int | None = None
    """Version of the weights when the attempt began; None where none was given."""
    failures: int = 0
    """Number of earlier failed attempts in this run of ``collect``, as counted against ``retries``."""

    @property
    def key(self) -> Key:
        """Key of the rollout that this is an attempt at."""
        return Key(self.work.name, self.task.id, self.index)

    @property
    def group(self) -> str:
        """Id of the group of the trajectory."""
        return f"{self.work.name}/{self.task.group}" if self.work.groups_by_name else self.task.group

    def run(self) -> Outcome:
        """Runs the agent in this process, and returns when the trajectory is in the output.

        Executors may call it in any thread without an event loop, several times at once. The first call in a process
        opens the output; ``job.work.finish()`` or the end of the process closes it.
        """
        from rollout_trace.collection.serving import run_job

        return run_job(self)

    async def arun(self) -> Outcome:
        """Does what ``run`` does, in the running event loop."""
        from rollout_trace.collection.serving import arun_job

        return await arun_job(self)


@document_fields
@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of one attempt at one rollout."""

    key: Key
    """The rollout that was attempted."""
    attempt: int
    """Number of the attempt, from 1."""
    trajectory_id: str
    """Id of the trajectory of the attempt."""
    status: str
    """``completed``, ``failed`` (the agent raised), ``timeout`` or ``aborted``."""
    error: ErrorInfo | None = None
    """The exception that ended it."""
    error_kinds: tuple[str, ...] = ()
    """Names of the exception's class and of its bases, most derived first."""
    reward: float | None = None
    """Reward of the trajectory; None: not scored."""
    rewards: Mapping[str, float] | None = None
    """Named parts of the reward."""
    reward_errors: tuple[str, ...] = ()
    """Why rewards are missing: the name of each function that failed, with its exception."""
    will_retry: bool = False
    """Whether another attempt follows: the failure is one to retry, and attempts are left."""
    is_left_behind: bool = False
    """Whether the agent could not be stopped and is still running in its thread."""
    seconds: float = 0.0
    """Seconds from the start of the attempt to its end, without computing the reward."""
    facts: Facts | None = None
    """Facts about its trajectories, once they are written; None before."""
    trajectories: Sequence[Trajectory] = ()
    """Its trajectories, if another process made them and they were asked for."""


@runtime_checkable
class Executor(Protocol):
    """Makes rollouts in this process, in other processes or on other machines."""

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout: calls ``job.run()`` or ``job.arun()`` somewhere, and returns the result.

        It is called for up to ``concurrency`` jobs at the same time. Cancelling a call stops the rollout, if possible.

        Raises:
            WorkerLost: the process that was making the rollout has ended. The rollout is made again.
        """

    async def close(self) -> None:
        """Ends the workers when no rollouts are left. Each worker finishes its output first.

        A worker that exits by itself finishes its output; one that is killed leaves its journal.
        """


class WorkerLost(RuntimeError):
    """The process that made a rollout has ended. Raised by an executor: the rollout is made again."""


class RolloutTimeout(TimeoutError):
    """A rollout took longer than ``timeout=``. What was recorded until then is kept."""
