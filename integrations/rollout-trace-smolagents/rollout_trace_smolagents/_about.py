"""The framework, and the releases of it that this integration was tested with. Imports no framework."""

from __future__ import annotations

from rollout_trace.integration import About

__version__ = "0.1.0"

ABOUT = About(framework="smolagents", tested=("1.23", "1.26"))
