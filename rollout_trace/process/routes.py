"""Where requests of this process are sent instead: the routes of all redirections that are in force."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from rollout_trace import guard
from rollout_trace._threads import lock_for
from rollout_trace.clients import recorder

CALL_HEADER = "x-rollout-trace-call"
"""Header of a redirected request that is an attempt of a recorded call: ``PID/CALL``. A forked process has its own."""


class Redirected(NamedTuple):
    """Where a request is sent instead."""

    url: str
    headers: dict[str, str]
    """Added to those of the request; names in lower case."""


Route: TypeAlias = Callable[[str, str, "bytes | None"], "Redirected | None"]
"""From method, URL and body of a request (None: a stream, which only its HTTP library may read) to where it is sent;
None: it is left alone. Called on any thread."""

_lock = lock_for(__name__)
_routes: tuple[Route, ...] = ()


def add(route: Route) -> None:
    """Has a route asked, before those that are there already."""
    global _routes
    with _lock:
        _routes = (route, *_routes)


def remove(route: Route) -> None:
    """Has a route asked no more; of one that was added twice, once less."""
    global _routes
    with _lock:
        at = _routes.index(route)
        _routes = (*_routes[:at], *_routes[at + 1 :])


def target_of(method: str, url: str, body: bytes | None) -> Redirected | None:
    """Where a request is sent instead, by the first route that says so; None: where it would be."""
    for route in _routes:
        try:
            found = route(method, url, body)
        except Exception as error:
            guard.failed("redirect", None, error)
            continue
        if found is not None:
            return Redirected(found.url, {**found.headers, **call_header()})
    return None


def call_header() -> dict[str, str]:
    """The header of a request that is sent in this context: empty where no recorded call sends it."""
    call = recorder.current.get()
    # A task that was begun inside a call keeps the variable when the call has ended.
    return {} if call is None or call.ended is not None else {CALL_HEADER: f"{os.getpid()}/{call.id}"}
