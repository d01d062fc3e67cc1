"""AutoGen's AssistantAgent; `API` is the model's (`chat`, `anthropic`), `STREAM` asks for a stream."""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient

CLIENTS = {"chat": OpenAIChatCompletionClient, "anthropic": AnthropicChatCompletionClient}
INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "family": "unknown",
    "structured_output": True,
}


async def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    client = CLIENTS[os.environ["API"]](model=os.environ["MODEL"], model_info=INFO)
    agent = AssistantAgent(
        "calculator",
        client,
        tools=[add],
        system_message="Use the tool.",
        model_client_stream="STREAM" in os.environ,
        reflect_on_tool_use=True,
    )
    result = await agent.run(task=question)
    await client.close()
    return result.messages[-1].content


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
