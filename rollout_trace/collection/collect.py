"""``rt.collect`` and ``rt.acollect``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from rollout_trace import _event_loop

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from rollout_trace.collection.executor import Executor
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

    class CollectOptions(TypedDict, total=False):
        """The arguments of ``acollect``; see ``collect``."""

        samples: int
        concurrency: int
        timeout: float | None
        retries: int
        reward: Reward | None
        seed: int | None
        resume: bool
        progress: bool | Callable[[Progress], object] | None
        executor: Literal["local", "process", "ray"] | Executor | None
        name: str | None
        retry_failed: bool
        retry_on: Kind | Iterable[Kind] | None
        retry_wait: float
        retry_wait_max: float
        reward_timeout: float | None
        max_consecutive_failures: int | None
        instrument: bool
        engine: EngineName | Engine | Mapping[str, Any] | None
        recording: Mapping[str, Any] | None
        logs: bool | str | os.PathLike[str]
        limit: int | None
        task_ids: Iterable[str] | None


def collect(
    agent: Agent,
    tasks: Iterable[Any] | str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    samples: int = 1,
    concurrency: int = 8,
    timeout: float | None = None,
    retries: int = 0,
    reward: Reward | None = None,
    seed: int | None = None,
    resume: bool = True,
    progress: bool | Callable[[Progress], object] | None = None,
    executor: Literal["local", "process", "ray"] | Executor | None = None,
    name: str | None = None,
    retry_failed: bool = False,
    retry_on: Kind | Iterable[Kind] | None = None,
    retry_wait: float = 1.0,
    retry_wait_max: float = 60.0,
    reward_timeout: float | None = None,
    max_consecutive_failures: int | None = None,
    instrument: bool = True,
    engine: EngineName | Engine | Mapping[str, Any] | None = None,
    recording: Mapping[str, Any] | None = None,
    logs: bool | str | os.PathLike[str] = False,
    limit: int | None = None,
    task_ids: Iterable[str] | None = None,
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
            A sync agent cannot be stopped: it is left behind in its thread, and counted.
        retries: further attempts, in this call, at a rollout whose agent raised; not at one that timed out, unless
            ``retry_on`` has ``TimeoutError``. The last attempt counts; the steps of the others are ``superseded``.
        reward: a function ``reward(task, result, trajectory)``, sync or async, or its name. It returns a number, a dict
            with any of ``reward``, ``rewards``, ``metrics`` and ``metadata``, a dict of named numbers, or None. Of
            several functions, in a list or a mapping by name, each alone or as ``(function, weight)``, the weighted sum
            is the reward. Where one fails the reward is None, also if the agent had set one, and the failure is in
            ``metadata["reward_errors"]``. It is called for rollouts that completed.
        seed: each rollout gets ``seed + index``, the same for all tasks; it is recorded, and is the agent's to use.
        resume: False: refuses an output that holds anything.
        progress: None: a bar on a terminal (with the package rich), else lines now and then; False: nothing, no summary
            either; a function is called with each ``rt.Progress``. Beside the output, ``status.json`` has it in each
            case.
        executor: where rollouts are made: ``"local"``, ``"process"`` (``rt.ProcessExecutor``), ``"ray"``
            (``rt.RayExecutor``), or any object with the two methods of ``rt.Executor``.
        name: of the trajectories; the agent's own by default. Rollouts of different names are different rollouts: give
            one for each model or variant that goes to the same output. The ids of groups begin with it then.
        retry_failed: makes those again that failed or timed out before.
        retry_on: exception classes, or their names, that are tried again; all by default.
        retry_wait: seconds before a second attempt, doubled for each further one; up to half of it is left out at
            random.
        retry_wait_max: no wait is longer than so many seconds.
        reward_timeout: seconds for each reward function.
        max_consecutive_failures: ends the run when so many rollouts in a row have failed; by default 50, or twice the
            concurrency if that is more; 0: never.
        instrument: records every client of the process, as ``rt.instrument()``; False: those that are wrapped.
        engine: of these clients; as for ``rt.instrument``.
        recording: further arguments for ``rt.recording``, such as ``{"redact": ...}``.
        logs: writes a log file for each rollout, beside the output or in the folder that is given.
        limit: takes only so many tasks, the first.
        task_ids: takes the tasks with these ids.

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
    from rollout_trace.collection.prepare import prepare

    # An agent that was left behind may not let itself be cancelled.
    return _event_loop.run(prepare(given).run, "rollout_trace collect", waits=False)


async def acollect(
    agent: Agent,
    tasks: Iterable[Any] | str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    **options: Unpack[CollectOptions],
) -> CollectSummary:
    """As ``collect``, with the same arguments, in the running event loop, which it does not block.

    Cancelling it cuts the rollouts that run, and writes them as ``aborted``.
    """
    from rollout_trace.collection.prepare import prepare

    given = inspect.signature(collect).bind(agent, tasks, output=output, **options)
    given.apply_defaults()
    return await prepare(given.arguments).run()
