"""Which engine is behind a Stainless SDK's client: asked on the client's own HTTP connection, below the SDK."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rollout_trace.engines import detect
from rollout_trace.engines.detect import Get, Reply

if TYPE_CHECKING:
    from rollout_trace.engines.profiles import EngineProfile

_MAX_BYTES = 1 << 20
_OF_THE_CALL = frozenset({"content-type", "idempotency-key", "x-stainless-raw-response", "x-stainless-retry-count"})


def find(client: Any, options: Any) -> EngineProfile | None:
    """The profile of the engine behind a sync client; None where that is not sure. ``options`` are the call's."""

    def get(wanted: Get) -> Reply:
        with client._client.stream("GET", wanted.url, **_sent(client, options, wanted.deadline)) as response:
            body = b""
            for chunk in response.iter_bytes():
                body = _grown(body, chunk, wanted.deadline)
                if len(body) > _MAX_BYTES:
                    break
            return Reply(response.status_code, body)

    return detect.find(str(client.base_url), get)


async def find_async(client: Any, options: Any) -> EngineProfile | None:
    """The same for an async client."""

    async def get(wanted: Get) -> Reply:
        async with client._client.stream("GET", wanted.url, **_sent(client, options, wanted.deadline)) as response:
            body = b""
            async for chunk in response.aiter_bytes():
                body = _grown(body, chunk, wanted.deadline)
                if len(body) > _MAX_BYTES:
                    break
            return Reply(response.status_code, body)

    return await detect.find_async(str(client.base_url), get)


def _sent(client: Any, options: Any, deadline: float) -> dict[str, Any]:
    """What the SDK sends with the call itself, credentials included; never to where a redirect leads."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    headers = {name: value for name, value in client._build_headers(options).items() if name not in _OF_THE_CALL}
    # To connect, to read, to write, for a place in the pool. The sum may exceed what is left, each alone does not.
    timeout = (min(left, detect.PATIENCE / 2), left, left, min(left, detect.PATIENCE / 2))
    query = dict(client.default_query) or None
    return {"headers": headers, "params": query, "timeout": timeout, "follow_redirects": False}


def _grown(body: bytes, chunk: bytes, deadline: float) -> bytes:
    # The HTTP client's timeout is for each read: a server that drips would take for ever.
    if time.monotonic() >= deadline:
        raise TimeoutError
    return body + chunk
