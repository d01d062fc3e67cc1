"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from whole_process import assert_runs_are_recorded

from rollout_trace.testing import ScriptedServer
from rollout_trace_openai_agents import record

from .harness import adding, agent_of, chat_model, run


def test_every_run_of_the_process_is_recorded(tmp_path: Path) -> None:
    def make(server: ScriptedServer) -> list[Any]:
        model = chat_model(server)
        return [agent_of(model), model, model._client]

    path = tmp_path / "runs.jsonl"
    assert_runs_are_recorded(
        path,
        adding(2),
        make,
        lambda agent: asyncio.run(run(agent)),
        lambda agent: record(agent, engine="vllm"),
        package="agents",
    )
