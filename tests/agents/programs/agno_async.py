"""agno in an event loop, its events streamed."""

import asyncio
import os
import sys

from agno.agent import Agent
from agno.models.openai import OpenAIChat


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    agent = Agent(model=OpenAIChat(id=os.environ["MODEL"]), tools=[add], instructions="Use the tool.", telemetry=False)
    return "".join([event.content or "" async for event in agent.arun(question, stream=True)])


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
