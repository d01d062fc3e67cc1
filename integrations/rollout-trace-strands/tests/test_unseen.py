"""The framework sees nothing new: with and without the hook, the same messages, events and requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from strands.models.anthropic import AnthropicModel

import rollout_trace as rt
from rollout_trace import guard
from rollout_trace.testing import Fault, Reply, ScriptedServer

from .harness import add, adding, agent_of, openai_model
from .test_models import anthropic_adding, litellm_model

CAPTURE = {"logprobs", "return_token_ids", "return_weight_versions"}


def plain(value: Any, key: str | None = None) -> Any:
    """A value to compare: without times, random ids, and objects that are of one run alone."""
    if key is not None and (key.lower().endswith("ms") or key in ("tracking_id", "_tracking_id", "start_time")):
        return None
    if isinstance(value, dict):
        return {name: plain(item, name) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, type(None))) else type(value).__name__


def run(make_model: Any, script: Any, is_recorded: bool, engine: str | None) -> dict[str, Any]:
    """One run: what the agent gave, what its stream said, its history, and what the server was asked."""
    with ScriptedServer(script) as server:
        agent = agent_of(make_model(server), is_recorded=is_recorded, engine=engine)

        async def events() -> list[Any]:
            seen = []
            try:
                async for event in agent.stream_async("Add."):
                    seen.append({name: item for name, item in event.items() if not name.startswith("event_loop_")})
            except Exception as error:
                seen.append({"raised": type(error).__name__, "message": str(error)})
            if isinstance(agent.model, AnthropicModel):
                await agent.model.client.close()  # Strands leaves it open
            return seen

        if is_recorded:
            with rt.trajectory():
                found = asyncio.run(events())
        else:
            found = asyncio.run(events())
        server.wait_idle()
        asked = [(r.path, {k: v for k, v in r.json.items() if k not in CAPTURE}) for r in server.requests]
        headers = [
            {name: value for name, value in record.headers.items() if name not in ("host", "content-length")}
            for record in server.requests
        ]
        return {"events": plain(found), "messages": plain(agent.messages), "asked": asked, "headers": headers}


def openai_streaming(server: ScriptedServer) -> Any:
    return openai_model(server)


def openai_unstreamed(server: ScriptedServer) -> Any:
    return openai_model(server, stream=False)


def anthropic_model(server: ScriptedServer) -> Any:
    client_args = {"base_url": server.url, "api_key": "none", "max_retries": 0}
    return AnthropicModel(client_args=client_args, model_id="scripted", max_tokens=100)


def litellm_at(server: ScriptedServer) -> Any:
    return litellm_model(api_base=server.base_url)


FAILING = [Reply(tool_calls=[("fail", '{"reason": "no luck"}'), ("nothing", "{}")]), Fault(status=500)]


@pytest.mark.sees("unchanged")
@pytest.mark.parametrize(
    ("make_model", "script", "engine"),
    [
        (openai_streaming, adding(2), None),
        (openai_streaming, adding(2), "vllm"),
        (openai_unstreamed, adding(2), "vllm"),
        (openai_streaming, FAILING, "vllm"),
        (anthropic_model, anthropic_adding, None),
        (litellm_at, adding(2), "vllm"),
        (litellm_at, adding(2), None),
    ],
)
def test_with_and_without_the_hook(make_model: Any, script: Any, engine: str | None) -> None:
    bare, hooked = (run(make_model, script, is_recorded, engine) for is_recorded in (False, True))
    for what in bare:
        assert hooked[what] == bare[what], what


def test_a_failure_of_the_recorder_is_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under pytest it is raised, so that ours are seen; here it is a user's process."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr("rollout_trace_strands.chat.snapshot", None)
    monkeypatch.setattr("rollout_trace_strands.runs.RunFrame", None)
    before = guard.stats().recorder_errors
    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        assert str(agent_of(openai_model(server), tools=[add])("Add.")) == "The sum is known.\n"
    assert len(trajectory.steps) == 2
    assert guard.stats().recorder_errors > before


def test_events_are_not_kept_back() -> None:
    """The first piece of an answer arrives while the server still holds the rest."""

    async def read(server: ScriptedServer) -> list[str]:
        texts: list[str] = []
        async for event in agent_of(openai_model(server)).stream_async("Go."):
            if "data" in event:
                texts.append(event["data"])
                if len(texts) == 1:
                    server.release()
        return texts

    with ScriptedServer(Fault("ab", hold_after=2)) as server, rt.trajectory():
        assert asyncio.run(read(server)) == ["a", "b"]


def test_the_history_is_as_json_what_it_was() -> None:
    with ScriptedServer(adding(1)) as server, rt.trajectory():
        agent = agent_of(openai_model(server))
        agent("Add.")
    assert "rollout" not in json.dumps(agent.messages)
