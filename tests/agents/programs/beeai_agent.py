"""An agent of the BeeAI framework, over litellm."""

import asyncio
import os
import sys

from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.backend import ChatModel
from beeai_framework.tools import tool


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    model = ChatModel.from_name(f"openai:{os.environ['MODEL']}", base_url=os.environ["MODEL_URL"], api_key="none")
    agent = RequirementAgent(llm=model, tools=[add])
    return (await agent.run(question)).last_message.text


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
