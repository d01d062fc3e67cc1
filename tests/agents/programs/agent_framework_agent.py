"""Microsoft's Agent Framework; `API` is the model's (`chat`, `responses`), `STREAM` asks for a stream."""

import asyncio
import os
import sys

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

CLIENTS = {"responses": OpenAIChatClient, "chat": OpenAIChatCompletionClient}
# Without it, the server would have to keep the conversation.
OPTIONS = {"store": False} if os.environ["API"] == "responses" else {}


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    client = CLIENTS[os.environ["API"]](model=os.environ["MODEL"])
    agent = Agent(client, "Use the tool.", tools=[add], default_options=OPTIONS)
    if "STREAM" not in os.environ:
        return (await agent.run(question)).text
    stream = agent.run(question, stream=True)
    async for _ in stream:
        pass
    return (await stream.get_final_response()).text


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
