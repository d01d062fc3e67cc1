"""``rt.collect`` and ``rt.acollect``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

from rollout_trace import _event_loop
from rollout_trace._wrong_use import explained

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from rollout_trace.collection.job import Executor
    from rollout_trace.collection.logs import Rollout
    from rollout_trace.collection.progress import Progress
    from rollout_trace.collection.summary import CollectSummary
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

    Agent: TypeAlias = Callable[[Any], Any] | Callable[[Any, Rollout], Any] | str | type | object
    RewardFunction: TypeAlias = Callable[..., Awaitable[Any] | Any] | str
    Weighted: TypeAlias = RewardFunction | tuple[RewardFunction, float]
    Reward: TypeAlias = RewardFunction | Iterable[Weighted] | Mapping[str, Weighted]
    Kind: TypeAlias = type[BaseException] | str

    class Retries(TypedDict, total=False):
        """``retries=`` of ``collect``, where it is more than their number."""

        times: int
        on: Kind | Iterable[Kind] | None
        wait: float
        wait_max: float
        failed: bool

    class Timeouts(TypedDict, total=False):
        """``timeout=`` of ``collect``, where it is more than that of rollouts."""

        rollout: float | None
        reward: float | None

    class Limits(TypedDict, total=False):
        """``limits=`` of ``collect``."""

        tasks: int | None
        task_ids: Iterable[str] | None
        failures: int | None

    class EarlierNames(TypedDict, total=False):
        """Names that arguments of ``collect`` had before they were grouped. They still work."""

        retry_on: Kind | Iterable[Kind] | None
        retry_wait: float
        retry_wait_max: float
        retry_failed: bool
        reward_timeout: float | None
        limit: int | None
        task_ids: Iterable[str] | None
        max_consecutive_failures: int | None


P = ParamSpec("P")
T = TypeVar("T")


@explained
def collect(
    agent: Agent,
    tasks: Iterable[Any] | str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    samples: int = 1,
    concurrency: int = 8,
    timeout: float | Timeouts | None = None,
    retries: int | Retries = 0,
    limits: Limits | None = None,
    reward: Reward | None = None,
    seed: int | None = None,
    resume: bool = True,
    progress: bool | Callable[[Progress], object] | None = None,
    executor: Literal["local", "process", "ray"] | Mapping[str, Any] | Executor | None = None,
    name: str | None = None,
    instrument: bool = True,
    engine: EngineName | Engine | Mapping[str, Any] | None = None,
    recording: Mapping[str, Any] | None = None,
    logs: bool | str | os.PathLike[str] = False,
    **earlier: Unpack[EarlierNames],
) -> CollectSummary:
    """Runs an agent over tasks and records each run in a trajectory of its own.

    Rollouts that the output already holds are not repeated: after an interruption, or to add tasks or samples, call it
    again. A failed rollout does not stop the others; it is recorded as failed.

    Ctrl-C shuts down cleanly: running rollouts are cancelled and written as ``aborted``, and made again next time. A
    second Ctrl-C does not wait for pending writes. Inside a running event loop (a notebook) it blocks that loop;
    ``await rt.acollect(...)`` does not.

    Args:
        agent: a function ``agent(task)`` or ``agent(task, rollout)``, sync or async; a class with such a method
            ``rollout``, or an instance of one; or the name of any of these, ``"package.module:name"`` or
            ``"file.py:name"``. A second parameter gets an ``rt.Rollout`` if it has no default or is called ``rollout``.
            Async agents run in one event loop, others each in a thread.
        tasks: any iterable, a mapping from ids to tasks, a table (datasets, pandas, polars), or the path of a
            ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file or of a dataset on disk. A task is whatever the agent
            takes. Its id is its ``id`` or ``task_id``; if no task has one, ids are derived from the tasks' contents.
        output: a file (``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst``), a folder (``runs/``), or an address (``s3://...``).
        samples: rollouts of each task; they form a group.
        concurrency: number of rollouts running at the same time.
        timeout: seconds allowed for one attempt at a rollout. After that it has the status ``timeout`` and keeps what
            was recorded so far. A sync agent cannot be stopped: its thread keeps running, and it is counted. A mapping
            gives the seconds as ``rollout``, and those for each reward function as ``reward``.
        retries: further attempts, in this call, at a rollout whose agent raised; not at one that timed out, unless
            ``on`` has ``TimeoutError``. The last attempt counts; the steps of the others are ``superseded``. A mapping
            gives the number as ``times``, and any of: ``on``, the exception classes, or their names, to retry (all);
            ``wait``, seconds before the second attempt, doubled for each further one and shortened by a random part of
            up to half (1); ``wait_max``, the longest wait (60); ``failed``, whether to repeat rollouts that failed or
            timed out in earlier calls (False).
        limits: a mapping with any of: ``tasks``, take only the first so many tasks; ``task_ids``, take only the tasks
            with these ids; ``failures``, end the run after so many failed rollouts in a row (50, or twice the
            concurrency if that is more; 0: never).
        reward: a function ``reward(task, result, trajectory)``, sync or async, or its name. It returns a number, a dict
            with any of ``reward``, ``rewards``, ``metrics`` and ``metadata``, a dict of named numbers, or None. Several
            functions go in a list or a mapping by name, each alone or as ``(function, weight)``; the reward is their
            weighted sum. If one fails, the reward is None even if the agent had set one, and the failure is in
            ``metadata["reward_errors"]``. It is called for rollouts that completed.
        seed: each rollout gets ``seed + index``, the same for all tasks. It is recorded; using it is up to the agent.
        resume: False refuses an output that holds anything.
        progress: None: a bar on a terminal (with the package rich), otherwise occasional lines; False: nothing, and no
            summary; a function is called with each ``rt.collection.Progress``. In each case ``status.json``, beside the
            output, has the progress.
        executor: where rollouts are made: ``"local"``, ``"process"`` (``rt.ProcessExecutor``), ``"ray"``
            (``rt.RayExecutor``), a mapping of one of these as ``kind`` and the arguments of its class, or any object
            with the two methods of ``rt.collection.Executor``.
        name: name of the trajectories; the agent's own by default. Rollouts with different names are different
            rollouts: give each model or variant that shares an output its own name. Group ids then begin with it.
        instrument: record every client of the process, as ``rt.instrument()`` does; False: only wrapped ones.
        engine: the engine behind these clients, as for ``rt.instrument``.
        recording: further arguments for ``rt.recording``, such as ``{"redact": ...}``.
        logs: write a log file for each rollout, beside the output or in the given folder.
        earlier: the parts of ``retries``, ``timeout`` and ``limits`` under their former argument names: ``retry_on``,
            ``retry_wait``, ``retry_wait_max``, ``retry_failed``, ``reward_timeout``, ``limit``, ``task_ids``,
            ``max_consecutive_failures``.

    Returns:
        A summary of the output for these tasks, including earlier runs. It is printed where progress is shown.

    Raises:
        TypeError, ValueError, ImportError, OSError: an argument is wrong, something cannot be imported or the output
            cannot be written; before any rollout is made.
        FileExistsError: ``resume=False``, and the output holds something.
        WriteError: trajectories could not be written.
        KeyboardInterrupt: Ctrl-C; what ran has been written.
    """
    # The first statement: these are the arguments, and nothing else.
    given = dict(locals())
    given.update(given.pop("earlier"))
    from rollout_trace.collection.prepare import prepare

    # An agent that was left behind may not let itself be cancelled.
    return _event_loop.run(prepare(given).run, "rollout_trace collect", waits=False)


def _with_arguments_of(
    function: Callable[P, T],
) -> Callable[[Callable[..., Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Gives a coroutine function the arguments of another function, for type checkers and for ``help``."""

    def change(own: Any) -> Any:
        own.__signature__ = inspect.signature(function)
        return own

    return change


@_with_arguments_of(collect)
async def acollect(agent: Any, tasks: Any, **options: Any) -> CollectSummary:
    """Does what ``collect`` does, with the same arguments, in the running event loop, without blocking it.

    Cancelling it cancels the running rollouts and writes them as ``aborted``.
    """
    from rollout_trace.collection.prepare import prepare

    return await prepare({"agent": agent, "tasks": tasks, **options}).run()
