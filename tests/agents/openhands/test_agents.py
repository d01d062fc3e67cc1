"""The SDK of OpenHands and Atomic Agents, which need Python 3.12, and BeeAI's framework.

Below that, the calls of OpenHands by litellm alone.
"""

from __future__ import annotations

import sys

from tests.agents import models
from tests.agents.harness import Agent, EachAgent, each

IS_NEW = sys.version_info >= (3, 12)
PROGRAM = "openhands_add" if IS_NEW else "litellm_tools"
ATOMIC = [
    Agent("atomic_agent", model=models.structured, launch_with_engine=True),
    Agent("atomic_agent", model=models.structured, streams=True, environment={"STREAM": "1"}, order="after"),
]


@each(
    Agent(PROGRAM, environment={"LITELLM_ROUTE": "openai/"}),
    Agent(PROGRAM, environment={"LITELLM_ROUTE": "hosted_vllm/", "STREAM": "1"}, streams=True, order="after"),
    Agent("beeai_agent", model=models.items, launch_with_engine=True),
    *(ATOMIC if IS_NEW else []),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
