"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from whole_process import assert_runs_are_recorded

from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_smolagents import record

from .conftest import code_agent, model_at, tool_agent


@pytest.mark.parametrize("make_agent", [tool_agent, code_agent])
def test_every_run_of_the_process_is_recorded(make_agent: Any, tmp_path: Path) -> None:
    def script(request: dict[str, Any]) -> Reply:
        done = sum(message["role"] == "assistant" for message in request["messages"])
        if make_agent is code_agent:
            return Reply("<code>\nfinal_answer('ten')\n</code>" if done else "<code>\nx = add(1, b=2)\n</code>")
        return Reply(tool_calls=[("final_answer", '{"answer": "ten"}') if done else ("add", '{"a": 1, "b": 2}')])

    def make(server: ScriptedServer) -> list[Any]:
        model = model_at(server)
        agent = make_agent(model, name="adder", description="adds")
        return [agent, model, model.client]

    path = tmp_path / "runs.jsonl"
    assert_runs_are_recorded(
        path,
        script,
        make,
        lambda agent: agent.run("go"),
        lambda agent: record(agent, engine="vllm"),
        package="smolagents",
    )
