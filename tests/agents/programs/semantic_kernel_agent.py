"""A chat agent of Semantic Kernel; `STREAM` asks for a stream."""

import asyncio
import os
import sys

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Calculator:
    @kernel_function(name="add", description="Adds two numbers.")
    def add(self, a: int, b: int) -> str:
        return f"The sum is {a + b}."


async def run(question: str) -> str:
    agent = ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=os.environ["MODEL"]),
        name="calculator",
        instructions="You add numbers.",
        plugins=[Calculator()],
    )
    if "STREAM" not in os.environ:
        return str(await agent.get_response(messages=question))
    return "".join([str(part) async for part in agent.invoke_stream(messages=question)])


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
