"""Records the agents of Google's ADK: ``record(runner, engine="vllm")``, or ``App(plugins=[RolloutPlugin()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_google_adk._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_google_adk.plugin import RolloutPlugin, record
else:
    __getattr__, __dir__ = lazy_package(__name__, {"plugin": ("RolloutPlugin", "record")}, ABOUT)

__all__ = ["RolloutPlugin", "__version__", "record"]
