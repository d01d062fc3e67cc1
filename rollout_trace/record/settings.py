"""Settings of a wrapped client. They live on its recording class, so that copies of the client have them too."""

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
    """From HTTP method and path to the protocol; None for requests that do not generate."""
    engine: EngineProfile | None = None
    """The engine whose capture fields are added to requests; None sends what the caller sends."""
    keep_bytes: bool = False
    """Whether steps keep the request and response bodies."""
    trajectory: Callable[[], Trajectory | None] | None = None
    """Weak reference to the trajectory that the client is bound to; None if the context decides."""
    logprobs_mode: LogprobsMode | None = None
    """Distribution of the server's logprobs, if the user set it: it overrides the default of the engine."""


@dataclass(slots=True)
class Refusal:
    """A server's refusal of one field that a profile adds."""

    message: str
    """HTTP status and error message of the server."""
    expires: float
    """When the field is sent again, as ``time.monotonic`` seconds."""
