"""Arguments of ``LiteLlm`` with which LiteLLM must not get a client of ours, or not that of another model."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from google.adk.models.lite_llm import LiteLlm
from oracle import Recorded, assert_served

import rollout_trace as rt
from rollout_trace.testing import Fault, ScriptedServer

from .harness import agent_of, litellm, run, runner_of, text_of

DOWN = Fault(status=404, body={"error": {"message": "down"}})


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("route", ["openai", "hosted_vllm"])
def test_a_fallback_at_another_server_gets_there(recorded: Recorded, route: str) -> None:
    """LiteLLM passes a client on to the fallbacks of a call."""
    with ScriptedServer(DOWN) as down, ScriptedServer("hello") as server:
        there = {"model": "openai/other", "api_base": server.base_url, "api_key": "none"}
        model = litellm(down, route, fallbacks=[there])
        with rt.trajectory("task") as trajectory:
            events = asyncio.run(run(runner_of(agent_of(model))))
        assert len(down.requests) == len(server.requests) == 1
    assert text_of(events) == "hello"
    (step,) = trajectory.steps
    assert (step.status, step.token_issue and step.token_issue.code) == ("ok", "not_on_wire")
    recorded.keep(trajectory)


def test_what_litellm_sets_on_a_client_stays_with_its_model(recorded: Recorded) -> None:
    async def main(server: ScriptedServer) -> None:
        for model in (litellm(server, organization="org-1"), litellm(server)):
            await run(runner_of(agent_of(model)))

    with ScriptedServer("hello") as server:
        asyncio.run(main(server))
        found = [{name.lower(): value for name, value in one.headers.items()} for one in server.requests]
        assert [one.get("openai-organization") for one in found] == ["org-1", None]
        assert_served(server, [step for one in recorded.all() for step in one.steps])


def test_a_key_that_is_replaced(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(runner: Any) -> None:
        for key in ("first", "second"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            await run(runner)

    with ScriptedServer("hello") as server:
        asyncio.run(main(runner_of(agent_of(LiteLlm("openai/scripted", api_base=server.base_url)))))
        found = [{name.lower(): value for name, value in one.headers.items()} for one in server.requests]
        assert [one["authorization"] for one in found] == ["Bearer first", "Bearer second"]
        assert_served(server, [step for one in recorded.all() for step in one.steps])


def test_without_a_key_litellm_fails_as_it_does(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    raised = []
    with ScriptedServer("never") as server:
        for is_recorded in (False, True):
            agent = agent_of(LiteLlm("openai/scripted", api_base=server.base_url))
            with pytest.raises(openai.APIError) as failure:
                asyncio.run(run(runner_of(agent, is_recorded=is_recorded)))
            raised.append((type(failure.value), str(failure.value)))
        assert server.requests == []
    assert raised[0] == raised[1]
