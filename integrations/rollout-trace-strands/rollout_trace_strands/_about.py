"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="strands-agents",
    tested=("1.50.1", "1.62"),
    module="strands",
    start="rollout_trace_strands._process:start",
)
