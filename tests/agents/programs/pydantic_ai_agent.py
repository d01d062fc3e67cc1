"""pydantic-ai; `API` is the model's prefix (`openai-chat`, `anthropic`, `google`, …), `STREAM` asks for a stream."""

import asyncio
import os
import sys

from pydantic_ai import Agent


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    agent = Agent(f"{os.environ['API']}:{os.environ['MODEL']}", instructions="Use the tool.", tools=[add])
    if "STREAM" not in os.environ:
        return (await agent.run(question)).output
    async with agent.run_stream(question) as result:
        return await result.get_output()


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
