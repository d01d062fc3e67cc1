"""Threads take over the trajectory of where they were started, tasks of pools that of where they were submitted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import ModuleType
from typing import Any

from rollout_trace.guard import hide_frame
from rollout_trace.process.carried import Run, Task, with_nothing_current
from rollout_trace.process.patches import Patches
from rollout_trace.record import scope
from rollout_trace.record.context import worth_carrying

_OWN_THREADS = "rollout_trace "
"""Names of the recorder's own threads begin with this; they serve all trajectories."""

_POOL_THREADS = frozenset({("anyio._backends._asyncio", "WorkerThread")})
"""Threads of pools by module and name of their class: they bring each task's context with the task."""


def begin(patches: Patches) -> None:
    """From now on, the warning of a call outside of every trajectory has the remedies for an instrumented process."""
    scope.threads_carry = True
    patches.on_undo(_warn_as_before)


def _warn_as_before() -> None:
    scope.threads_carry = False


def _patch_threading(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Thread, "start", lambda original: _start(patches, original))


def _start(patches: Patches, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def start(self: threading.Thread) -> None:
        context = worth_carrying() if patches.is_active else None
        if context is None or _is_of_a_pool(self):
            return original(self)
        run = Run(self, context)
        # On the instance: a patch of `Thread.run` would not reach subclasses that have their own.
        self.__dict__["run"] = run
        try:
            return original(self)
        except BaseException as error:
            # It has been started before, or no thread could be made.
            run.remove()
            hide_frame(error)
            raise

    return start


def _is_of_a_pool(thread: threading.Thread) -> bool:
    kind = type(thread)
    if kind is not threading.Thread and (kind.__module__, kind.__name__) in _POOL_THREADS:
        return True
    # Not `name`, which raises for a thread whose `__init__` was not called; `start` is to raise what it would.
    return str(thread.__dict__.get("_name")).startswith(_OWN_THREADS)


def _patch_executor(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.ThreadPoolExecutor, "submit", lambda original: _submit(patches, original))


def _submit(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        context = worth_carrying() if patches.is_active else None
        if context is None:
            return original(self, fn, *args, **kwargs)
        try:
            # Interpreters of their own (Python 3.14) get the function pickled, and are not instrumented.
            is_pickled = any(one.__module__ == "concurrent.futures.interpreter" for one in type(self).__mro__)
            return with_nothing_current(original, self, fn if is_pickled else Task(fn, context), *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return submit


def _patch_futures(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Future, "add_done_callback", lambda original: _add_done_callback(patches, original))


def _add_done_callback(patches: Patches, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def add_done_callback(self: Any, fn: Callable[..., Any]) -> None:
        # Callbacks submit further tasks (joblib does). That of asyncio only wakes its loop.
        context = worth_carrying() if patches.is_active else None
        if context is None or getattr(fn, "__module__", None) == "asyncio.futures":
            return original(self, fn)
        return original(self, Task(fn, context))

    return add_done_callback


def _patch_pools(module: ModuleType, patches: Patches) -> None:
    # Of the subclass: a pool of processes pickles its functions.
    pool = module.ThreadPool
    patches.replace(pool, "__init__", lambda original: _pool_init(patches, original))
    for name, callbacks in POOL_METHODS.items():
        patches.replace(pool, name, partial(_pool_method, patches, callbacks))


POOL_METHODS: Mapping[str, tuple[int, ...]] = {
    "apply_async": (3, 4),
    "_map_async": (4, 5),
    "imap": (),
    "imap_unordered": (),
}
"""Methods of ``multiprocessing`` pools that all others go through. Their first argument is the function of the task;
the positions are those of the callbacks of its result and of its exception."""


def _pool_init(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not patches.is_active:
            return original(self, *args, **kwargs)
        try:
            return with_nothing_current(original, self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return __init__


def _pool_method(patches: Patches, callbacks: tuple[int, ...], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        context = worth_carrying() if patches.is_active else None
        if context is not None:
            # The callbacks too, which run in a thread of the pool: joblib submits its next tasks there.
            args, kwargs = with_callables(args, kwargs, callbacks, carried_callback, carried_callback)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return method


def with_callables(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    callbacks: tuple[int, ...],
    task: Callable[[Any], Any],
    callback: Callable[[Any], Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a method of a pool, its function replaced by ``task`` of it, its callbacks by ``callback``."""
    makers = {0: task, "func": task, "callback": callback, "error_callback": callback}
    makers.update(dict.fromkeys(callbacks, callback))

    def replaced(place: int | str, value: Any) -> Any:
        return makers[place](value) if place in makers and callable(value) else value

    return (
        tuple(replaced(at, value) for at, value in enumerate(args)),
        {name: replaced(name, value) for name, value in kwargs.items()},
    )


def carried_callback(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs with what is current now."""
    context = worth_carrying()
    return function if context is None else Task(function, context)


MODULES: Mapping[str, Callable[[ModuleType, Patches], None]] = {
    "threading": _patch_threading,
    "concurrent.futures._base": _patch_futures,
    "concurrent.futures.thread": _patch_executor,
    "multiprocessing.pool": _patch_pools,
}
"""The modules to wait for, and what replaces their methods."""
