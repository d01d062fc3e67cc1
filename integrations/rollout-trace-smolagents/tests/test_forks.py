"""An agent goes on from a recorded step."""

from __future__ import annotations

from pathlib import Path

import pytest
from forks import adding, assert_forks

import rollout_trace as rt
from rollout_trace.testing import Reply
from rollout_trace_smolagents import record

from .conftest import Serve, model_at, tool_agent


def test_an_agent_goes_on_from_a_step(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(adding(lambda: Reply(tool_calls=[("final_answer", '{"answer": "known"}')])))

    def run(question: str) -> None:
        model = model_at(server)
        rt.wrap_openai(model.client, engine="vllm", keep_bytes=True)
        agent = tool_agent(model, max_steps=30)
        record(agent)
        agent.run(question)

    assert_forks(run, server, tmp_path, monkeypatch)
