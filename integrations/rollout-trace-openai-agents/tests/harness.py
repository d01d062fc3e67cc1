"""What the tests share: tools, models, scripts, and three ways to run an agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    Usage,
    function_tool,
)
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseCompletedEvent

from rollout_trace.testing import Reply, ScriptedServer

SYSTEM = "You add numbers."


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@function_tool
def fail(reason: str) -> str:
    """Fails."""
    raise RuntimeError(reason)


@function_tool(failure_error_function=None)
def explode(reason: str) -> str:
    """Fails, and takes the run with it."""
    raise RuntimeError(reason)


def results(messages: list[dict[str, Any]]) -> list[Any]:
    """The tool results that a request holds."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def adding(turns: int = 2) -> Callable[..., Reply]:
    """A model that calls ``add`` so many times, then answers."""

    def script(request: dict[str, Any], messages: list[dict[str, Any]]) -> Reply:
        done = len(results(messages))
        if done < turns:
            return Reply(f"adding {done}", tool_calls=[("add", json.dumps({"a": done, "b": 2}))])
        return Reply("The sum is known.")

    return script


def tools_of(request: dict[str, Any]) -> set[str]:
    """Names of the tools that a request offers."""
    return {tool.get("function", tool).get("name") for tool in request.get("tools") or ()}


def calling(name: str, /, **arguments: Any) -> Reply:
    return Reply("I use a tool.", tool_calls=[(name, json.dumps(arguments))])


def client_of(server: ScriptedServer, **options: Any) -> AsyncOpenAI:
    """A client that keeps no connection, so that it may be used in one event loop after the other."""
    headers = {"connection": "close"}
    return AsyncOpenAI(base_url=server.base_url, api_key="none", default_headers=headers, max_retries=0, **options)


def chat_model(server: ScriptedServer, **options: Any) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("scripted", client_of(server, **options))


def responses_model(server: ScriptedServer) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("scripted", client_of(server))


def agent_of(model: Any, name: str = "adder", **options: Any) -> Agent[Any]:
    return Agent(name=name, model=model, **{"instructions": SYSTEM, "tools": [add, fail, explode], **options})


class SaidModel(Model):
    """A user's own model, without a client: gives these answers, each a list of output items."""

    def __init__(self, *answers: list[Any]) -> None:
        self._answers = list(answers)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        usage = Usage(requests=1, input_tokens=5, output_tokens=2, total_tokens=7)
        return ModelResponse(output=self._answers.pop(0), usage=usage, response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        fields: Any = {"id": "resp", "created_at": 1, "model": "own", "object": "response", "tools": []}
        chosen: Any = {"tool_choice": "auto", "parallel_tool_calls": True, "output": self._answers.pop(0)}
        yield ResponseCompletedEvent(
            response=Response(**fields, **chosen), sequence_number=0, type="response.completed"
        )


async def run(agent: Agent[Any], question: Any = "Add.", **options: Any) -> Any:
    return await Runner.run(agent, question, **options)


async def streamed(agent: Agent[Any], question: Any = "Add.", **options: Any) -> Any:
    result = Runner.run_streamed(agent, question, **options)
    async for _ in result.stream_events():
        pass
    return result


async def in_a_thread(agent: Agent[Any], question: Any = "Add.", **options: Any) -> Any:
    """``run_sync``, which needs a thread without an event loop that runs."""
    return await asyncio.to_thread(run_sync, agent, question, **options)


def run_sync(agent: Agent[Any], question: Any = "Add.", **options: Any) -> Any:
    """``Runner.run_sync`` in an event loop of its own: the SDK leaves the one that it makes open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return Runner.run_sync(agent, question, **options)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


WAYS = [run, in_a_thread, streamed]
