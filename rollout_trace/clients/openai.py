"""Recording in the client objects of the openai SDK."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, TypeVar

from rollout_trace.clients import seam
from rollout_trace.clients.settings import Settings
from rollout_trace.engines import profile
from rollout_trace.trajectories import Trajectory

C = TypeVar("C")

_SUFFIXES = (
    ("/chat/completions", "openai.chat"),
    ("/completions", "openai.completions"),
    ("/responses", "openai.responses"),
)


def protocol_of(method: str, url: str) -> str | None:
    """The protocol of a request, by the path that the SDK's resources use; None for what does not generate."""
    if method.lower() != "post":
        return None
    path = url.partition("?")[0].rstrip("/")
    return next((protocol for suffix, protocol in _SUFFIXES if path.endswith(suffix)), None)


def wrap_openai(client: C, *, engine: str | None = None, keep_bytes: bool = False) -> C:
    """Records every generation call of a client of the openai SDK, and of its copies. Gives the same object back.

    The client stays what it was for its user; only ``type(client) is OpenAI`` no longer holds (``isinstance`` does).
    WebSocket surfaces (``realtime``, ``live``, ``responses.connect``) are not recorded.

    Args:
        client: any client object of openai 1.66 or newer: sync, async, Azure, Bedrock, a subclass of the user's.
        engine: the server behind it (``vllm``): asks it for token ids and logprobs, in generation calls only and never
            over what the caller set. None sends exactly what the caller sends.
        keep_bytes: keep request and response bodies on the steps.

    Wrapping again only changes the settings.

    Raises:
        TypeError: not a client object of the openai SDK.
        ValueError: the engine is not known.
    """
    kind = _client_kind(client)
    seam.swap(client, Settings(protocol_of, profile(engine), bool(keep_bytes)), is_async=kind == "AsyncAPIClient")
    return client


def unwrap(client: C) -> C:
    """Undoes ``wrap_openai``: the client has its own class again. What is not wrapped stays as it is."""
    if seam.settings_of(client) is not None:
        client.__class__ = seam.plain_class(client)
    return client


def bind(client: C, trajectory: Trajectory) -> C:
    """A copy of the client whose calls belong to the trajectory, whatever the context. It shares the HTTP connections.

    A client that is not wrapped gives a copy that is, with ``engine=None``.

    Raises:
        TypeError: not a client object of the openai SDK, or not a trajectory.
    """
    kind = _client_kind(client)
    if not isinstance(trajectory, Trajectory):
        raise TypeError(
            f"bind() needs a Trajectory, got {type(trajectory).__name__}: pass what `with rt.trajectory()` gives."
        )
    copied: Any = client.copy()  # type: ignore[attr-defined]
    settings = seam.settings_of(client) or Settings(protocol_of)
    seam.swap(copied, replace(settings, trajectory=weakref.ref(trajectory)), is_async=kind == "AsyncAPIClient")
    bound: C = copied
    return bound


def _client_kind(client: object) -> str:
    for kind in type(client).__mro__:
        if kind.__module__ == "openai._base_client" and kind.__name__ in ("SyncAPIClient", "AsyncAPIClient"):
            return kind.__name__
    raise TypeError(
        f"wrap_openai() needs a client object of the openai SDK, such as OpenAI() or AsyncOpenAI(), got {client!r:.80}."
    )


__all__ = ["bind", "protocol_of", "unwrap", "wrap_openai"]
