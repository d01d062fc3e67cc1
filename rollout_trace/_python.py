"""What the standard library lacks: a cached property without a lock, the caller's place, children without SIGINT."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class cached_property(Generic[T]):
    """A property that is computed once and kept in the object's ``__dict__``.

    No lock is taken. ``functools.cached_property`` takes one before Python 3.12, and a process forked while another
    thread holds it would wait forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, item: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, item: object, owner: type) -> T: ...
    def __get__(self, item: Any, owner: type) -> cached_property[T] | T:
        if item is None:
            return self
        value: T = self._compute(item)
        vars(item)[self._name] = value
        return value


def place_of_caller() -> str | None:
    """``file:line`` of the innermost caller in user code, else in a library; None where there is no caller outside.

    The standard library and installed packages count as libraries.
    """
    frame, in_library = sys._getframe(1), None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "rollout_trace":
            file = frame.f_code.co_filename
            place = f"{file}:{frame.f_lineno}"
            is_library = file.startswith((_STANDARD_LIBRARY, "<frozen")) or any(part in file for part in _INSTALLED)
            # By name as well as by path: an integration under development is installed from its own folder.
            if not package.startswith("rollout_trace_") and not is_library:
                return place
            in_library = in_library or place
        frame = frame.f_back  # type: ignore[assignment]
    return in_library


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that are started inside have SIGINT blocked: Ctrl-C, which reaches all of a terminal, is not theirs.

    Nothing is changed where signals cannot be blocked.
    """
    import signal

    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
