"""Records samples of Inspect's evaluations: ``record(model, engine="vllm")``, ``record_evals()``, or the environment.

A plain ``inspect eval`` is recorded if the environment variable ``ROLLOUT_TRACE_INSPECT`` is set to ``1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_inspect._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_inspect.api import record, record_evals
else:
    __getattr__, __dir__ = lazy_package(__name__, {"api": ("record", "record_evals")}, ABOUT)

__all__ = ["__version__", "record", "record_evals"]
