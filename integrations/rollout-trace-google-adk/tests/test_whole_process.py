"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from whole_process import assert_runs_are_recorded

from rollout_trace.testing import ScriptedServer
from rollout_trace_google_adk import record

from .harness import adding, agent_of, litellm, run, runner_of


@pytest.mark.parametrize("route", ["openai", "hosted_vllm"])
def test_every_run_of_the_process_is_recorded(route: str, tmp_path: Path) -> None:
    def make(server: ScriptedServer) -> list[Any]:
        model = litellm(server, route)
        agent = agent_of(model)
        return [runner_of(agent, is_recorded=False), agent, model, model.llm_client]

    path = tmp_path / "runs.jsonl"
    assert_runs_are_recorded(
        path,
        adding(2),
        make,
        lambda runner: asyncio.run(run(runner)),
        lambda runner: record(runner, engine="vllm"),
        package="google.adk",
    )
