"""Runs a coroutine from code that is not in an event loop, or that must not use the one it is in."""

from __future__ import annotations

import asyncio
import contextvars
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
    """As ``asyncio.run``, which waits for ever for a task that does not let itself be cancelled."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            loop.run_until_complete(_cancel_others())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
        # Otherwise asyncio logs each that is left behind, when it is freed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    if tasks:
        await asyncio.wait(tasks, timeout=PATIENCE)


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
