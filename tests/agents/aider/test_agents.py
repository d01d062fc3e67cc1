"""aider, which pins each of its packages."""

from __future__ import annotations

from tests.agents import models
from tests.agents.harness import Agent, EachAgent, each


@each(
    Agent("aider_coder", model=models.whole_file, launch_with_engine=True),
    Agent("aider_coder", model=models.whole_file, streams=True, environment={"STREAM": "1"}, order="after"),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
