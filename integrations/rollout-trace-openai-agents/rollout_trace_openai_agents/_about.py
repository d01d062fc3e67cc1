"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="openai-agents",
    tested=("0.18.2", "0.24"),
    module="agents",
    start="rollout_trace_openai_agents._process:start",
)
