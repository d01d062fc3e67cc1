"""Frameworks that use the SDKs of OpenAI and Anthropic, at today's releases of both."""

from __future__ import annotations

from tests.agents.harness import Agent, EachAgent, each
from tests.agents.kinds import apis

CHAT, RESPONSES, MESSAGES = "openai.chat", "openai.responses", "anthropic.messages"
GOOGLE = "google.generate_content"


@each(
    *apis("openai_agents_sdk", {"chat": CHAT, "responses": RESPONSES}),
    *apis("pydantic_ai_agent", {"openai-chat": CHAT, "openai-responses": RESPONSES}),
    *apis("pydantic_ai_agent", {"anthropic": MESSAGES, "google": GOOGLE}),
    *apis("agno_agent", {"OpenAIChat": CHAT, "VLLM": CHAT, "OpenAIResponses": RESPONSES, "Claude": MESSAGES}),
    Agent("agno_async", streams=True),
    *apis("haystack_agent", {"chat": CHAT, "responses": RESPONSES, "anthropic": MESSAGES}),
    *apis("agent_framework_agent", {"chat": CHAT, "responses": RESPONSES}),
    *apis("inspect_ai_loop", {"openai/": CHAT, "openai-api/vllm/": CHAT, "anthropic/": MESSAGES}),
    Agent("inspect_ai_eval", at_once=False),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
