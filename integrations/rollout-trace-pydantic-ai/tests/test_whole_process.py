"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from whole_process import assert_runs_are_recorded

from rollout_trace.testing import ScriptedServer
from rollout_trace_pydantic_ai import record

from .harness import adding, agent_of


def test_every_run_of_the_process_is_recorded(tmp_path: Path) -> None:
    def make(server: ScriptedServer) -> list[Any]:
        # It keeps no connection: each run has an event loop of its own.
        client = AsyncOpenAI(base_url=server.base_url, api_key="none", default_headers={"connection": "close"})
        model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=client))
        return [agent_of(model, name="adder", is_recorded=False), model, client]

    path = tmp_path / "runs.jsonl"
    assert_runs_are_recorded(
        path,
        adding(2),
        make,
        lambda agent: agent.run_sync("Add."),
        lambda agent: record(agent, engine="vllm"),
        package="pydantic_ai",
    )
