"""haystack; `API` is the model's (`chat`, `responses`, `anthropic`), `STREAM` asks for a stream."""

import os
import sys

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

GENERATORS = {
    "chat": OpenAIChatGenerator,
    "responses": OpenAIResponsesChatGenerator,
    "anthropic": AnthropicChatGenerator,
}


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def seen(chunk) -> None:
    """What a user interface would show."""


def run(question: str) -> str:
    generator = GENERATORS[os.environ["API"]](model=os.environ["MODEL"])
    agent = Agent(chat_generator=generator, tools=[add], system_prompt="Use the tool.")
    callback = seen if "STREAM" in os.environ else None
    return agent.run(messages=[ChatMessage.from_user(question)], streaming_callback=callback)["messages"][-1].text


if __name__ == "__main__":
    print(run(sys.argv[1]))
