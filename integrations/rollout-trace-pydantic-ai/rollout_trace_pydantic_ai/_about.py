"""Package metadata for ``rt.integrations()``. Must not import the framework."""

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(
    framework="pydantic-ai-slim",
    tested=("2.0", "2.68"),
    module="pydantic_ai",
    start="rollout_trace_pydantic_ai._process:start",
)

EVALS = About(
    framework="pydantic-evals",
    tested=("2.0", "2.62"),
    module="pydantic_evals",
    start="rollout_trace_pydantic_ai.evals:start",
)
