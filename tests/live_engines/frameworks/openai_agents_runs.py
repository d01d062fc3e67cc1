"""Runs of an agent of the OpenAI Agents SDK that is asked to call its tool: ``BASE_URL MODEL FILE RUNS``."""

import asyncio
import sys

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import rollout_trace as rt
from rollout_trace_openai_agents import record

BASE_URL, MODEL, FILE, RUNS = sys.argv[1:]
set_tracing_disabled(True)


@function_tool
def add() -> str:
    """Adds two numbers. Without arguments: a random model would write endless ones."""
    return "The sum is 3."


async def main() -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=300) as client:
        agent = Agent(
            name="adder",
            instructions="Add.",
            tools=[add],
            model=OpenAIChatCompletionsModel(MODEL, client),
            # After the first turn the SDK itself lets the model choose.
            model_settings=ModelSettings(tool_choice="add", max_tokens=24, temperature=1.0),
        )
        record(agent, engine="vllm")

        async def run(number: int) -> None:
            with rt.trajectory(task=f"sum/{number}"):
                result = Runner.run_streamed(agent, f"Add {number}.") if number % 2 else None
                if result is None:
                    await Runner.run(agent, f"Add {number}.", max_turns=3)
                    return
                async for _ in result.stream_events():
                    pass

        await asyncio.gather(*map(run, range(int(RUNS))))


if __name__ == "__main__":
    with rt.recording(FILE):
        asyncio.run(main())
