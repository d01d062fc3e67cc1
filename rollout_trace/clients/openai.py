"""Recording in the client objects of the openai SDK."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from rollout_trace.clients.common import wrap
from rollout_trace.engines.profiles import profile
from rollout_trace.record.settings import Settings
from rollout_trace.wire.protocols import protocol_at

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.engines.profiles import EngineName

C = TypeVar("C")


@lru_cache(maxsize=256)
def protocol_of(method: str, url: str) -> str | None:
    """The protocol of a request, by the path that the SDK's resources use; None for what does not generate."""
    return protocol_at("openai", method, url)


def wrap_openai(
    client: C, *, engine: EngineName | None = None, keep_bytes: bool = False, logprobs_mode: LogprobsMode | None = None
) -> C:
    """Records every generation call of a client of the openai SDK, and of its copies. Gives the same object back.

    The client stays what it was for its user; only ``type(client) is OpenAI`` no longer holds (``isinstance`` does).
    WebSocket surfaces (``realtime``, ``live``, ``responses.connect``) are not recorded.

    Args:
        client: any client object of openai 1.66 or newer: sync, async, Azure, Bedrock, a subclass of the user's.
        engine: the server behind it (``vllm``, ``sglang``, ``llama-server``, ``fireworks``, ``together``, ``openai``):
            asks it for token ids and logprobs, in generation calls only and never over what the caller set. A server
            that refuses a field gets the call once more without it. ``auto`` finds out which engine it is, with a
            request of its own before the first call. None sends exactly what the caller sends.
        keep_bytes: keep request and response bodies on the steps.
        logprobs_mode: what the server's logprobs are of (``raw``, ``processed``), where that is not what its engine
            does by default; see ``Step.logprobs_mode``.

    Wrapping again only changes the settings.

    Raises:
        TypeError: not a client object of the openai SDK.
        ValueError: the engine, or the mode of logprobs, is not known.
    """
    if logprobs_mode not in (None, "raw", "processed"):
        raise ValueError(f"logprobs_mode={logprobs_mode!r} is not known; it is 'raw', 'processed' or None.")
    settings = Settings(protocol_of, profile(engine), bool(keep_bytes), logprobs_mode=logprobs_mode)
    return wrap(client, "openai", settings)


__all__ = ["protocol_of", "wrap_openai"]
