"""``rt.wrap_anthropic``: recording for clients of the anthropic SDK."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from rollout_trace.clients.common import wrap
from rollout_trace.record.call import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.protocols import protocol_at

C = TypeVar("C")


@lru_cache(maxsize=256)
def protocol_of(method: str, url: str) -> str | None:
    """The protocol of a request, by the path that the SDK's resources use; None for requests that do not generate.

    Bedrock and Vertex clients rewrite the path, but only after this point.
    """
    return protocol_at("anthropic", method, url)


def wrap_anthropic(client: C, *, keep_bytes: bool = False, max_call_bytes: int = MAX_CALL_BYTES) -> C:
    """Records every generation call of a client of the anthropic SDK, and of its copies. Returns the same object.

    The client behaves as before and sends the same requests; only ``type(client) is Anthropic`` no longer holds
    (``isinstance`` does). Token counts, batches and agents that run on the server are not recorded.

    Args:
        client: any client object of anthropic 0.60 or newer: sync, async, Bedrock, Vertex, Foundry, AWS, Google Cloud,
            a subclass of the user's.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: most bytes that are kept of one request, and of one response as it arrives (64 MiB); four times
            as many of a response that is unpacked. The rest is counted: the step of a longer call has the
            ``token_issue`` ``bytes_left_out``, and no ids.

    Wrapping again only changes the settings.

    Raises:
        TypeError: not a client object of the anthropic SDK, or ``max_call_bytes`` is no whole number.
        ValueError: ``max_call_bytes`` is below 1.
    """
    limit = check_call_bytes(max_call_bytes)
    settings = Settings(protocol_of, keep_bytes=bool(keep_bytes), max_call_bytes=limit)
    return wrap(client, "anthropic", settings, example="Anthropic")
