"""Checks for the clients inside a framework's models, and for the engines behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from rollout_trace.clients import google, stainless
from rollout_trace.clients.sdks import client_kind, wrap_anthropic, wrap_openai
from rollout_trace.record import state
from rollout_trace.wire.engine import resolve

if TYPE_CHECKING:
    from rollout_trace.record.settings import Settings
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName


def is_recorded(client: object, *, by_hand: bool = False) -> bool:
    """Returns whether the calls of a client of the openai or anthropic SDK are recorded.

    Check this before wrapping a client: wrapping again would replace its settings, such as those of a user who wrapped
    it.

    Args:
        client: the client.
        by_hand: True counts only ``wrap_openai`` and ``wrap_anthropic``, and not what records the whole process:
            ``rt.instrument()``, ``rollout-trace run``, the pytest plugin. An integration with an ``engine`` must also
            wrap clients of an instrumented process, since otherwise no ids are requested.
    """
    settings = stainless.settings_of(client)
    if settings is None:
        return (
            not by_hand
            and is_left_to_process(None)
            and any(client_kind(client, sdk) is not None for sdk in ("openai", "anthropic"))
        )
    return not (by_hand and settings.source is not None)


def is_left_to_process(engine: object) -> bool:
    """Returns whether clients without their own settings use the process's: it is instrumented, and no engine is given.

    A client made before ``rt.instrument()`` gets the process's settings with its next request. If it were wrapped
    without an engine, no ids would be requested.
    """
    return engine is None and state.is_instrumented()


def record_client(client: Any, *, engine: EngineName | Engine | None = None, keep_bytes: bool = False) -> bool:
    """Starts recording a client that a framework's model holds. May be called before each model call.

    A client that already records keeps the settings that its user or the process chose. With ``engine``, a client of
    OpenAI's SDK gets this engine.

    Args:
        client: any object; a client of the openai or anthropic SDK, or of google-genai.
        engine: the server behind a client of OpenAI's SDK, see ``rollout_trace.wrap_openai``; not used for others.
        keep_bytes: keep request and response bodies on the steps.

    Returns:
        Whether its calls are recorded; False for any other object.
    """
    if client_kind(client, "openai") is not None:
        settings = stainless.settings_of(client)
        is_kept = settings is not None and (engine is None or _has(settings, engine, keep_bytes))
        if not is_kept and not (settings is None and is_left_to_process(engine)):
            wrap_openai(client, engine=engine, keep_bytes=keep_bytes)
        return True
    if client_kind(client, "anthropic") is not None:
        if not is_recorded(client):
            wrap_anthropic(client, keep_bytes=keep_bytes)
        return True
    if google.api_client_of(client) is None:
        return False
    if not google.is_recording(client):
        google.wrap_google(client, keep_bytes=keep_bytes)
    return True


def _has(settings: Settings, engine: EngineName | Engine, keep_bytes: bool) -> bool:
    """Whether these are exactly a client's settings, from its user or an integration and not from the whole process."""
    found = (settings.engine, settings.wishes)
    return settings.source is None and found == resolve(engine) and settings.keep_bytes == keep_bytes


@overload
def check_engine(engine: str | None) -> EngineName | None: ...


@overload
def check_engine(engine: str | Engine | None) -> EngineName | Engine | None: ...


def check_engine(engine: str | Engine | None) -> EngineName | Engine | None:
    """Checks an ``engine`` argument, a name or an ``rt.Engine``, and returns it, typed for ``wrap_openai``.

    Call it where the user passes the engine, since the client may be wrapped much later, inside a run.

    Raises:
        ValueError: the engine is unknown; the message lists the known ones.
    """
    resolve(engine)
    return cast("EngineName | Engine | None", engine)
