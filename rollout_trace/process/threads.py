"""Threads take over the trajectory of where they were started, tasks of pools that of where they were submitted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from rollout_trace.guard import hidden_frame, hide_frame
from rollout_trace.process.patches import Patches, wrapping
from rollout_trace.record import context as contexts
from rollout_trace.record import scope
from rollout_trace.record.context import Carried

_OWN_THREADS = "rollout_trace "
"""Names of the recorder's own threads begin with this; they serve all trajectories."""

_POOL_THREADS = frozenset({("anyio._backends._asyncio", "WorkerThread")})
"""Threads of pools by module and name of their class: they bring each task's context with the task."""


class Task:
    """Runs a function with what was current where it was made. Many threads may call it at once, any number of times.

    Arguments, result and exception are the function's own.
    """

    __slots__ = ("context", "function")

    def __init__(self, function: Callable[..., Any], context: Carried) -> None:
        self.function = function
        self.context = context

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        before = contexts.switch(self.context)
        try:
            return self.function(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            # A pool's thread waits for its next task then: it must not hold the trajectory of this one.
            contexts.switch(before)

    def __repr__(self) -> str:
        return repr(self.function)


class Run:
    """Runs once in place of a thread's ``run``: removes itself, then calls that.

    ``run`` is found by the thread as an attribute of itself, so a subclass's own ``run`` is carried too.
    """

    __slots__ = ("context", "run", "thread")

    def __init__(self, thread: threading.Thread, context: Carried) -> None:
        self.thread = thread
        self.context = context
        self.run = thread.run

    def __call__(self) -> None:
        # First of all: the thread holds this object, which holds the thread.
        self.remove()
        run = self.run
        del self.run
        before = contexts.present()
        # The new context of free-threaded Python 3.14, or one given to the thread, has them already.
        if contexts.worth_carrying() is None:
            contexts.switch(self.context)
        del self.context
        try:
            run()
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            # The context may be one that was given to the thread, and go on to exist.
            contexts.switch(before)

    def remove(self) -> None:
        """Gives the thread back the ``run`` that it had."""
        thread = self.thread
        if thread.__dict__.get("run") is self:
            del thread.__dict__["run"]
            # An attribute of its own, and not the method of its class.
            if thread.run != self.run:
                thread.__dict__["run"] = self.run


def with_nothing_current(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls what starts the threads of a pool: they outlive the trajectory, and run the tasks of others."""
    before = contexts.switch(contexts.NOTHING)
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        hide_frame(error)
        raise
    finally:
        contexts.switch(before)


def begin(patches: Patches) -> None:
    """From now on, the warning of a call outside of every trajectory has the remedies for an instrumented process."""
    scope.threads_carry = True
    patches.on_undo(lambda: setattr(scope, "threads_carry", False))


def _start(original: Callable[..., None], thread: threading.Thread) -> None:
    context = contexts.worth_carrying()
    run = None
    try:
        if context is not None and not _is_of_a_pool(thread):
            # On the instance: a patch of `Thread.run` would not reach subclasses that have their own.
            thread.__dict__["run"] = run = Run(thread, context)
        return original(thread)
    except BaseException as error:
        if run is not None:
            # It has been started before, or no thread could be made.
            run.remove()
        hide_frame(error)
        raise


def _is_of_a_pool(thread: threading.Thread) -> bool:
    kind = type(thread)
    if kind is not threading.Thread and (kind.__module__, kind.__name__) in _POOL_THREADS:
        return True
    # Not `name`, which raises for a thread whose `__init__` was not called; `start` is to raise what it would.
    return str(thread.__dict__.get("_name")).startswith(_OWN_THREADS)


def _submit(original: Callable[..., Any], pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    context = contexts.worth_carrying()
    try:
        if context is None:
            return original(pool, fn, *args, **kwargs)
        # Interpreters of their own (Python 3.14) get the function pickled, and are not instrumented.
        is_pickled = any(one.__module__ == "concurrent.futures.interpreter" for one in type(pool).__mro__)
        return with_nothing_current(original, pool, fn if is_pickled else Task(fn, context), *args, **kwargs)
    except BaseException as error:
        hide_frame(error)
        raise


def _add_done_callback(original: Callable[..., None], future: Any, fn: Callable[..., Any]) -> None:
    # Callbacks submit further tasks (joblib does). That of asyncio only wakes its loop.
    context = contexts.worth_carrying()
    if context is not None and getattr(fn, "__module__", None) != "asyncio.futures":
        fn = Task(fn, context)
    try:
        return original(future, fn)
    except BaseException as error:
        hide_frame(error)
        raise


POOL_METHODS: Mapping[str, tuple[int, ...]] = {
    "apply_async": (3, 4),
    "_map_async": (4, 5),
    "imap": (),
    "imap_unordered": (),
}
"""Methods of ``multiprocessing`` pools that all others go through. Their first argument is the function of the task;
the positions are those of the callbacks of its result and of its exception."""


def _pool_method(
    callbacks: tuple[int, ...], original: Callable[..., Any], pool: Any, /, *args: Any, **kwargs: Any
) -> Any:
    if contexts.worth_carrying() is not None:
        # The callbacks too, which run in a thread of the pool: joblib submits its next tasks there.
        args, kwargs = with_callables(args, kwargs, callbacks, carried_callback, carried_callback)
    with hidden_frame:
        return original(pool, *args, **kwargs)


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
    context = contexts.worth_carrying()
    return function if context is None else Task(function, context)


MODULES: Mapping[str, Callable[[ModuleType, Patches], None]] = {
    "threading": wrapping(("Thread", "start", _start)),
    "concurrent.futures._base": wrapping(("Future", "add_done_callback", _add_done_callback)),
    "concurrent.futures.thread": wrapping(("ThreadPoolExecutor", "submit", _submit)),
    # Of the subclass: a pool of processes pickles its functions.
    "multiprocessing.pool": wrapping(
        ("ThreadPool", "__init__", with_nothing_current),
        *(("ThreadPool", name, partial(_pool_method, callbacks)) for name, callbacks in POOL_METHODS.items()),
    ),
}
"""The modules to wait for, and what replaces their methods."""
