"""Checks for the clients inside a framework's models, and for the engines behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, overload

from rollout_trace.clients import stainless
from rollout_trace.engines.engine import resolve

if TYPE_CHECKING:
    from rollout_trace.engines.engine import Engine
    from rollout_trace.engines.profiles import EngineName


def is_recorded(client: object, *, by_hand: bool = False) -> bool:
    """Whether the calls of a client of the openai or anthropic SDK are recorded.

    Check it before wrapping a client: wrapping again would replace the settings that it has, as of the user who wrapped
    it.

    Args:
        client: the client.
        by_hand: whether only ``wrap_openai`` and ``wrap_anthropic`` count, and not what records the whole process:
            ``rt.instrument()``, ``rollout-trace run``, the pytest plugin. An integration that was given an engine must
            wrap a client of an instrumented process, which is asked for no ids otherwise.
    """
    settings = stainless.settings_of(client)
    return settings is not None and not (by_hand and settings.source is not None)


@overload
def check_engine(engine: str | None) -> EngineName | None: ...


@overload
def check_engine(engine: str | Engine | None) -> EngineName | Engine | None: ...


def check_engine(engine: str | Engine | None) -> EngineName | Engine | None:
    """Checks an ``engine`` argument, a name or an ``rt.Engine``, and returns it, typed for ``wrap_openai``.

    To be called where the user passes the engine: the client may be wrapped much later, inside a run.

    Raises:
        ValueError: unknown engine; the message lists the known ones.
    """
    resolve(engine)
    return cast("EngineName | Engine | None", engine)
