"""The framework sees nothing new: the same run with and without the hook gives the same."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.graph.state import CompiledStateGraph
from shown import assert_shows_the_same

import rollout_trace as rt
from rollout_trace.testing import Fault
from rollout_trace_langchain import RolloutCallbackHandler, record

from .agents import WAYS, adder, chat, question, serving, three_turns


class Told(BaseCallbackHandler):
    """What another handler is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            events = object.__getattribute__(self, "events")
            return lambda *args, **kwargs: events.append(f"{name} {plain(args)} {kwargs.get('name')} {kwargs['tags']}")
        return object.__getattribute__(self, name)


def plain(value: Any) -> str:
    """Its text, without what is new in every run: ids, times, ports, objects' addresses."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", repr(value))
    text = re.sub(r"0x[0-9a-f]+|127\.0\.0\.1:\d+/\d+", "X", text)
    return re.sub(r"token_ids=\[[^]]*\]", "IDS", text)


def kind_of(event: Any) -> Any:
    """What one event of a stream is and says."""
    if isinstance(event, tuple):
        return event[0] if isinstance(event[0], str) else kind_of(event[0])
    if isinstance(event, dict):
        return event.get("event", event.get("method", sorted(event)))
    return (event.content, [call["args"] for call in getattr(event, "tool_call_chunks", [])])


STREAMS: dict[str, tuple[Any, int, int]] = {
    "messages": (lambda agent: agent.stream(question(), stream_mode="messages"), 54, 123),
    "amessages": (lambda agent: in_a_loop(agent.astream(question(), stream_mode="messages")), 54, 123),
    "updates": (lambda agent: agent.stream(question(), stream_mode=["messages", "updates"]), 59, 128),
    "events v2": (lambda agent: in_a_loop(agent.astream_events(question(), version="v2")), 84, 153),
    "events v3": (lambda agent: agent.stream_events(question(), version="v3"), 63, 63),
}
if not hasattr(CompiledStateGraph, "stream_events"):  # An older release of LangGraph.
    del STREAMS["events v3"]


def in_a_loop(events: Any) -> list[Any]:
    async def read() -> list[Any]:
        return [event async for event in events]

    return asyncio.run(read())


@pytest.mark.sees("stream", '`stream_mode="messages"` 54 (123), `astream_events` 84 (153), `stream_events` v3 63 (63)')
@pytest.mark.parametrize("way", STREAMS)
def test_events_of_a_stream_are_those_without_the_recorder(way: str) -> None:
    read, *counts = STREAMS[way]

    def shown(engine: Any) -> list[Any]:
        with serving(three_turns) as server:
            agent = adder(chat(server, recorded=engine is not None, engine=engine, stream_usage=False))
            return [kind_of(event) for event in read(agent)]

    assert_shows_the_same(shown, *counts)


@pytest.mark.sees("unchanged")
@pytest.mark.parametrize("engine", [None, "vllm"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_the_same(way: str, engine: str | None) -> None:
    outcomes = []
    # `logprobs` is asked for in both: what is asked of the server is seen by the framework.
    body = {"return_token_ids": True, "return_weight_versions": True}
    fields: Any = {"logprobs": True, "stream_usage": True, "extra_body": body} if engine else {}
    for hooked in (False, True):
        told = Told()
        handlers: list[Any] = [told, RolloutCallbackHandler()] if hooked else [told]
        with serving(three_turns) as server:
            llm = chat(server, recorded=False, **fields)
            if hooked:
                record(llm, engine=engine)
            config = {"callbacks": handlers}
            result = WAYS[way](adder(llm), question(), config)
        requests = [
            (one.path.split("/", 2)[2], one.json, sorted(set(one.headers) - {"host"})) for one in server.requests
        ]
        outcomes.append((plain(result), told.events, requests))
    without, with_hook = outcomes
    assert with_hook[0] == without[0]
    assert with_hook[1] == without[1]
    assert len(with_hook[1]) > 0
    assert with_hook[2] == without[2]


def test_errors_are_the_same() -> None:
    errors = []
    for hooked in (False, True):
        with serving(Fault(status=429, body={"error": {"message": "slow down"}})) as server:
            llm = chat(server, recorded=hooked, engine=None)
            with rt.trajectory(), pytest.raises(Exception) as caught:
                adder(llm).invoke(question())
        errors.append((type(caught.value), str(caught.value), json.dumps(server.requests[0].json)))
    assert errors[0] == errors[1]


def test_only_capture_fields_are_added() -> None:
    with serving(three_turns) as server, rt.trajectory():
        adder(chat(server, recorded=False)).invoke(question())
        adder(chat(server)).invoke(question())
    bare, asked = (server.requests[at].json for at in (0, 3))
    assert set(asked) - set(bare) == {"logprobs", "return_token_ids", "return_weight_versions"}
    assert {name: asked[name] for name in bare} == bare
