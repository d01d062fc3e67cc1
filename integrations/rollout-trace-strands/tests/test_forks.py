"""An agent goes on from a recorded step."""

from __future__ import annotations

from pathlib import Path

import pytest
from forks import adding, assert_forks

from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_strands import RolloutHookProvider

from .harness import agent_of, openai_model


def test_an_agent_goes_on_from_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(adding(lambda: Reply("The sum is known."))) as server:

        def run(question: str) -> None:
            hooks = [RolloutHookProvider(engine="vllm", keep_bytes=True)]
            agent_of(openai_model(server, stream=True), is_recorded=False, hooks=hooks)(question)

        assert_forks(run, server, tmp_path, monkeypatch)
