"""LlamaIndex; `API` is its model class (`OpenAI`, `OpenAILike`, `Anthropic`), `STREAM` asks for a stream."""

import asyncio
import os
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def model():
    if os.environ["API"] == "Anthropic":
        return Anthropic(model="claude-sonnet-4-5", base_url=os.environ["ANTHROPIC_BASE_URL"])
    if os.environ["API"] == "OpenAI":
        return OpenAI(model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])
    return OpenAILike(
        model=os.environ["MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
    )


async def run(question: str) -> str:
    agent = FunctionAgent(tools=[add], llm=model(), system_prompt="Use the tool.", streaming="STREAM" in os.environ)
    return str(await agent.run(question))


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
