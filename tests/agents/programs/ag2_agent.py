"""An agent of AG2; `STREAM` asks for a stream."""

import asyncio
import os
import sys

from ag2 import Agent, tool
from ag2.config import OpenAIConfig


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    config = OpenAIConfig(model=os.environ["MODEL"], base_url=os.environ["MODEL_URL"], streaming="STREAM" in os.environ)
    agent = Agent("calculator", prompt="You add numbers.", config=config, tools=[add])
    reply = await agent.ask(question)
    return str(reply.body)


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
