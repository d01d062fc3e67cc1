"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from __future__ import annotations

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="langchain-core",
    tested=("1.2.7", "1.8"),
    module="langchain_core",
    start="rollout_trace_langchain._process:start",
)
