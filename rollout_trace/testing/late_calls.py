"""Calls of threads that a test left behind: refused, as they would reach the real models."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from rollout_trace.process.redirect import Redirected, Redirection, redirect

from ._messages import RequestRecord, Response, refusal
from ._server import LoopbackServer
from .routing import ModelTraffic


class LateCalls(LoopbackServer):
    """Answers with status 404, which no SDK sends again.

    Args:
        test: the name of the test that has ended.
        threads: those that it began, and that have not ended.
        addresses: of model servers that it called.
    """

    def __init__(self, test: str, threads: Iterable[threading.Thread], addresses: Iterable[str]) -> None:
        super().__init__()
        self._test = test
        self._threads: WeakKeyDictionary[threading.Thread, bool] = WeakKeyDictionary()
        self._threads.update((one, True) for one in threads)
        self.start()
        self._traffic = ModelTraffic(self.url, addresses)
        self._redirection: Redirection = redirect(self._route)

    @property
    def is_needed(self) -> bool:
        """Whether one of the threads has not ended."""
        return any(one.is_alive() for one in list(self._threads))

    def stop(self) -> None:
        """Lets the threads call what they like."""
        self._redirection.undo()
        self.close()

    def answer(self, record: RequestRecord) -> Response:
        """Refuse one request (called by the server)."""
        message = (
            f"a call of a thread that {self._test} began was refused, as that test has ended: join the thread in it."
        )
        return refusal("test_has_ended", message)

    def _route(self, method: str, url: str, body: bytes | None) -> Redirected | None:
        is_late = threading.current_thread() in self._threads
        return self._traffic.route(method, url, body) if is_late else None


_refusing: list[LateCalls] = []


def refuse(test: str, before: frozenset[threading.Thread], addresses: Iterable[str]) -> None:
    """From now on, refuses the model calls of threads that were begun since ``before``.

    Threads of pools are left out: what they do next may be anybody's.
    """
    forget()
    left = [one for one in threading.enumerate() if one not in before and not _is_of_a_pool(one)]
    if left:
        _refusing.append(LateCalls(test, left, addresses))


def forget(*, all_of_them: bool = False) -> None:
    """Ends the refusals whose threads have ended."""
    for one in [one for one in _refusing if all_of_them or not one.is_needed]:
        _refusing.remove(one)
        one.stop()


def _is_of_a_pool(thread: threading.Thread) -> bool:
    names = ("ThreadPoolExecutor", "asyncio_", "AnyIO worker", "rollout_trace ")
    return thread.name.startswith(names) or "WorkerThread" in type(thread).__name__
