"""Runs a coroutine from code that is not in an event loop, or that must not use the one it is in."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

POLL = 0.1
"""Seconds between two looks at whether a blocked task was cancelled, or a signal has come."""


PATIENCE = 1.0
"""Seconds that tasks have to end when they are cancelled, after the coroutine that ``run`` was given has ended."""


def run(main: Callable[[], Coroutine[Any, Any, T]], name: str, *, waits: bool = True) -> T:
    """Runs a coroutine to its end: here, or on a thread called ``name`` inside a running event loop (a notebook).

    ``waits``: tasks that run still are cancelled and waited for, as by ``asyncio.run``; without it, for a second only.
    """
    run_loop = asyncio.run if waits else _run_briefly
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return _run_in_thread(main, name, run_loop)
    # Not in the `except`: every exception inside would have that error for its context.
    return run_loop(main())


def _run_briefly(main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, but does not wait forever for a task that ignores its cancellation.

    Calls that follow each other share a loop: the connections that a user's client keeps open belong to it.
    """
    loop, is_kept = _kept.take()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            left = loop.run_until_complete(_cancel_others())
        finally:
            asyncio.set_event_loop(None)
        if is_kept:
            _kept.give_back(is_usable=not left)
        else:
            _close(loop)


class _KeptLoop:
    """The loop that calls share. One at a time has it; another one meanwhile gets a loop of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_use = threading.Lock()

    def take(self) -> tuple[asyncio.AbstractEventLoop, bool]:
        """Returns a loop, and whether it is the shared one, which must be returned."""
        if not self._in_use.acquire(blocking=False):
            return asyncio.new_event_loop(), False
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            atexit.register(self.close)
        return self._loop, True

    def give_back(self, *, is_usable: bool) -> None:
        """Ends the use of the shared loop; one with a task that does not end is not used again."""
        if not is_usable:
            self.close()
        self._in_use.release()

    def close(self) -> None:
        """Closes the loop. The next call makes another one."""
        loop, self._loop = self._loop, None
        atexit.unregister(self.close)
        if loop is not None and not loop.is_running():
            _close(loop)

    def forget(self) -> None:
        """Makes a forked process begin with none: the original process uses this one."""
        if self._loop is not None:
            # Kept, not freed: freeing it would close it, with a warning.
            self._inherited = self._loop
            atexit.unregister(self.close)
        self._loop = None
        self._in_use = threading.Lock()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


_kept = _KeptLoop()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_kept.forget)


async def _cancel_others() -> bool:
    """Cancels all other tasks; True where one does not end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
        # Otherwise asyncio logs each that is left behind, when it is freed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    return bool(tasks) and bool((await asyncio.wait(tasks, timeout=PATIENCE))[1])


def _run_in_thread(
    main: Callable[[], Coroutine[Any, Any, T]], name: str, run_loop: Callable[[Coroutine[Any, Any, T]], T]
) -> T:
    """Runs a coroutine in an event loop of another thread, and waits for it."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    outcome: list[T | BaseException] = []

    async def run() -> T:
        task = asyncio.ensure_future(main())
        started.append((asyncio.get_running_loop(), task))
        return await task

    def work() -> None:
        try:
            outcome.append(run_loop(run()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name=name)
    thread.start()
    try:
        _join(thread)
    except BaseException:  # Ctrl-C.
        for loop, task in started:
            with suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    return found


def _join(thread: threading.Thread) -> None:
    """Waits for a thread.

    Raises:
        CancelledError: the running task was cancelled meanwhile. So `asyncio.run` treats the first Ctrl-C, and the task
            would see it only at its next `await`.
    """
    task = asyncio.current_task()
    cancelling: Callable[[], int] = getattr(task, "cancelling", lambda: 0)  # From Python 3.11 on.
    before = cancelling()
    while thread.is_alive():
        thread.join(POLL)
        if cancelling() > before:
            raise asyncio.CancelledError
