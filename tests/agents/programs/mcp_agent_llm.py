"""An agent of mcp-agent with a function of its own; `API` is the SDK below it."""

import asyncio
import os
import sys

from mcp_agent.agents.agent import Agent
from mcp_agent.app import MCPApp
from mcp_agent.config import AnthropicSettings, LoggerSettings, OpenAISettings, Settings
from mcp_agent.workflows.llm.augmented_llm import RequestParams


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    if os.environ["API"] == "anthropic":
        from mcp_agent.workflows.llm.augmented_llm_anthropic import AnthropicAugmentedLLM as LLM
    else:
        from mcp_agent.workflows.llm.augmented_llm_openai import OpenAIAugmentedLLM as LLM
    settings = Settings(
        execution_engine="asyncio",
        logger=LoggerSettings(transports=["none"], progress_display=False),
        openai=OpenAISettings(api_key="none", base_url=os.environ["OPENAI_BASE_URL"], default_model="scripted"),
        anthropic=AnthropicSettings(api_key="none", base_url=os.environ["ANTHROPIC_BASE_URL"]),
    )
    async with MCPApp(name="calculator", settings=settings).run():
        agent = Agent(name="calculator", instruction="You add numbers.", functions=[add])
        async with agent:
            llm = await agent.attach_llm(LLM)
            said = await llm.generate_str(question, RequestParams(model=os.environ["MODEL"]))
            # With Anthropic's SDK the calls of tools are told too, a line each.
            return said.splitlines()[-1]


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
