"""How a wrapped client records. A wrapped class carries its settings, so every copy of a client has them too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.engines.profiles import EngineProfile


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one wrapped class."""

    protocol_of: Callable[[str, str], str | None]
    """From HTTP method and path to the protocol; None for what is no generation."""
    engine: EngineProfile | None = None
    keep_bytes: bool = False
    trajectory: Callable[[], Trajectory | None] | None = None
    """A weak reference to the trajectory the client is bound to; None where the context decides."""
    logprobs_mode: LogprobsMode | None = None
    """What the server's logprobs are of, where its user knows better than the profile of its engine."""


@dataclass(slots=True)
class Refusal:
    """A server's refusal of one field that a profile adds."""

    said: str
    """The status and the message."""
    expires: float
    """When the server is asked again, by ``time.monotonic``."""
