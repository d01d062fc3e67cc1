"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="inspect-ai",
    tested=("0.3.230", "0.3.285"),
    module="inspect_ai",
    start="rollout_trace_inspect._process:start",
)
