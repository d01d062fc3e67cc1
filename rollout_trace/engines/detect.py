"""``engine="auto"``: which engine is behind an address, asked once and remembered in this process.

The server is asked on the client's own HTTP connection, below the SDK: no step comes of it. Whatever happens, the
caller's call goes on, a little later at most.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rollout_trace import guard
from rollout_trace.engines.profiles import EngineProfile, profile, profiles

PATIENCE = 2.0
"""Seconds that one inquiry may take, all its requests together."""

LEAST_PATIENCE = 0.25
"""What is left of that where inquiry after inquiry has no answer: each may take half the time of the one before."""

FORGET_FAILURES = 60.0
"""Seconds after which a server that would not answer (no credentials, an error of its own) is asked again."""

_MAX_BYTES = 1 << 20
_STARTING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a server, or of the proxy before it, that will answer soon: llama-server loads its model behind 503."""
_OF_THE_CALL = frozenset({"content-type", "idempotency-key", "x-stainless-raw-response", "x-stainless-retry-count"})


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    value: Any


@dataclass(frozen=True, slots=True)
class _Verdict:
    engine: str | None
    lasts: float = math.inf
    """Seconds for which it holds."""


_Inquiry = Generator[str, _Reply, _Verdict]
_NO_REPLY = _Reply(0, None)
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


def find(client: Any, options: Any) -> EngineProfile | None:
    """The profile of the engine behind a sync client; None where that is not sure. ``options`` are the call's."""
    url = str(client.base_url)
    if (named := _by_host(url)) is not None:
        return named
    began = time.monotonic()
    while True:
        search, ours = _claim(url)
        deadline = began + _patience(search)
        if ours:
            try:
                _conclude(search, url, _ask(client, options, _inquiry(url), deadline), began)
            finally:
                _end(search, url)
        else:
            search.ended.wait(max(0.0, deadline - time.monotonic()))
        if not search.abandoned or time.monotonic() >= deadline:
            return search.profile


async def find_async(client: Any, options: Any) -> EngineProfile | None:
    """The same for an async client."""
    url = str(client.base_url)
    if (named := _by_host(url)) is not None:
        return named
    began = time.monotonic()
    while True:
        search, ours = _claim(url)
        deadline = began + _patience(search)
        if ours:
            try:
                _conclude(search, url, await _ask_async(client, options, _inquiry(url), deadline), began)
            finally:
                _end(search, url)
        else:
            await _wait(search, deadline)
        if not search.abandoned or time.monotonic() >= deadline:
            return search.profile


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
    owners = _owners(models.value)
    if owners:
        return _Verdict(next((one.name for one in profiles() if owners == {one.owned_by}), None))
    for name, sign in [(one.name, one.sign) for one in profiles() if one.sign is not None]:
        reply = yield f"{base.removesuffix('/v1')}/{sign.path}"
        if (lasts := _refuses_for(reply)) is not None:
            return _Verdict(None, lasts)
        if reply.status == 200 and isinstance(reply.value, Mapping) and sign.fields <= reply.value.keys():
            return _Verdict(name)
    return _Verdict(None)


def _refuses_for(reply: _Reply) -> float | None:
    """For how many seconds it is remembered that a server does not say what it is; None where it does.

    What was not answered is not remembered at all: a loop that waits for its server would record without ids.
    """
    if reply is _NO_REPLY or reply.status in _STARTING:
        return 0.0
    return FORGET_FAILURES if reply.status in (401, 403) or reply.status >= 500 else None


def _owners(value: Any) -> set[str]:
    models = value.get("data") if isinstance(value, Mapping) else None
    entries = [model for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
    return {str(model["owned_by"]) for model in entries if model.get("owned_by")}


def _ask(client: Any, options: Any, inquiry: _Inquiry, deadline: float) -> _Verdict:
    url = next(inquiry)
    while True:
        try:
            with client._client.stream("GET", url, **_sent(client, options, deadline)) as response:
                body = b""
                for chunk in response.iter_bytes():
                    body = _grown(body, chunk, deadline)
                    if len(body) > _MAX_BYTES:
                        break
                reply = _Reply(response.status_code, _json(body))
        except Exception:
            reply = _NO_REPLY
        try:
            url = inquiry.send(reply)
        except StopIteration as stop:
            verdict: _Verdict = stop.value
            return verdict


async def _ask_async(client: Any, options: Any, inquiry: _Inquiry, deadline: float) -> _Verdict:
    url = next(inquiry)
    while True:
        try:
            async with client._client.stream("GET", url, **_sent(client, options, deadline)) as response:
                body = b""
                async for chunk in response.aiter_bytes():
                    body = _grown(body, chunk, deadline)
                    if len(body) > _MAX_BYTES:
                        break
                reply = _Reply(response.status_code, _json(body))
        except Exception:
            reply = _NO_REPLY
        try:
            url = inquiry.send(reply)
        except StopIteration as stop:
            verdict: _Verdict = stop.value
            return verdict


def _sent(client: Any, options: Any, deadline: float) -> dict[str, Any]:
    """What the SDK sends with the call itself, credentials included; never to where a redirect leads."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    headers = {name: value for name, value in client._build_headers(options).items() if name not in _OF_THE_CALL}
    # To connect, to read, to write, for a place in the pool. The sum may exceed what is left, each alone does not.
    timeout = (min(left, PATIENCE / 2), left, left, min(left, PATIENCE / 2))
    query = dict(client.default_query) or None
    return {"headers": headers, "params": query, "timeout": timeout, "follow_redirects": False}


def _grown(body: bytes, chunk: bytes, deadline: float) -> bytes:
    # The HTTP client's timeout is for each read: a server that drips would take for ever.
    if time.monotonic() >= deadline:
        raise TimeoutError
    return body + chunk


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
