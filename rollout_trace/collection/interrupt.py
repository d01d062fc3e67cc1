"""Ctrl-C while rollouts are made: once ends them in order, twice ends them now."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
