"""``rt.wrap_openai``: recording for clients of the openai SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rollout_trace.clients.common import wrap
from rollout_trace.clients.httpx import protocol_of as protocol_of
from rollout_trace.record.call import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.engine import resolve

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

C = TypeVar("C")


def wrap_openai(
    client: C,
    *,
    engine: EngineName | Engine | None = None,
    keep_bytes: bool = False,
    logprobs_mode: LogprobsMode | None = None,
    max_call_bytes: int = MAX_CALL_BYTES,
) -> C:
    """Records every generation call of a client of the openai SDK, and of its copies. Returns the same object.

    The client behaves as before; only ``type(client) is OpenAI`` no longer holds (``isinstance`` does).
    WebSocket surfaces (``realtime``, ``live``, ``responses.connect``) are not recorded.

    Args:
        client: any client object of openai 1.66 or newer: sync, async, Azure, Bedrock, a subclass of the user's.
        engine: the server behind it (``vllm``, ``sglang``, ``llama-server``, ``dynamo``, ``fireworks``, ``together``,
            ``openai``).
            Its fields that request token ids and logprobs are added to generation calls, never over the caller's own.
            If the server refuses a field, the call is sent again without it. ``auto`` detects the engine, with requests
            of its own before the first call. None sends exactly what the caller sends. An ``rt.Engine`` asks for more
            than ids and logprobs: routed experts, prompt logprobs, alternatives, sampling masks.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: most bytes that are kept of one request, and of one response as it arrives (64 MiB); four times
            as many of a response that is unpacked. The rest is counted: the step of a longer call has the
            ``token_issue`` ``bytes_left_out``, and no ids.
        logprobs_mode: distribution of the server's logprobs (``raw``, ``processed``, ``constrained``), if the server is
            not configured as its engine is by default; see ``Step.logprobs_mode``. It is recorded for every step, also
            where a grammar was in force.

    Wrapping again only changes the settings.

    Raises:
        TypeError: not a client object of the openai SDK, or ``max_call_bytes`` is no whole number.
        ValueError: the engine, or the mode of logprobs, is unknown, or ``max_call_bytes`` is below 1.
    """
    if logprobs_mode not in (None, "raw", "processed", "constrained"):
        raise ValueError(
            f"logprobs_mode={logprobs_mode!r} is not known; it is 'raw', 'processed', 'constrained' or None."
        )
    found, wishes = resolve(engine)
    settings = Settings(
        protocol_of,
        found,
        bool(keep_bytes),
        logprobs_mode=logprobs_mode,
        max_call_bytes=check_call_bytes(max_call_bytes),
        wishes=wishes,
    )
    return wrap(client, "openai", settings, example="OpenAI")
