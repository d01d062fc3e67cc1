"""The settings that a client, or a process, records with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineProfile

MAX_CALL_BYTES = 64 * 1024 * 1024
"""The default of ``Settings.max_call_bytes``."""


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
    max_call_bytes: int = MAX_CALL_BYTES
    """Most bytes that are kept of a request body, and of a response body as it arrives."""
    wishes: Engine | None = None
    """What is asked for beside ids and logprobs; None where nothing is. With ``auto``, of whatever engine is found."""
    source: Callable[[Callable[[], object]], Settings | None] | None = None
    """Where the settings in force are looked up when a call begins, from what returns the server's address; None: these
    are. It returns None where nothing is recorded. For clients that are recorded because the process is."""
    is_http: bool = False
    """Whether calls are requests of an HTTP library. What is sent again with the same bytes is a retry then: no SDK
    shows which requests are one call."""
    is_guess: bool = False
    """Whether a request was taken for a call by its path and its body alone. One whose answer is none is dropped."""
    quiet: bool = False
    """Whether wishes that cannot be met are not warned of: those of test calls."""


def check_call_bytes(value: object) -> int:
    """Checks a ``max_call_bytes`` argument and returns it.

    Raises:
        TypeError: no whole number.
        ValueError: below 1.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"max_call_bytes={value!r:.80}: expected a whole number of bytes, such as 64 * 1024 * 1024.")
    if value < 1:
        raise ValueError(f"max_call_bytes={value}: expected at least 1 byte; the default is {MAX_CALL_BYTES:,}.")
    return value
