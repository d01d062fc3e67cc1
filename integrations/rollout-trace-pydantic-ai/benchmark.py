"""What the hook adds to a model call: CPU time of runs, recorded and not, in the same process.

    python benchmark.py [--rounds 60]

Both ask the server for the same; runs of the two alternate. The budget is 1.03. The last two cases
divide what is added: beside a client that is wrapped without the hook, and what a capability that does nothing adds.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from openai import AsyncOpenAI
from paired import Case, adding_server, report
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import rollout_trace as rt
from rollout_trace_pydantic_ai import RolloutCapability, record

TURNS = 3
ASKED: Any = {"extra_body": {"logprobs": True, "return_token_ids": True}}

Run = Callable[[], Awaitable[object]]


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


class Idle(AbstractCapability[Any]):
    """A capability that passes everything on."""

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        return await handler()

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        return await handler(args)


async def ignore(_: Any, events: Any) -> None:
    async for _ in events:
        pass


def agent_of(client: AsyncOpenAI, **options: Any) -> Agent[None, str]:
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client))
    return Agent(model, tools=[add], model_settings=ASKED, **options)


def once(agent: Agent[None, str], streamed: bool) -> Run:
    return lambda: agent.run("Add.", event_stream_handler=ignore if streamed else None)


def in_trajectory(run: Run) -> Run:
    async def run_and_drop() -> None:
        with rt.trajectory():
            await run()

    return run_and_drop


async def measure(rounds: int) -> None:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(adding_server(TURNS))
        clients = [AsyncOpenAI(base_url=f"{url}/v1", api_key="none") for _ in range(5)]
        for client in clients:
            await stack.enter_async_context(client)
        bare, idle, wrapped = agent_of(clients[0]), agent_of(clients[1], capabilities=[Idle()]), agent_of(clients[2])
        rt.wrap_openai(clients[2], engine="vllm")
        recorded = record(agent_of(clients[3]), engine="vllm")
        capable = agent_of(clients[4], capabilities=[RolloutCapability(engine="vllm")])
        cases = [
            Case("stream", once(bare, True), in_trajectory(once(recorded, True))),
            Case("unstreamed", once(bare, False), in_trajectory(once(recorded, False))),
            Case("capability, unstreamed", once(bare, False), in_trajectory(once(capable, False))),
            Case("beside a wrapped client", in_trajectory(once(wrapped, False)), in_trajectory(once(capable, False))),
            Case("an idle capability alone", once(bare, False), once(idle, False)),
        ]
        await report("pydantic-ai", cases, calls=TURNS, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the hook adds to a model call.")
    parser.add_argument("--rounds", type=int, default=60)
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
