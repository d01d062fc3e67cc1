"""What one run of an agent needs, wherever it is made, and what comes of it: both can be pickled. Who makes it."""

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
    """What all jobs of one run of ``collect`` share."""

    run_id: str
    """Of this run of ``collect``."""
    name: str
    """Of the trajectories."""
    agent: Agent
    rewards: Rewards | None
    retries: RetryPolicy
    output: str | None
    """An absolute path or an address; None: nothing is written to a file."""
    recording: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``rt.recording``."""
    instrument: bool = True
    """Whether the clients of the process are recorded without being wrapped."""
    engine: Any = None
    """Of these clients; as for ``rt.instrument``."""
    timeout: float | None = None
    """Seconds for one attempt."""
    groups_by_name: bool = False
    """Whether the group's id has the agent's name in it: several agents, or models, share the output."""
    artifacts: str = ""
    """Folder of what agents leave; one folder a rollout is made in it, on use."""
    logs: str | None = None
    """Folder of the log files, one a rollout; None for none."""
    hands_over: bool = False
    """Whether each outcome of another process brings its trajectories along."""

    @property
    def shown_output(self) -> str:
        """The output for people and for other files: without the user and password that an address may have."""
        return "no file" if self.output is None else shown(self.output)

    def finish(self) -> None:
        """Completes what this process wrote in the run, and closes its output. Does nothing where it made no rollout.

        For executors, when they end a worker. The end of a process does the same.

        Raises:
            WriteError: something could not be written.
        """
        from rollout_trace.collection.serving import finish

        finish(self)


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One attempt at one rollout. ``run()`` makes it, in any process."""

    work: Work
    """What all jobs of the run share: the agent, the output, the options."""
    task: TaskItem
    """The task."""
    index: int
    """Position among the samples of the task, from 0."""
    seed: int | None = None
    """Seed of the rollout; None without one."""
    attempt: int = 1
    """From 1."""
    retry_of: str | None = None
    """Id of the trajectory of the attempt before."""
    policy_version: str | int | None = None
    """Version of the weights when the attempt began; None where none was given."""
    failures: int = 0
    """Attempts before it in this run of ``collect`` that are tried again: what ``retries`` counts."""

    @property
    def key(self) -> Key:
        """The rollout that this is an attempt at."""
        return Key(self.work.name, self.task.id, self.index)

    @property
    def group(self) -> str:
        """Id of the group of the trajectory."""
        return f"{self.work.name}/{self.task.group}" if self.work.groups_by_name else self.task.group

    def run(self) -> Outcome:
        """Runs the agent in this process, and returns when the trajectory is in the output.

        For executors: it may be called in any thread without an event loop, several times at once. The first call in a
        process opens the output. ``job.work.finish()`` closes it, and so does the end of the process.
        """
        from rollout_trace.collection.serving import run_job

        return run_job(self)

    async def arun(self) -> Outcome:
        """As ``run``, in the running event loop."""
        from rollout_trace.collection.serving import arun_job

        return await arun_job(self)


@document_fields
@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of one attempt at one rollout."""

    key: Key
    """The rollout that was attempted."""
    attempt: int
    """From 1."""
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
    """Whether another attempt follows: it failed in a way that is retried, and attempts are left."""
    is_left_behind: bool = False
    """Whether the agent could not be stopped, and runs on in its thread."""
    seconds: float = 0.0
    """From the begin of the attempt to its end, without the reward."""
    facts: Facts | None = None
    """What its trajectories hold, once they are written; None before."""
    trajectories: Sequence[Trajectory] = ()
    """Its trajectories, where another process made them and they are asked for."""


@runtime_checkable
class Executor(Protocol):
    """Makes rollouts somewhere: in this process, in others, on other machines."""

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout: has ``job.run()`` or ``job.arun()`` called somewhere, and returns what it returns.

        Called for as many jobs at the same time as ``concurrency`` allows. A cancelled call stops the rollout, if that
        is possible.

        Raises:
            WorkerLost: the process that was making it has ended. The rollout is made again.
        """

    async def close(self) -> None:
        """Ends the workers, when no rollout is left. In each that made one, what it wrote is complete first.

        A worker that ends by itself (its interpreter exits) completes what it wrote; one that is killed leaves its
        journal.
        """


class WorkerLost(RuntimeError):
    """The process that made a rollout has ended. Raised by an executor: the rollout is made again."""


class RolloutTimeout(TimeoutError):
    """A rollout took longer than ``timeout=``; what was recorded of it is kept."""
