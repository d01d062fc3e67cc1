"""Runs of an agent of Pydantic AI that is asked to call its tool: ``BASE_URL MODEL FILE RUNS``."""

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

import rollout_trace as rt
from rollout_trace_pydantic_ai import record

BASE_URL, MODEL, FILE, RUNS = sys.argv[1:]


async def add() -> str:
    """Adds two numbers. Without arguments: a random model would write endless ones."""
    return "The sum is 3."


def settings(context: RunContext[None]) -> ModelSettings:
    """The first turn has to call the tool."""
    choice = {"type": "function", "function": {"name": "add"}} if context.run_step <= 1 else "none"
    return ModelSettings(max_tokens=24, temperature=1.0, extra_body={"tool_choice": choice})


async def main() -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=300) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = record(Agent(model, name="adder", tools=[add], model_settings=settings), engine="vllm")

        async def run(number: int) -> None:
            with rt.trajectory(task=f"sum/{number}"):
                if number % 2 == 0:
                    await agent.run(f"Add {number}.")
                    return
                async with agent.run_stream(f"Add {number}.") as result:
                    async for _ in result.stream_text():
                        pass

        await asyncio.gather(*map(run, range(int(RUNS))))


if __name__ == "__main__":
    with rt.recording(FILE):
        asyncio.run(main())
