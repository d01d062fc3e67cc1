"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whole_process import assert_runs_are_recorded

from rollout_trace.testing import ScriptedServer
from rollout_trace_strands import RolloutHookProvider

from .harness import adding, agent_of, openai_model


def test_every_run_of_the_process_is_recorded(tmp_path: Path) -> None:
    def make(server: ScriptedServer) -> list[Any]:
        model = openai_model(server)
        return [agent_of(model, name="adder", is_recorded=False), model]

    def run(agent: Any) -> None:
        agent.messages.clear()  # It goes on with what was said before.
        agent("Add.")

    by_hand = RolloutHookProvider(engine="vllm").attach
    path = tmp_path / "runs.jsonl"
    assert_runs_are_recorded(path, adding(2), make, run, by_hand, package="strands")
