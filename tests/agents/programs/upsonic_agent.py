"""An agent of Upsonic; `STREAM` asks for a stream."""

import asyncio
import os
import sys

from upsonic import Agent, Task
from upsonic.models.openai import OpenAIChatModel
from upsonic.tools import tool


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    agent = Agent(OpenAIChatModel(os.environ["MODEL"]), print=False)
    task = Task(question, tools=[add])
    if "STREAM" not in os.environ:
        return str(await agent.do_async(task))
    return "".join([part async for part in agent.astream(task)])


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
