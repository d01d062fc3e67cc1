"""Agents and scripts of the tests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph.state import CompiledStateGraph

import rollout_trace as rt
from rollout_trace.record.recording import current_recording
from rollout_trace.testing import Reply, ScriptedServer, ToolCall
from rollout_trace_langchain import record

_numbers = itertools.count()

UNKEPT = {"Connection": "close"}
"""Headers of a client whose connections end with their answers: LangChain never closes its HTTP clients, and those that
it keeps open in an event loop outlive it."""


def chat(
    server: ScriptedServer, *, engine: str | rt.Engine | None = "vllm", recorded: bool = True, **more: Any
) -> ChatOpenAI:
    """A model at the server. Its address is its own: LangChain keeps one async HTTP client, of one loop, for each."""
    address = f"{server.url}/{next(_numbers)}/v1"
    llm = ChatOpenAI(
        model="m",
        base_url=address,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        default_headers=UNKEPT,
        **more,
    )
    return record(llm, engine=engine) if recorded else llm


def written(path: Path) -> list[rt.Trajectory]:
    """What a recording has in its file, whether it has ended or is that of this block."""
    if (recording := current_recording()) is not None:
        recording.flush()
    return list(rt.read(path))


@contextmanager
def serving(script: Any, **more: Any) -> Iterator[ScriptedServer]:
    """A server that lets everything go on at the end."""
    with ScriptedServer(script, **more) as server:
        yield server
        server.release()


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@tool
def fail(text: str) -> str:
    """Always fails."""
    raise KeyError(text)


def first_user(request: Mapping[str, Any]) -> str:
    """What the user said first."""
    return str(next(message["content"] for message in request["messages"] if message["role"] == "user"))


def three_turns(request: Mapping[str, Any]) -> Reply:
    """Two calls of ``add``, one after the other, then an answer."""
    done = sum(message["role"] == "assistant" for message in request["messages"])
    if done < 2:
        return Reply(reasoning=None, tool_calls=[ToolCall("add", f'{{"a": {done}, "b": 1}}')])
    return Reply(f"Done: {first_user(request)}")


def question(text: str = "Add") -> Any:
    """The input of an agent."""
    return {"messages": [{"role": "user", "content": text}]}


def adder(llm: Any, name: str | None = "adder") -> Any:
    """An agent with the tools above."""
    return create_agent(llm, [add, fail], name=name)


def _consumed(values: Any) -> list[Any]:
    return list(values)


async def _aconsumed(values: Any) -> list[Any]:
    return [value async for value in values]


def _v3(agent: Any, given: Any, config: Any) -> Any:
    return agent.stream_events(given, config=config, version="v3").output


async def _av3(agent: Any, given: Any, config: Any) -> Any:
    stream = await agent.astream_events(given, config=config, version="v3")
    return await stream.output()


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "invoke": lambda agent, given, config: agent.invoke(given, config),
    "stream": lambda agent, given, config: _consumed(agent.stream(given, config)),
    "stream messages": lambda agent, given, config: _consumed(agent.stream(given, config, stream_mode="messages")),
    "stream_events v3": _v3,
    "batch": lambda agent, given, config: agent.batch([given], config),
    "ainvoke": lambda agent, given, config: asyncio.run(agent.ainvoke(given, config)),
    "astream": lambda agent, given, config: asyncio.run(_aconsumed(agent.astream(given, config))),
    "astream messages": lambda agent, given, config: asyncio.run(
        _aconsumed(agent.astream(given, config, stream_mode="messages"))
    ),
    "astream_events v2": lambda agent, given, config: asyncio.run(
        _aconsumed(agent.astream_events(given, config, version="v2"))
    ),
    "astream_events v3": lambda agent, given, config: asyncio.run(_av3(agent, given, config)),
    "abatch": lambda agent, given, config: asyncio.run(agent.abatch([given], config)),
}
"""The ways to run a LangGraph agent; each gives what it gives."""
if not hasattr(CompiledStateGraph, "stream_events"):  # An older release of LangGraph.
    del WAYS["stream_events v3"], WAYS["astream_events v3"]
