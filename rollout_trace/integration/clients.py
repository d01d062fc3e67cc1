"""What an integration asks about the clients inside its framework's models, and about the engines behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rollout_trace.clients import stainless
from rollout_trace.engines.profiles import profile

if TYPE_CHECKING:
    from rollout_trace.engines.profiles import EngineName


def is_recorded(client: object) -> bool:
    """True for a client that was wrapped by ``wrap_openai`` or ``wrap_anthropic`` and not unwrapped since.

    A client that its user wrapped has the user's settings: wrapping it again would replace them.
    """
    return stainless.settings_of(client) is not None


def check_engine(engine: str | None) -> EngineName | None:
    """An ``engine=`` as ``wrap_openai`` takes it, checked where the user gives it: a client may be wrapped much later.

    Raises:
        ValueError: no engine of that name is known; the message lists those that are.
    """
    profile(engine)
    return cast("EngineName | None", engine)
