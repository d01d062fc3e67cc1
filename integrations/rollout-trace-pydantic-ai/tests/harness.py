"""What the tests share: models that scripts answer for, agents, and the ways to run them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any, TypeVar

from openai import AsyncOpenAI
from oracle import said
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import rollout_trace as rt
from rollout_trace import Step
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_pydantic_ai import record

T = TypeVar("T")

INSTRUCTIONS = "You add numbers."
RELEASE = tuple(int(number) for number in metadata.version("pydantic-ai-slim").split(".")[:2])


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def fail(reason: str) -> str:
    """Fails.

    Args:
        reason: why.
    """
    raise RuntimeError(reason)


def call(name: str, /, **arguments: Any) -> tuple[str, str]:
    """A tool call, its arguments written as Pydantic AI sends them back."""
    return name, json.dumps(arguments, separators=(",", ":"))


def results(request: dict[str, Any]) -> list[Any]:
    """The tool results that a request of chat's shape holds."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


def adding(turns: int = 2) -> Callable[[dict[str, Any]], Reply]:
    """A model that calls ``add`` so many times, then answers."""

    def script(request: dict[str, Any]) -> Reply:
        done = len(results(request))
        return Reply(None, tool_calls=[call("add", a=done, b=2)]) if done < turns else Reply("The sum is known.")

    return script


@asynccontextmanager
async def openai_model(server: ScriptedServer, kind: Any = OpenAIChatModel) -> AsyncIterator[Any]:
    """A model whose client is closed at the end."""
    async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield kind("scripted", provider=OpenAIProvider(openai_client=client))


def with_model(server: ScriptedServer, scenario: Callable[[Any], Awaitable[T]], kind: Any = OpenAIChatModel) -> T:
    """Runs a scenario in an event loop of its own, with a model that the server answers for."""

    async def run() -> T:
        async with openai_model(server, kind) as model:
            return await scenario(model)

    try:
        return asyncio.run(run())
    finally:
        server.release()
        server.wait_idle()


def agent_of(
    model: Any, *, engine: str | rt.Engine | None = "vllm", is_recorded: bool = True, **options: Any
) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(model, **{"instructions": INSTRUCTIONS, "tools": [add, fail], **options})
    return record(agent, engine=engine) if is_recorded else agent


async def run(agent: Any, prompt: str, **options: Any) -> Any:
    return (await agent.run(prompt, **options)).output


async def run_iter(agent: Any, prompt: str, **options: Any) -> Any:
    async with agent.iter(prompt, **options) as steps:
        async for _ in steps:
            pass
    return steps.result.output


async def run_stream(agent: Any, prompt: str, **options: Any) -> Any:
    async with agent.run_stream(prompt, **options) as streamed:
        async for _ in streamed.stream_output(debounce_by=None):
            pass
        return await streamed.get_output()


async def run_stream_events(agent: Any, prompt: str, **options: Any) -> Any:
    result: Any = None
    async with agent.run_stream_events(prompt, **options) as events:
        async for event in events:
            result = getattr(event, "result", result)
    return result.output


async def run_event_handler(agent: Any, prompt: str, **options: Any) -> Any:
    async def read(_: Any, events: Any) -> None:
        async for _ in events:
            pass

    return (await agent.run(prompt, event_stream_handler=read, **options)).output


WAYS = [run, run_iter, run_stream, run_stream_events, run_event_handler]
"""All ways to run an agent in an event loop."""


def of_any_run(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """What steps say, without the framework's id of the run."""
    rows = said(steps)
    for row in rows:
        row["metadata"] = {name: value for name, value in (row["metadata"] or {}).items() if name != "run_id"}
    return rows
