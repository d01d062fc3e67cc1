"""Google's ADK, LlamaIndex and AutoGen."""

from __future__ import annotations

from tests.agents.harness import EachAgent, each
from tests.agents.kinds import apis

CHAT, MESSAGES = "openai.chat", "anthropic.messages"


@each(
    # Each start of it takes many seconds; the other routes of litellm have cases in tests/agents/litellm.
    *apis("google_adk_agent", {"openai/": CHAT, "gemini": "google.generate_content"}),
    *apis("google_adk_agent", {"hosted_vllm/": CHAT, "anthropic/": MESSAGES})[1::2],
    *apis("llama_index_agent", {"OpenAI": CHAT, "OpenAILike": CHAT, "Anthropic": MESSAGES}),
    *apis("autogen_assistant", {"chat": CHAT, "anthropic": MESSAGES}),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
