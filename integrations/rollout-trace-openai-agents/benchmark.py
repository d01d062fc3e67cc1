"""What the recording adds to a model call: CPU time, beside the bare framework in the same process.

    python benchmark.py [--rounds 60]

All ask the server for the same. Beside the bare framework, the cost is that of the core's recording and decoding too;
that of the integration alone, whose budget is 1.03, is seen beside a framework whose client is wrapped.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from paired import Case, adding_server, report

import rollout_trace as rt
from rollout_trace_openai_agents import record

TURNS = 4
ASKED = ModelSettings(extra_body={"logprobs": True, "return_token_ids": True})


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def agent_with(base_url: str, settings: ModelSettings) -> Agent[Any]:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    model = OpenAIChatCompletionsModel("scripted", client)
    return Agent(name="adder", instructions="You add.", model=model, model_settings=settings, tools=[add])


def one_run(agent: Agent[Any], is_streamed: bool) -> Callable[[], Awaitable[object]]:
    async def unstreamed() -> None:
        await Runner.run(agent, "Add.")

    async def streamed() -> None:
        async for _ in Runner.run_streamed(agent, "Add.").stream_events():
            pass

    return streamed if is_streamed else unstreamed


def inside_a_trajectory(run: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    async def recorded() -> None:
        with rt.trajectory():
            await run()

    return recorded


async def measure(base_url: str, rounds: int) -> None:
    bare, wrapped = agent_with(base_url, ASKED), agent_with(base_url, ModelSettings())
    rt.wrap_openai(wrapped.model._client, engine="vllm")  # type: ignore[union-attr]
    recorded = record(agent_with(base_url, ModelSettings()), engine="vllm")
    cases = []
    for name, is_streamed in (("stream", True), ("unstreamed", False)):
        run = inside_a_trajectory(one_run(recorded, is_streamed))
        before = inside_a_trajectory(one_run(wrapped, is_streamed))
        cases += [Case(name, one_run(bare, is_streamed), run), Case(f"{name}, of a wrapped client", before, run)]
    await report("openai-agents", cases, calls=TURNS, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the recording adds to a model call.")
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    set_tracing_disabled(True)
    with adding_server(TURNS) as url:
        asyncio.run(measure(f"{url}/v1", rounds))


if __name__ == "__main__":
    main()
