"""The framework sees nothing new: the same run with and without the hook gives the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler

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


def test_messages_of_a_stream_are_the_same() -> None:
    """None comes for what was added: vLLM then has a chunk for every token, also while it reads a tool call."""
    seen: list[Any] = []
    for engine in (None, "vllm", rt.Engine("vllm", show_added=True)):
        with serving(three_turns) as server:
            agent = adder(chat(server, recorded=engine is not None, engine=engine, stream_usage=False))
            messages = [one for one, _ in agent.stream(question(), stream_mode="messages")]
        calls = [[call["args"] for call in getattr(one, "tool_call_chunks", [])] for one in messages]
        seen.append([(one.content, args) for one, args in zip(messages, calls, strict=True)])
    plain_ones, ours, every = seen
    assert ours == plain_ones
    assert len(every) > len(ours)


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
