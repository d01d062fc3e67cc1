"""What the standard library lacks: a cached property without a lock, children without SIGINT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


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
