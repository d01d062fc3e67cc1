"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from __future__ import annotations

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="smolagents",
    tested=("1.23", "1.26"),
    module="smolagents",
    start="rollout_trace_smolagents._process:start",
)
