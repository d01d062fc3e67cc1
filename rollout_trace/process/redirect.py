"""Requests of the HTTP libraries of this process go to another address than their clients have.

The seams are below those of the recorder: steps, responses, event hooks and exceptions show the caller's own address.
"""

from __future__ import annotations

from rollout_trace.process import routes
from rollout_trace.process.patches import Handle, Part
from rollout_trace.process.redirect_aiohttp import redirect_aiohttp
from rollout_trace.process.redirect_httpx import redirect_httpx
from rollout_trace.process.redirect_lm15 import redirect_lm15
from rollout_trace.process.redirect_requests import redirect_requests
from rollout_trace.process.routes import CALL_HEADER, Redirected, Route

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


class Redirection(Handle):
    """What ``redirect`` gives: a context manager, and ``undo``."""

    def __init__(self, route: Route) -> None:
        self._route = route
        super().__init__([_LIBRARIES])
        # Once all methods are replaced: a request goes through all of them, or through none.
        routes.add(route)

    def _end(self) -> None:
        routes.remove(self._route)

    def undo(self) -> None:
        """Asks the route no more, and puts all methods back unless another redirection is in force.

        Answers that are being read are read to their end. A second call does nothing.
        """
        super().undo()


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
