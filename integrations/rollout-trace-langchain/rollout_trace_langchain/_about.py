"""The framework, and the releases of it that this integration was tested with. Imports no framework."""

from __future__ import annotations

from rollout_trace.integration import About

ABOUT = About(framework="langchain-core", tested=("1.2.7", "1.8"))
