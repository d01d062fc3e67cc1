"""The SDK of OpenHands, which needs Python 3.12; below that, the same calls by litellm alone."""

from __future__ import annotations

import sys

from tests.agents.harness import Agent, EachAgent, each

PROGRAM = "openhands_add" if sys.version_info >= (3, 12) else "litellm_tools"


@each(
    Agent(PROGRAM, environment={"LITELLM_ROUTE": "openai/"}),
    Agent(PROGRAM, environment={"LITELLM_ROUTE": "hosted_vllm/", "STREAM": "1"}, streams=True, order="after"),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
