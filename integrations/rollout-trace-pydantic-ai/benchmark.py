"""What the hook adds to a model call: CPU time, beside the bare framework in the same process.

    python benchmark.py [--rounds 60]

Both ask the server for the same; runs of the two alternate. The budget is 1.03.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from openai import AsyncOpenAI
from paired import Case, adding_server, report
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import rollout_trace as rt
from rollout_trace_pydantic_ai import RolloutCapability, record

TURNS = 3
ASKED: Any = {"extra_body": {"logprobs": True, "return_token_ids": True}}


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def agent_of(client: AsyncOpenAI, **options: Any) -> Agent[None, str]:
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client))
    return Agent(model, tools=[add], model_settings=ASKED, **options)


def case(name: str, bare: Agent[None, str], recorded: Agent[None, str], streamed: bool) -> Case:
    async def ignore(_: Any, events: Any) -> None:
        async for _ in events:
            pass

    async def run(agent: Agent[None, str]) -> None:
        await agent.run("Add.", event_stream_handler=ignore if streamed else None)

    async def run_recorded() -> None:
        with rt.trajectory():
            await run(recorded)

    return Case(name, lambda: run(bare), run_recorded)


async def measure(rounds: int) -> None:
    with adding_server(TURNS) as url:
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as bare,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as one,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as other,
        ):
            by_record = record(agent_of(one), engine="vllm")
            by_capability = agent_of(other, capabilities=[RolloutCapability(engine="vllm")])
            cases = [
                case(f"{how}, {'stream' if streamed else 'unstreamed'}", agent_of(bare), recorded, streamed)
                for how, recorded in (("record()", by_record), ("capability", by_capability))
                for streamed in (True, False)
            ]
            await report("pydantic-ai", cases, calls=TURNS, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the hook adds to a model call.")
    parser.add_argument("--rounds", type=int, default=60)
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
