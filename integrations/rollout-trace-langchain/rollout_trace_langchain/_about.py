"""What this integration says of itself; its framework is not imported for it."""

from __future__ import annotations

from rollout_trace.integration import About

ABOUT = About(framework="langchain-core", tested=("1.2.7", "1.8"))
