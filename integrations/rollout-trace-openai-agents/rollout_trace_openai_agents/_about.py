"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from rollout_trace.integration import About

ABOUT = About(framework="openai-agents", tested=("0.18.2", "0.24"))
