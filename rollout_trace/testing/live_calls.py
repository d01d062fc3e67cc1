"""Live calls while a test is replayed, and those of threads that it left behind: they are refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from rollout_trace.clients.loopback.messages import RequestRecord, Response, refusal
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.process.patches import Patches
from rollout_trace.process.redirect import Redirected, Redirection, redirect

from .routing import ModelTraffic, is_provider


class LiveCalls:
    """Refuses to look up the hosts of model providers, until it is undone.

    boto3, gRPC and what else opens connections of its own would call the real model, and nobody would see it.
    """

    def __init__(self) -> None:
        self._refused: list[str] = []
        self._lock = threading.Lock()
        self._patches = Patches()
        self._patches.replace(socket, "getaddrinfo", self._guarded)

    def undo(self) -> None:
        """Puts the look-up back."""
        self._patches.undo()

    @property
    def refused(self) -> list[str]:
        """The hosts, in the order they were asked for."""
        with self._lock:
            return list(self._refused)

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
            if self._patches.is_active and isinstance(name, str) and is_provider(name.lower()):
                with self._lock:
                    self._refused.append(name)
                raise socket.gaierror(
                    socket.EAI_FAIL, f"a live call to {name} was refused: this test replays a cassette"
                )
            return original(host, *args, **kwargs)

        return getaddrinfo


class LateCalls(LoopbackServer):
    """Answers the calls of threads that a test left with status 404, which no SDK sends again."""

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
        """Whether one of the threads is still running."""
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
    """Rejects from now on the model calls of threads started since ``before``.

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
