"""fast-agent with a function as a tool. It asks its model for streams alone."""

import asyncio
import os
import sys

from fast_agent import FastAgent


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    fast = FastAgent("calculator", parse_cli_args=False, quiet=True)

    @fast.agent(instruction="You add numbers.", function_tools=[add], model=f"generic.{os.environ['MODEL']}")
    async def main() -> str:
        async with fast.run() as agent:
            return await agent.send(question)

    return await main()


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
