"""Calls functions of the user's, sync ones in threads, and waits for them a limited time; and what Ctrl-C does then."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

GRACE = 5.0
"""Seconds that a cancelled coroutine has to end."""
Returned: TypeAlias = "tuple[Any, BaseException | None]"
"""What a function returned, and what it raised."""


class Ended(NamedTuple):
    """How a call ended."""

    result: Any = None
    error: BaseException | None = None
    is_late: bool = False
    is_left_behind: bool = False
    """Whether it could not be stopped, and runs on."""


class UserCall:
    """One call of a function of the user's, in a copy of this context."""

    def __init__(self, call: Callable[[], Any], *, is_async: bool) -> None:
        self._thread: threading.Thread | None = None
        self._task = asyncio.ensure_future(_awaited(call) if is_async else self._threaded(call))

    async def wait(self, timeout: float | None) -> Ended:
        """Waits for the call to end. After ``timeout`` seconds, or when this task is cancelled, tries to stop it."""
        try:
            # Not `wait_for`: its exception could be the function's own.
            await asyncio.wait({self._task}, timeout=timeout)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self._task.done():
            return Ended(*self._task.result())
        return Ended(is_late=True, is_left_behind=await self.stop())

    async def stop(self) -> bool:
        """Cancels it; True where it does not end, such as a function that runs in a thread."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=GRACE)
        return not self._task.done() or (self._thread is not None and self._thread.is_alive())

    async def _threaded(self, call: Callable[[], Any]) -> Returned:
        try:
            self._thread, ended = in_thread(call, "rollout")
        except RuntimeError as refused:  # No more threads: those of agents that were left behind, perhaps.
            return None, refused
        result, error = await ended
        return await _awaited(lambda: result) if inspect.isawaitable(result) else (result, error)


def in_thread(call: Callable[[], Any], name: str) -> tuple[threading.Thread, asyncio.Future[Returned]]:
    """Calls a function in a thread that the interpreter does not wait for. Raises RuntimeError where none starts."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Returned] = loop.create_future()

    def run() -> None:
        try:
            outcome: Returned = call(), None
        except BaseException as error:  # `sys.exit()` in an agent ends that agent alone.
            outcome = None, error
        try:
            loop.call_soon_threadsafe(_set, ended, outcome)
        except RuntimeError:  # Nobody waits any more, and the loop has been closed meanwhile.
            pass

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True)
    thread.start()
    return thread, ended


def _set(ended: asyncio.Future[Returned], outcome: Returned) -> None:
    if not ended.done():
        ended.set_result(outcome)


async def _awaited(call: Callable[[], Any]) -> Returned:
    """Returns the exception instead of raising it: the loop would end with a SystemExit of a task."""
    try:
        result = call()
        return (await result if inspect.isawaitable(result) else result), None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and is_python_s():
            raise
        return None, error


@contextmanager
def interruptible(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Calls ``first`` at the first Ctrl-C in this block and ``second`` at each later one, in the event loop.

    Only in the main thread, and only where the program does not handle Ctrl-C itself.
    """
    loop = asyncio.get_running_loop()
    calls = 0

    def interrupted() -> None:
        nonlocal calls
        calls += 1
        (first if calls == 1 else second)()

    before = signal.getsignal(signal.SIGINT)
    if not is_python_s():
        yield
        return
    try:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows: Ctrl-C cancels the task that asyncio runs.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def is_python_s() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt here, in whatever runs: in the main thread, by Python's own handler."""
    if threading.current_thread() is not threading.main_thread():
        return False
    # From Python 3.11 on `asyncio.run` sets one of its own in the place of Python's.
    handler = signal.getsignal(signal.SIGINT)
    module = getattr(getattr(handler, "func", handler), "__module__", None)
    return handler is signal.default_int_handler or module == "asyncio.runners"
