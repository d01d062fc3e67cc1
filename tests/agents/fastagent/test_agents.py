"""fast-agent, which pins the SDKs that it uses and needs Python 3.13."""

from __future__ import annotations

import sys

import pytest

from tests.agents.harness import Agent, EachAgent, each

pytestmark = pytest.mark.skipif(sys.version_info < (3, 13), reason="its releases of today need Python 3.13")


@each(Agent("fast_agent_tools", streams=True, order="after", launch_with_engine=True))
class TestAgents(EachAgent):
    """Recorded, unmodified."""
