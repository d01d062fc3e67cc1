"""Frameworks that fit in one environment, beside the newest SDK of OpenAI."""

from __future__ import annotations

from tests.agents import models
from tests.agents.harness import Agent, EachAgent, each
from tests.agents.kinds import STREAM, apis

CHAT, MESSAGES = "openai.chat", "anthropic.messages"


def whole_and_streamed(program: str, **options: object) -> list[Agent]:
    """A program with whole answers, and with streamed ones."""
    return [
        Agent(program, **options),  # type: ignore[arg-type]
        Agent(program, streams=True, environment=STREAM, order="after", launch_with_engine=True, **options),  # type: ignore
    ]


@each(
    *apis("deepagents_agent", {"openai": CHAT, "anthropic": MESSAGES}),
    *whole_and_streamed("ag2_agent"),
    *whole_and_streamed("semantic_kernel_agent"),
    *whole_and_streamed("griptape_agent"),
    Agent("magentic_chain", streams=True, launch_with_engine=True),
    Agent("magentic_chain", streams=True, environment=STREAM, order="after"),
    Agent("guidance_gen", streams=True, model=models.terms, launch_with_engine=True),
    *whole_and_streamed("outlines_types", model=models.typed),
    *whole_and_streamed("upsonic_agent"),
    *apis("mcp_agent_llm", {"openai": CHAT, "anthropic": MESSAGES}, streams=False),
    Agent("qwen_agent_assistant", streams=True, model=models.qwen, launch_with_engine=True),
    *whole_and_streamed("llm_chain"),
    # Of a model that litellm does not know, it asks for no tools.
    Agent("swarms_agent", environment={"MODEL": "gpt-4o"}),
    Agent("nanobot_sdk", streams=True, model=models.listing, order="after", launch_with_engine=True),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
