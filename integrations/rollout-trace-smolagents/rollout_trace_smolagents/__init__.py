"""Records smolagents' agents, token for token: ``record(agent)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_smolagents._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_smolagents._recording import record, unrecord
else:
    __getattr__, __dir__ = lazy_package(__name__, {"_recording": ("record", "unrecord")}, ABOUT)

__all__ = ["__version__", "record", "unrecord"]
