"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="google-adk",
    tested=("2.0", "2.13"),
    module="google.adk",
    start="rollout_trace_google_adk._process:start",
)
