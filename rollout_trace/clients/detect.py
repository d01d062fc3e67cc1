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
from rollout_trace.engines import EngineProfile, profile

PATIENCE = 2.0
"""Seconds that one inquiry may take, all its requests together."""

FORGET_FAILURES = 60.0
"""Seconds after which a server that gave no usable answer (it may have been starting) is asked again."""

_MAX_BYTES = 1 << 20
_OF_THE_CALL = frozenset({"content-type", "idempotency-key", "x-stainless-raw-response", "x-stainless-retry-count"})

_HOSTS = {
    "api.openai.com": "openai",
    "openai.azure.com": "openai",
    "fireworks.ai": "fireworks",
    "together.xyz": "together",
    "together.ai": "together",
}
# What servers call themselves in `owned_by` of their models (vLLM 0.32 and llama-server recorded, SGLang by source).
# `/version` proves nothing: several engines have one of the same shape.
_OWNERS = {"vllm": "vllm", "llamacpp": "llama-server", "sglang": "sglang"}
# Where the list of models tells nothing: a path beside it, and the fields that only this engine answers with.
_SIGNS = (
    ("get_server_info", frozenset({"tokenizer_path", "mem_fraction_static"}), "sglang"),
    ("props", frozenset({"default_generation_settings", "total_slots"}), "llama-server"),
)


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    value: Any


@dataclass(frozen=True, slots=True)
class _Verdict:
    engine: str | None
    final: bool
    """False where another try may find more."""


_Inquiry = Generator[str, "_Reply | None", _Verdict]


class _Search:
    """One address that is being asked about, or was."""

    __slots__ = ("abandoned", "ended", "expires", "profile")

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.expires = math.inf
        self.profile: EngineProfile | None = None
        self.abandoned = False


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
    deadline = time.monotonic() + PATIENCE
    while True:
        search, ours = _claim(url)
        if ours:
            try:
                _conclude(search, url, _ask(client, options, _inquiry(url), deadline))
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
    deadline = time.monotonic() + PATIENCE
    while True:
        search, ours = _claim(url)
        if ours:
            try:
                _conclude(search, url, await _ask_async(client, options, _inquiry(url), deadline))
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
        search = _searches[url] = _Search()
        return search, True


def _conclude(search: _Search, url: str, verdict: _Verdict) -> None:
    search.profile = profile(verdict.engine)
    search.expires = math.inf if verdict.final else time.monotonic() + FORGET_FAILURES
    search.ended.set()
    if search.profile is None:
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
    return next((profile(name) for known, name in _HOSTS.items() if host == known or host.endswith(f".{known}")), None)


def _inquiry(base_url: str) -> _Inquiry:
    """Yields addresses to GET, takes what came (None: nothing), and returns what follows from it."""
    base = base_url.rstrip("/")
    models = yield f"{base}/models"
    if models is None or _is_passing(models.status):
        return _Verdict(None, final=False)
    owners = _owners(models.value)
    if owners:
        return _Verdict(_OWNERS.get(owners.pop()) if len(owners) == 1 else None, final=True)
    for path, signs, engine in _SIGNS:
        reply = yield f"{base.removesuffix('/v1')}/{path}"
        if reply is None or _is_passing(reply.status):
            return _Verdict(None, final=False)
        if reply.status == 200 and isinstance(reply.value, Mapping) and signs <= reply.value.keys():
            return _Verdict(engine, final=True)
    return _Verdict(None, final=True)


def _is_passing(status: int) -> bool:
    """An answer of the moment: no credentials yet, too many requests, still loading."""
    return status in (401, 403, 408, 429) or status >= 500


def _owners(value: Any) -> set[str]:
    models = value.get("data") if isinstance(value, Mapping) else None
    entries = [model for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
    return {str(model["owned_by"]) for model in entries if model.get("owned_by")}


def _ask(client: Any, options: Any, inquiry: _Inquiry, deadline: float) -> _Verdict:
    reply: _Reply | None = None
    url = next(inquiry)
    while True:
        try:
            with client._client.stream("GET", url, **_sent(client, options, deadline)) as response:
                body = b""
                for chunk in response.iter_bytes():
                    body = _grown(body, chunk, deadline)
                reply = _Reply(response.status_code, _json(body))
        except Exception:
            reply = None
        try:
            url = inquiry.send(reply)
        except StopIteration as stop:
            verdict: _Verdict = stop.value
            return verdict


async def _ask_async(client: Any, options: Any, inquiry: _Inquiry, deadline: float) -> _Verdict:
    reply: _Reply | None = None
    url = next(inquiry)
    while True:
        try:
            async with client._client.stream("GET", url, **_sent(client, options, deadline)) as response:
                body = b""
                async for chunk in response.aiter_bytes():
                    body = _grown(body, chunk, deadline)
                reply = _Reply(response.status_code, _json(body))
        except Exception:
            reply = None
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
    if time.monotonic() >= deadline or len(body) + len(chunk) > _MAX_BYTES:
        raise TimeoutError
    return body + chunk


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
