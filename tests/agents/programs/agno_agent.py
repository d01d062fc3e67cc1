"""agno; `API` is its model class (`OpenAIChat`, `OpenAIResponses`, `VLLM`, `Claude`), `STREAM` asks for a stream."""

import os
import sys

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.openai import OpenAIChat, OpenAIResponses
from agno.models.vllm import VLLM


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def model():
    name = os.environ["MODEL"]
    if os.environ["API"] == "VLLM":
        return VLLM(id=name, base_url=os.environ["OPENAI_BASE_URL"], api_key="none")
    return {"OpenAIChat": OpenAIChat, "OpenAIResponses": OpenAIResponses, "Claude": Claude}[os.environ["API"]](id=name)


def run(question: str) -> str:
    agent = Agent(model=model(), tools=[add], instructions="Use the tool.", telemetry=False)
    if "STREAM" not in os.environ:
        return agent.run(question).content
    return "".join(event.content or "" for event in agent.run(question, stream=True))


if __name__ == "__main__":
    print(run(sys.argv[1]))
