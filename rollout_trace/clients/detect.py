"""``engine="auto"``: detection of the engine behind an address, once per address and process.

Its requests are not recorded as calls. Whatever goes wrong, the user's call goes on, delayed by about ``PATIENCE`` at
most.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from rollout_trace import guard
from rollout_trace.wire.profiles import EngineProfile, profile, profiles

PATIENCE = 2.0
"""Seconds that one detection may take, all its requests together."""

POOL_PATIENCE = 1.0
"""Seconds that a request with content may wait for a connection of its user's pool: an open stream may hold it."""

LEAST_PATIENCE = 0.25
"""Lower bound of that, in seconds: after each detection without an answer the next may take half as long."""

FORGET_FAILURES = 60.0
"""Seconds after which a server that refused to answer (401, 403, 5xx) is asked again."""

_MAX_BYTES = 16 << 20
_CALL_HEADERS = frozenset({"content-type", "idempotency-key", "x-stainless-raw-response", "x-stainless-retry-count"})
_STARTING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a server, or of its proxy, that will answer soon: llama-server sends 503 while its model loads."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer to one request of the detection."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Verdict:
    engine: str | None
    valid_for: float = math.inf
    """Seconds until the address is asked again."""


NO_REPLY = Reply(0, b"")
"""Stands for no answer: the server could not be reached, was too slow, or broke off."""
NO_CONNECTION = Reply(0, b"")
"""Stands for none because all connections of the client's pool were in use."""


class PoolTimeout(Exception):
    """All connections of a client's pool are in use. Those of httpx have the same name."""


class _Search:
    """The detection for one address, running or ended, and its result."""

    __slots__ = ("abandoned", "ended", "expires", "missed", "profile")

    def __init__(self, missed: int = 0) -> None:
        self.ended = threading.Event()
        self.expires = math.inf
        self.profile: EngineProfile | None = None
        self.abandoned = False
        self.missed = missed
        """Detections in a row that made their callers wait without a result."""


_searches: dict[str, _Search] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    """Forgets running detections: the threads that ran them are in the parent process only."""
    # The lock may have been held at the fork, by a thread that does not exist here.
    global _lock
    _lock = threading.Lock()
    for url in [url for url, search in _searches.items() if not search.ended.is_set()]:
        del _searches[url]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Inquiry(NamedTuple):
    """What is asked of a client: a request to an address, or, with a search, to wait for that to end."""

    url: str
    deadline: float
    """When it is of no use any more, as ``time.monotonic`` seconds."""
    search: _Search | None = None
    content: bytes | None = None
    """Body of a POST, as JSON; None: a GET."""
    runs_hooks: bool = True
    """Whether hooks of the client's user are run: they may be what authenticates."""


_Result = TypeVar("_Result")
_Steps: TypeAlias = Generator[Inquiry, Reply, _Result]


def find(client: Any, options: Any) -> EngineProfile | None:
    """Finds the engine behind a sync client of a Stainless SDK; None where it is not certain.

    Its requests go over the client's own HTTP connections, below the SDK: its retries and error classes, and the
    recording, do not apply to them. They have the headers of the call with these options.
    """
    return drive(_search_steps(str(client.base_url)), partial(reply_to, client, options))


async def find_async(client: Any, options: Any) -> EngineProfile | None:
    """``find`` for an async client."""
    return await drive_async(_search_steps(str(client.base_url)), partial(reply_to_async, client, options))


def drive(steps: _Steps[_Result], send: Callable[[Inquiry], Reply]) -> _Result:
    """Makes the requests that steps ask for, and returns their result; a request that fails has no reply."""
    # Closed here: a search that an interrupt broke off ends now, not when it is collected. Others wait for it.
    with closing(steps):
        try:
            step = next(steps)
            while True:
                if step.search is not None:
                    step.search.ended.wait(max(0.0, step.deadline - time.monotonic()))
                    reply = NO_REPLY
                else:
                    try:
                        reply = send(step)
                    except Exception as error:
                        reply = _no_reply(error)
                step = steps.send(reply)
        except StopIteration as stop:
            result: _Result = stop.value
            return result


async def drive_async(steps: _Steps[_Result], send: Callable[[Inquiry], Awaitable[Reply]]) -> _Result:
    """``drive`` for an event loop."""
    with closing(steps):
        try:
            step = next(steps)
            while True:
                if step.search is not None:
                    await _wait(step.search, step.deadline)
                    reply = NO_REPLY
                else:
                    try:
                        reply = await send(step)
                    except Exception as error:
                        reply = _no_reply(error)
                step = steps.send(reply)
        except StopIteration as stop:
            result: _Result = stop.value
            return result


def _no_reply(error: Exception) -> Reply:
    return NO_CONNECTION if type(error).__name__ == "PoolTimeout" else NO_REPLY


def reply_to(client: Any, options: Any, inquiry: Inquiry) -> Reply:
    """Makes a request as a sync client of a Stainless SDK would; ``options`` are those of the call."""
    with of_inquiry(client._client, inquiry).stream(**_request_options(client, options, inquiry)) as response:
        parts: list[bytes] = []
        for chunk in response.iter_bytes():
            parts.append(chunk)
            if _is_enough(parts, inquiry.deadline):
                break
        return Reply(response.status_code, b"".join(parts))


async def reply_to_async(client: Any, options: Any, inquiry: Inquiry) -> Reply:
    """``reply_to`` for an async client."""
    async with of_inquiry(client._client, inquiry).stream(**_request_options(client, options, inquiry)) as response:
        parts: list[bytes] = []
        async for chunk in response.aiter_bytes():
            parts.append(chunk)
            if _is_enough(parts, inquiry.deadline):
                break
        return Reply(response.status_code, b"".join(parts))


def _request_options(client: Any, options: Any, inquiry: Inquiry) -> dict[str, Any]:
    """Headers, query and timeouts as for the call itself, credentials included. Redirects are not followed.

    Raises:
        TimeoutError: the deadline has passed.
    """
    left = inquiry.deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    headers = {name: value for name, value in client._build_headers(options).items() if name not in _CALL_HEADERS}
    # To connect, to read, to write, to wait for a pooled connection: each alone is within what is left, if not the sum.
    most, pool = min(left, PATIENCE / 2), min(left, POOL_PATIENCE)
    timeout = (most, left, left, most) if inquiry.content is None else (left, left, left, pool)
    query = dict(client.default_query) or None
    # No redirects: the credentials must not go to another server.
    made: dict[str, Any] = {"method": "GET", "url": inquiry.url}
    if inquiry.content is not None:
        made = {**made, "method": "POST", "content": inquiry.content}
        headers["content-type"] = "application/json"
    return {**made, "headers": headers, "params": query, "timeout": timeout, "follow_redirects": False}


def of_inquiry(client: Any, inquiry: Inquiry) -> Any:
    """The client of httpx that makes a request of our own: itself, or a twin that runs none of its user's hooks.

    A twin has the same connections, cookies and authentication.
    """
    hooks = None if inquiry.runs_hooks else getattr(client, "event_hooks", None)
    if not hooks or not any(hooks.values()):
        return client
    twin = object.__new__(_twin_class(type(client)))  # type: ignore[arg-type]
    vars(twin).update(vars(client))
    twin.event_hooks = {}
    return twin


@lru_cache(maxsize=64)
def _twin_class(kind: type) -> Any:
    # Those of the SDKs close their connections when they are collected.
    return type(kind.__name__, (kind,), {"__del__": lambda self: None})


def _is_enough(parts: list[bytes], deadline: float) -> bool:
    # The HTTP client's timeout applies to each read: a server that sends byte by byte would never exceed it.
    if time.monotonic() >= deadline:
        raise TimeoutError
    return sum(map(len, parts)) > _MAX_BYTES


def _search_steps(url: str) -> _Steps[EngineProfile | None]:
    """The detection without its I/O: yields requests to make and searches to wait for; returns the profile."""
    if (named := by_host(url)) is not None:
        return named
    began = time.monotonic()
    # A search that was abandoned is taken over by one of those who waited for it, each within its own first deadline.
    while True:
        search, is_mine = _claim(url)
        deadline = began + _patience(search)
        if is_mine:
            try:
                _conclude(search, url, (yield from _inquiry(url, deadline)), began)
            finally:
                _end(search, url)
        else:
            yield Inquiry(url, deadline, search)
        if not search.abandoned or time.monotonic() >= deadline:
            return search.profile


async def _wait(search: _Search, deadline: float) -> None:
    # The search may run in another thread or event loop: only polling works for all of them.
    while not search.ended.is_set() and time.monotonic() < deadline:
        from anyio import sleep

        await sleep(0.01)


def _claim(url: str) -> tuple[_Search, bool]:
    """The search for an address, and True where the caller has to run it."""
    with _lock:
        search = _searches.get(url)
        if search is not None and search.expires > time.monotonic():
            return search, False
        search = _searches[url] = _Search(0 if search is None else search.missed)
        return search, True


def _patience(search: _Search) -> float:
    halved: float = PATIENCE / 2**search.missed
    return max(halved, min(PATIENCE, LEAST_PATIENCE))


def _conclude(search: _Search, url: str, verdict: _Verdict, began: float) -> None:
    now = time.monotonic()
    search.profile = profile(verdict.engine)
    # A failure that came at once cost nobody time: only slow ones shorten the next wait.
    search.missed = search.missed + 1 if verdict.valid_for == 0 and now - began >= LEAST_PATIENCE else 0
    search.expires = now + verdict.valid_for
    # Last: whoever waits for it reads the fields above.
    search.ended.set()
    if search.profile is not None:
        return
    host = urlsplit(url).hostname
    if verdict.valid_for == 0:
        guard.warn_once(
            f"auto-unanswered:{url}",
            f'engine="auto" got no answer from {host}. This call asks for no token ids; the next call '
            "asks the server again. If you know the engine, name it.",
        )
    else:
        guard.warn_once(
            f"auto:{url}",
            f'engine="auto" could not tell which engine answers at {host}. No token ids are requested. If you '
            "know the engine, name it.",
        )


def _end(search: _Search, url: str) -> None:
    """Abandons a search without a result (its task was cancelled), so that another caller runs it."""
    if not search.ended.is_set():
        search.abandoned = True
        with _lock:
            if _searches.get(url) is search:
                del _searches[url]
        search.ended.set()


def by_host(url: str) -> EngineProfile | None:
    """The provider that an address belongs to; None for any other."""
    host = urlsplit(url).hostname or ""
    # With the dot in front on both sides, "notfireworks.ai" is no subdomain of "fireworks.ai".
    known = ((f".{name}", one) for one in profiles() for name in one.hosts)
    return next((one for name, one in known if f".{host}".endswith(name)), None)


def _inquiry(base_url: str, deadline: float) -> _Steps[_Verdict]:
    """Yields requests to make, receives the replies, and returns the verdict."""
    base = base_url.rstrip("/")
    models = yield Inquiry(f"{base}/models", deadline)
    if (valid_for := _failure_ttl(models)) is not None:
        return _Verdict(None, valid_for)
    owners = _owners(_json(models.body))
    named = next((one for one in profiles() if owners == {one.owned_by}), None)
    if owners and (named is None or not named.shares_owner):
        return _Verdict(None if named is None else named.name)
    candidates = profiles() if named is None else [named]
    for name, fingerprint in [(one.name, one.fingerprint) for one in candidates if one.fingerprint is not None]:
        reply = yield Inquiry(f"{base.removesuffix('/v1')}/{fingerprint.path}", deadline)
        if (valid_for := _failure_ttl(reply)) is not None:
            return _Verdict(None, valid_for)
        if (
            reply.status == 200
            and isinstance(_json(reply.body), Mapping)
            and fingerprint.fields <= _json(reply.body).keys()
        ):
            return _Verdict(name)
    return _Verdict(None)


def _failure_ttl(reply: Reply) -> float | None:
    """Seconds for which a reply without an answer is remembered; None where it is an answer.

    0 for a server that is unreachable or starting: remembered, a loop that waits for its server would then record
    without ids.
    """
    if not reply.status or reply.status in _STARTING:
        return 0.0
    return FORGET_FAILURES if reply.status in (401, 403) or reply.status >= 500 else None


def _owners(value: Any) -> set[str]:
    models = value.get("data") if isinstance(value, Mapping) else None
    entries = [model for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
    return {str(model["owned_by"]) for model in entries if model.get("owned_by")}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
