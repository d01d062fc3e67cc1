"""Records what a smolagents agent said to its model: ``record(agent)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace_smolagents._about import __version__

if TYPE_CHECKING:
    from rollout_trace_smolagents._recording import record, unrecord


def __getattr__(name: str) -> Any:
    # The framework is imported when it is first needed: `rt.integrations()` asks this package without it.
    if name not in ("record", "unrecord"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rollout_trace_smolagents import _recording

    return getattr(_recording, name)


def __dir__() -> list[str]:
    return sorted(globals().keys() | {"record", "unrecord"})


__all__ = ["__version__", "record", "unrecord"]
