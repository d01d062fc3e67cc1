"""CrewAI, with its own clients for OpenAI's API and for those like it, and mirascope, which needs the same SDK."""

from __future__ import annotations

from tests.agents.harness import EachAgent, each
from tests.agents.kinds import apis


@each(
    *apis("crewai_crew", {"openai/": "openai.chat", "hosted_vllm/": "openai.chat"}),
    # `openai` alone is the Responses API.
    *apis("mirascope_loop", {"openai": "openai.responses"}),
    *apis("mirascope_loop", {"openai:completions": "openai.chat"}),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
