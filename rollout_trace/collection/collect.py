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
        """Names that arguments of ``collect`` had before they were grouped; they go on to work."""

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

    What the output holds already is not made again: call it once more with the same arguments after an interruption,
    or with more tasks or samples. Failures do not stop the others, and are recorded as what they are.

    Ctrl-C ends it in order: running rollouts are cut and written as ``aborted``, and made again next time. A second
    Ctrl-C does not wait for what is being written. Inside a running event loop (a notebook) it blocks that loop;
    ``await rt.acollect(...)`` does not.

    Args:
        agent: a function ``agent(task)`` or ``agent(task, rollout)``, sync or async; a class with such a method
            ``rollout``, or an instance of one; or the name of any of these, ``"package.module:name"`` or
            ``"file.py:name"``. A second parameter gets an ``rt.Rollout`` if it has no default or is called ``rollout``.
            Async agents run in one event loop, others each in a thread.
        tasks: any iterable, a mapping from ids to tasks, a table (datasets, pandas, polars), or the path of a
            ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file or of a dataset on disk. A task is whatever the agent
            takes. Its id is its ``id`` or ``task_id``; where no task has one, ids are made from their contents.
        output: a file (``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst``), a folder (``runs/``), or an address (``s3://...``).
        samples: rollouts of each task; they form a group.
        concurrency: rollouts at the same time.
        timeout: seconds for an attempt at a rollout. Then it has the status ``timeout``, with what was recorded so far.
            A sync agent cannot be stopped: it is left behind in its thread, and counted. A mapping has them as
            ``rollout``, and as ``reward`` those for each reward function.
        retries: further attempts, in this call, at a rollout whose agent raised; not at one that timed out, unless
            ``on`` has ``TimeoutError``. The last attempt counts; the steps of the others are ``superseded``. A mapping
            has them as ``times``, and any of: ``on``, exception classes, or their names, that are tried again (all);
            ``wait``, seconds before a second attempt, doubled for each further one, of which up to half is left out at
            random (1); ``wait_max``, the longest wait (60); ``failed``, whether rollouts that failed or timed out in
            earlier calls are made again (False).
        limits: a mapping with any of: ``tasks``, takes only so many tasks, the first; ``task_ids``, takes the tasks
            with these ids; ``failures``, ends the run when so many rollouts in a row have failed (50, or twice the
            concurrency if that is more; 0: never).
        reward: a function ``reward(task, result, trajectory)``, sync or async, or its name. It returns a number, a dict
            with any of ``reward``, ``rewards``, ``metrics`` and ``metadata``, a dict of named numbers, or None. Of
            several functions, in a list or a mapping by name, each alone or as ``(function, weight)``, the weighted sum
            is the reward. Where one fails the reward is None, also if the agent had set one, and the failure is in
            ``metadata["reward_errors"]``. It is called for rollouts that completed.
        seed: each rollout gets ``seed + index``, the same for all tasks; it is recorded, and is the agent's to use.
        resume: False: refuses an output that holds anything.
        progress: None: a bar on a terminal (with the package rich), else lines now and then; False: nothing, no summary
            either; a function is called with each ``rt.collection.Progress``. Beside the output, ``status.json`` has
            it in each case.
        executor: where rollouts are made: ``"local"``, ``"process"`` (``rt.ProcessExecutor``), ``"ray"``
            (``rt.RayExecutor``), a mapping of one of these as ``kind`` and the arguments of its class, or any object
            with the two methods of ``rt.collection.Executor``.
        name: of the trajectories; the agent's own by default. Rollouts of different names are different rollouts: give
            one for each model or variant that goes to the same output. The ids of groups begin with it then.
        instrument: records every client of the process, as ``rt.instrument()``; False: those that are wrapped.
        engine: of these clients; as for ``rt.instrument``.
        recording: further arguments for ``rt.recording``, such as ``{"redact": ...}``.
        logs: writes a log file for each rollout, beside the output or in the folder that is given.
        earlier: what ``retries``, ``timeout`` and ``limits`` hold, one by one, by the names that they had as arguments:
            ``retry_on``, ``retry_wait``, ``retry_wait_max``, ``retry_failed``, ``reward_timeout``, ``limit``,
            ``task_ids``, ``max_consecutive_failures``.

    Returns:
        A summary of the whole output, as far as these tasks are concerned. It is printed where progress is shown.

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
    """As ``collect``, with the same arguments, in the running event loop, which it does not block.

    Cancelling it cuts the rollouts that run, and writes them as ``aborted``.
    """
    from rollout_trace.collection.prepare import prepare

    return await prepare({"agent": agent, "tasks": tasks, **options}).run()
