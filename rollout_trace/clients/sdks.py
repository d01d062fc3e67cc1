"""``rt.wrap_openai`` and ``rt.wrap_anthropic``: recording for clients of both SDKs; ``rt.unwrap`` and ``rt.bind``."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from rollout_trace import guard
from rollout_trace._wrong_use import explained
from rollout_trace.clients import google, httpx, stainless
from rollout_trace.clients.httpx import protocol_of as protocol_of
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record.settings import MAX_CALL_BYTES, Settings, check_call_bytes
from rollout_trace.wire.engine import resolve
from rollout_trace.wire.protocols import protocol_at

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

C = TypeVar("C")
ClientKind: TypeAlias = Literal["sync", "async"]

_KINDS: dict[str, ClientKind] = {"SyncAPIClient": "sync", "AsyncAPIClient": "async"}


def client_kind(client: object, sdk: str) -> ClientKind | None:
    """Returns ``sync`` or ``async`` for a client of the SDK, and None for any other object. Does not import the SDK."""
    return _kind_of(type(client), sdk)  # type: ignore[arg-type]


@functools.cache
def _kind_of(kind: type, sdk: str) -> ClientKind | None:
    for base in kind.__mro__:
        if base.__module__ == f"{sdk}._base_client" and base.__name__ in _KINDS:
            return _KINDS[base.__name__]
    return None


@explained
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
        client: any client object of openai 1.66 or newer: sync, async, Azure, Bedrock, or your own subclass.
        engine: the server behind it (``vllm``, ``sglang``, ``llama-server``, ``dynamo``, ``fireworks``, ``together``,
            ``openai``). The engine's fields that request token ids and logprobs are added to generation calls; fields
            that the caller set are never overwritten. If the server refuses a field, the call is sent again without it.
            ``auto`` detects the engine by sending requests of its own before the first call. None sends exactly what
            the caller sends. An ``rt.Engine`` asks for more than ids and logprobs: routed experts, prompt logprobs,
            alternatives, sampling masks.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one response as it arrives (64 MiB); a
            decompressed response may be four times as large. Bytes beyond the limit are dropped and counted: the step
            then has the ``token_issue`` ``bytes_left_out``, and no ids.
        logprobs_mode: distribution of the server's logprobs (``raw``, ``processed``, ``constrained``), if the server
            does not use its engine's default; see ``Step.logprobs_mode``. It is recorded for every step, even if a
            grammar was in force.

    Wrapping again only changes the settings. Without ``engine``, ids are no longer requested; this is logged once.

    Raises:
        TypeError: ``client`` is not a client object of the openai SDK, or ``max_call_bytes`` is not an integer.
        ValueError: ``engine`` or ``logprobs_mode`` is unknown, or ``max_call_bytes`` is below 1.
    """
    if logprobs_mode not in (None, "raw", "processed", "constrained"):
        raise ValueError(f"logprobs_mode={logprobs_mode!r} is unknown. Give 'raw', 'processed', 'constrained' or None.")
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


@lru_cache(maxsize=256)
def anthropic_protocol_of(method: str, url: str) -> str | None:
    """The protocol of a request, by the path that the SDK's resources use; None for requests that do not generate.

    Bedrock and Vertex clients rewrite the path, but only after this point.
    """
    return protocol_at("anthropic", method, url)


@explained
def wrap_anthropic(client: C, *, keep_bytes: bool = False, max_call_bytes: int = MAX_CALL_BYTES) -> C:
    """Records every generation call of a client of the anthropic SDK, and of its copies. Returns the same object.

    The client behaves as before and sends the same requests; only ``type(client) is Anthropic`` no longer holds
    (``isinstance`` does). Token counts, batches and agents that run on the server are not recorded.

    Args:
        client: any client object of anthropic 0.60 or newer: sync, async, Bedrock, Vertex, Foundry, AWS, Google Cloud,
            or your own subclass.
        keep_bytes: keep request and response bodies on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one response as it arrives (64 MiB); a
            decompressed response may be four times as large. Bytes beyond the limit are dropped and counted: the step
            then has the ``token_issue`` ``bytes_left_out``, and no ids.

    Wrapping again only changes the settings.

    Raises:
        TypeError: ``client`` is not a client object of the anthropic SDK, or ``max_call_bytes`` is not an integer.
        ValueError: ``max_call_bytes`` is below 1.
    """
    limit = check_call_bytes(max_call_bytes)
    settings = Settings(anthropic_protocol_of, keep_bytes=bool(keep_bytes), max_call_bytes=limit)
    return wrap(client, "anthropic", settings, example="Anthropic")


def wrap(client: C, sdk: str, settings: Settings, *, example: str) -> C:
    """Makes a client record with these settings, which replace any it had. ``example``: the SDK's usual sync class.

    Raises:
        TypeError: not a client object of the SDK.
    """
    if client_kind(client, sdk) is None:
        raise TypeError(
            f"wrap_{sdk}() needs a client object of the {sdk} SDK, such as {example}() or Async{example}(), "
            f"got {client!r:.80}."
        )
    old = stainless.settings_of(client)
    if old is not None and old.engine is not None and settings.engine is None:
        guard.warn_once(
            "wrapped-without-engine",
            f"this client was wrapped with engine={old.engine.name!r}, and is wrapped again without an engine: from "
            "now on its calls do not ask for token ids. Leave the second call out, or give it the engine too.",
        )
    if old is not None and old.trajectory is not None:
        # A bound client stays bound when it is wrapped again.
        settings = replace(settings, trajectory=old.trajectory)
    stainless.swap(client, settings)
    return client


def unwrap(client: C) -> C:
    """Undoes ``wrap_openai`` and the other ``wrap_...`` functions, including ``integration.wrap_httpx``.

    Restores the client's own class and returns the client. Calls in progress are recorded to their end; the class is
    restored when the last of them has ended. A client that is not wrapped is left unchanged.
    """
    # Here: a client that is only wrapped does not load what samplers need.
    from rollout_trace.clients import sampler

    if stainless.settings_of(client) is not None:
        stainless.restore(client)
    elif google.is_recording(client):
        google.stop_recording(client)
    elif sampler.is_recording(client):
        sampler.take_off(client)
    else:
        httpx.stop_recording(client)
    return client


_SDKS = {"openai": protocol_of, "anthropic": anthropic_protocol_of}
"""Those that Stainless generates, with what gives the protocol of a request."""


@explained
def bind(client: C, trajectory: Trajectory) -> C:
    """Returns a copy of the client whose calls are recorded in the trajectory, in any thread or context.

    The copy shares the client's HTTP connections. If the client is not wrapped, the copy gets default settings.

    Raises:
        TypeError: ``client`` is not a client object of the openai or anthropic SDK, or ``trajectory`` is not a
            trajectory.
    """
    sdk = next((sdk for sdk in _SDKS if client_kind(client, sdk) is not None), None)
    if sdk is None:
        raise TypeError(f"bind() needs a client object of the {' or '.join(_SDKS)} SDK, got {client!r:.80}.")
    if not isinstance(trajectory, Trajectory):
        raise TypeError(
            f"bind() needs a Trajectory, got {type(trajectory).__name__}: pass what `with rt.trajectory()` gives."
        )
    copied: Any = client.copy()  # type: ignore[attr-defined]
    # Inherited: also where the client's class is a user's subclass of a recording class.
    settings = stainless.inherited_settings(client) or Settings(_SDKS[sdk])
    # Weak: a client that outlives the run must not keep all its steps alive.
    stainless.swap(copied, replace(settings, trajectory=weakref.ref(trajectory)))
    bound: C = copied
    return bound
