"""What this integration says of itself; imports no framework."""

from rollout_trace.integration import About

ABOUT = About(framework="strands-agents", tested=("1.50.1", "1.62"))
