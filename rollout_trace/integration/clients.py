"""Checks for the clients inside a framework's models, and for the engines behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, overload

from rollout_trace.clients import stainless
from rollout_trace.engines.engine import resolve

if TYPE_CHECKING:
    from rollout_trace.engines.engine import Engine
    from rollout_trace.engines.profiles import EngineName


def is_recorded(client: object) -> bool:
    """Whether a client was wrapped by ``wrap_openai`` or ``wrap_anthropic`` and not unwrapped since.

    Check it before wrapping a client: wrapping again would replace the settings of the user who wrapped it.
    """
    return stainless.settings_of(client) is not None


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
