"""Requests of the HTTP libraries of this process go to another address than their clients have.

The seams are below those of the recorder: steps, responses, event hooks and exceptions show the caller's own address.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from rollout_trace.process import routes
from rollout_trace.process.parts import Part
from rollout_trace.process.redirect_aiohttp import redirect_aiohttp
from rollout_trace.process.redirect_httpx import redirect_httpx
from rollout_trace.process.redirect_lm15 import redirect_lm15
from rollout_trace.process.redirect_requests import redirect_requests
from rollout_trace.process.routes import CALL_HEADER, Redirected, Route

if TYPE_CHECKING:
    from typing_extensions import Self

_lock = threading.RLock()


def _after_fork() -> None:
    """Renews the lock in a forked process: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_LIBRARIES = Part(
    {
        "httpx": redirect_httpx,
        "httpx2": redirect_httpx,
        "aiohttp": redirect_aiohttp,
        "requests": redirect_requests,
        "dspy._vendor.lm15.transports": redirect_lm15,
        "lm15.transports": redirect_lm15,
    }
)


class Redirection:
    """What ``redirect`` gives: a context manager, and ``undo``."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._is_undone = False
        with _lock:
            _LIBRARIES.take()
            routes.add(route)

    @property
    def is_active(self) -> bool:
        """True until it is undone."""
        return not self._is_undone

    def undo(self) -> None:
        """Asks the route no more, and puts all methods back unless another redirection is in force.

        Answers that are being read are read to their end. A second call does nothing.
        """
        with _lock:
            if self._is_undone:
                return
            self._is_undone = True
            routes.remove(self._route)
            _LIBRARIES.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def redirect(route: Route) -> Redirection:
    """Sends requests of httpx, httpx2, aiohttp, requests and lm15 to another address, until it is undone.

    Libraries may be imported, and clients made, before or after. Proxies are left out, and the header ``host`` stays
    the caller's. A request that is an attempt of a recorded call gets the call's id as the header
    ``x-rollout-trace-call``. Transports that a caller has written are left alone. May be called again inside: the
    latest route is asked first, and a request is redirected once.

    Args:
        route: from method, URL and body of a request (None: a stream) to where it is sent; None leaves it alone.

    Returns:
        A handle: ``handle.undo()``, or ``with redirect(route): ...``, puts everything back.
    """
    return Redirection(route)


__all__ = ["CALL_HEADER", "Redirected", "Redirection", "Route", "redirect"]
