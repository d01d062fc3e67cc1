"""Detection of the engine behind a Stainless SDK's client, over the client's own HTTP connections.

Below the SDK: its retries and error classes, and the recording, do not apply to these requests.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rollout_trace.clients import detect
from rollout_trace.clients.detect import Get, Reply

if TYPE_CHECKING:
    from rollout_trace.wire.profiles import EngineProfile

_MAX_BYTES = 1 << 20
_CALL_HEADERS = frozenset({"content-type", "idempotency-key", "x-stainless-raw-response", "x-stainless-retry-count"})


def find(client: Any, options: Any) -> EngineProfile | None:
    """The profile of the engine behind a sync client; None if it is not certain. ``options`` are those of the call."""

    def get(request: Get) -> Reply:
        with client._client.stream(
            "GET", request.url, **_request_options(client, options, request.deadline)
        ) as response:
            body = b""
            for chunk in response.iter_bytes():
                body = _appended(body, chunk, request.deadline)
                if len(body) > _MAX_BYTES:
                    break
            return Reply(response.status_code, body)

    return detect.find(str(client.base_url), get)


async def find_async(client: Any, options: Any) -> EngineProfile | None:
    """``find`` for an async client."""

    async def get(request: Get) -> Reply:
        async with client._client.stream(
            "GET", request.url, **_request_options(client, options, request.deadline)
        ) as response:
            body = b""
            async for chunk in response.aiter_bytes():
                body = _appended(body, chunk, request.deadline)
                if len(body) > _MAX_BYTES:
                    break
            return Reply(response.status_code, body)

    return await detect.find_async(str(client.base_url), get)


def _request_options(client: Any, options: Any, deadline: float) -> dict[str, Any]:
    """Headers, query and timeouts as for the call itself, credentials included. Redirects are not followed.

    Raises:
        TimeoutError: the deadline, in ``time.monotonic`` seconds, has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    headers = {name: value for name, value in client._build_headers(options).items() if name not in _CALL_HEADERS}
    # To connect, to read, to write, to wait for a pooled connection: each alone is within what is left, if not the sum.
    timeout = (min(left, detect.PATIENCE / 2), left, left, min(left, detect.PATIENCE / 2))
    query = dict(client.default_query) or None
    # No redirects: the credentials must not go to another server.
    return {"headers": headers, "params": query, "timeout": timeout, "follow_redirects": False}


def _appended(body: bytes, chunk: bytes, deadline: float) -> bytes:
    # The HTTP client's timeout applies to each read: a server that sends byte by byte would never exceed it.
    if time.monotonic() >= deadline:
        raise TimeoutError
    return body + chunk
