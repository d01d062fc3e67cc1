"""The framework, and the releases of it that this integration was tested with. Imports no framework."""

from rollout_trace.integration import About

ABOUT = About(framework="strands-agents", tested=("1.50.1", "1.62"))
