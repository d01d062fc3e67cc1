"""``engine="auto"``: which engine is behind an address, asked once and remembered in this process.

Who makes the requests is the client's affair, and they are no calls: no step comes of them. Whatever happens, the
caller's call goes on, a little later at most.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rollout_trace import guard
from rollout_trace.engines.profiles import EngineProfile, profile, profiles

PATIENCE = 2.0
"""Seconds that one inquiry may take, all its requests together."""

LEAST_PATIENCE = 0.25
"""What is left of that where inquiry after inquiry has no answer: each may take half the time of the one before."""

FORGET_FAILURES = 60.0
"""Seconds after which a server that would not answer (no credentials, an error of its own) is asked again."""

_STARTING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a server, or of the proxy before it, that will answer soon: llama-server loads its model behind 503."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Verdict:
    engine: str | None
    lasts: float = math.inf
    """Seconds for which it holds."""


_Inquiry = Generator[str, Reply, _Verdict]
NO_REPLY = Reply(0, b"")
"""The server could not be reached, was too slow, or broke off."""


class _Search:
    """One address that is being asked about, or was."""

    __slots__ = ("abandoned", "ended", "expires", "missed", "profile")

    def __init__(self, missed: int = 0) -> None:
        self.ended = threading.Event()
        self.expires = math.inf
        self.profile: EngineProfile | None = None
        self.abandoned = False
        self.missed = missed
        """How many inquiries in a row made their callers wait for nothing."""


_searches: dict[str, _Search] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    """Who was asking stayed in the other process."""
    global _lock
    _lock = threading.Lock()
    for url in [url for url, search in _searches.items() if not search.ended.is_set()]:
        del _searches[url]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Get(NamedTuple):
    """A request to make: an address, and by when (``time.monotonic``) the answer is of use."""

    url: str
    deadline: float


@dataclass(frozen=True, slots=True)
class _Wait:
    """Another caller is asking: its search may end before the deadline."""

    search: _Search
    deadline: float


def find(address: str, get: Callable[[Get], Reply]) -> EngineProfile | None:
    """The profile of the engine behind an address; None where that is not sure.

    Args:
        address: of the API, as clients have it.
        get: makes a request, with the caller's credentials. What it raises counts as no answer.
    """
    steps = _steps(address)
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, _Wait):
                wanted.search.ended.wait(max(0.0, wanted.deadline - time.monotonic()))
                wanted = steps.send(NO_REPLY)
                continue
            try:
                reply = get(wanted)
            except Exception:
                reply = NO_REPLY
            wanted = steps.send(reply)
    except StopIteration as stop:
        found: EngineProfile | None = stop.value
        return found
    finally:
        # A search that was broken off by an interrupt ends here, not when it is collected.
        steps.close()


async def find_async(address: str, get: Callable[[Get], Awaitable[Reply]]) -> EngineProfile | None:
    """The same in an event loop."""
    steps = _steps(address)
    try:
        wanted = next(steps)
        while True:
            if isinstance(wanted, _Wait):
                await _wait(wanted.search, wanted.deadline)
                wanted = steps.send(NO_REPLY)
                continue
            try:
                reply = await get(wanted)
            except Exception:
                reply = NO_REPLY
            wanted = steps.send(reply)
    except StopIteration as stop:
        found: EngineProfile | None = stop.value
        return found
    finally:
        steps.close()


def _steps(url: str) -> Generator[Get | _Wait, Reply, EngineProfile | None]:
    """What is done to find an engine, without doing it: yields requests to make and searches to wait for."""
    if (named := _by_host(url)) is not None:
        return named
    began = time.monotonic()
    while True:
        search, ours = _claim(url)
        deadline = began + _patience(search)
        if ours:
            try:
                _conclude(search, url, (yield from _asked(_inquiry(url), deadline)), began)
            finally:
                _end(search, url)
        else:
            yield _Wait(search, deadline)
        if not search.abandoned or time.monotonic() >= deadline:
            return search.profile


def _asked(inquiry: _Inquiry, deadline: float) -> Generator[Get | _Wait, Reply, _Verdict]:
    url = next(inquiry)
    while True:
        reply = yield Get(url, deadline)
        try:
            url = inquiry.send(reply)
        except StopIteration as stop:
            verdict: _Verdict = stop.value
            return verdict


async def _wait(search: _Search, deadline: float) -> None:
    # Whoever asks may do so in another thread or event loop: only looking again works for all of them.
    while not search.ended.is_set() and time.monotonic() < deadline:
        from anyio import sleep

        await sleep(0.01)


def _claim(url: str) -> tuple[_Search, bool]:
    """The search of an address, and whether it is the caller's to make."""
    with _lock:
        search = _searches.get(url)
        if search is not None and search.expires > time.monotonic():
            return search, False
        search = _searches[url] = _Search(0 if search is None else search.missed)
        return search, True


def _patience(search: _Search) -> float:
    wanted: float = PATIENCE / 2**search.missed
    return max(wanted, min(PATIENCE, LEAST_PATIENCE))


def _conclude(search: _Search, url: str, verdict: _Verdict, began: float) -> None:
    now = time.monotonic()
    search.profile = profile(verdict.engine)
    search.missed = search.missed + 1 if verdict.lasts == 0 and now - began >= LEAST_PATIENCE else 0
    search.expires = now + verdict.lasts
    search.ended.set()
    if search.profile is None and verdict.lasts == 0:
        guard.warn_once(
            f"auto-unanswered:{url}",
            f'engine="auto" had no answer from {urlsplit(url).hostname} when it asked which engine it is: this call is '
            "asked for nothing, and the next one asks again. If you know the engine, name it.",
        )
    elif search.profile is None:
        guard.warn_once(
            f"auto:{url}",
            f'engine="auto" could not tell which engine answers at {urlsplit(url).hostname}: it is asked for nothing. '
            "If you know it, name it.",
        )


def _end(search: _Search, url: str) -> None:
    """A search that was broken off (its task was cancelled) is the next one's to make."""
    if not search.ended.is_set():
        search.abandoned = True
        with _lock:
            if _searches.get(url) is search:
                del _searches[url]
        search.ended.set()


def _by_host(url: str) -> EngineProfile | None:
    host = urlsplit(url).hostname or ""
    known = ((f".{name}", one) for one in profiles() for name in one.hosts)
    return next((one for name, one in known if f".{host}".endswith(name)), None)


def _inquiry(base_url: str) -> _Inquiry:
    """Yields addresses to GET, takes what came, and returns what follows from it."""
    base = base_url.rstrip("/")
    models = yield f"{base}/models"
    if (lasts := _refuses_for(models)) is not None:
        return _Verdict(None, lasts)
    owners = _owners(_json(models.body))
    if owners:
        return _Verdict(next((one.name for one in profiles() if owners == {one.owned_by}), None))
    for name, sign in [(one.name, one.sign) for one in profiles() if one.sign is not None]:
        reply = yield f"{base.removesuffix('/v1')}/{sign.path}"
        if (lasts := _refuses_for(reply)) is not None:
            return _Verdict(None, lasts)
        if reply.status == 200 and isinstance(_json(reply.body), Mapping) and sign.fields <= _json(reply.body).keys():
            return _Verdict(name)
    return _Verdict(None)


def _refuses_for(reply: Reply) -> float | None:
    """For how many seconds it is remembered that a server does not say what it is; None where it does.

    What was not answered is not remembered at all: a loop that waits for its server would record without ids.
    """
    if reply is NO_REPLY or reply.status in _STARTING:
        return 0.0
    return FORGET_FAILURES if reply.status in (401, 403) or reply.status >= 500 else None


def _owners(value: Any) -> set[str]:
    models = value.get("data") if isinstance(value, Mapping) else None
    entries = [model for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
    return {str(model["owned_by"]) for model in entries if model.get("owned_by")}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
