"""Failures of the hooks themselves. Under pytest they are raised, so that ours are seen; here nothing is."""

from __future__ import annotations

import pytest

import rollout_trace as rt
from rollout_trace_langchain import runs

from .agents import WAYS, adder, chat, question, serving, three_turns


@pytest.fixture(autouse=True)
def _no_run_is_left() -> None:
    assert not runs._runs


@pytest.mark.parametrize("way", ["invoke", "stream messages", "ainvoke", "astream messages"])
@pytest.mark.parametrize(
    "broken",
    ["runs._enclosing_frame", "calls._new_frame", "calls.CallFrame", "fallback.message_of",
     "middleware.supersede_discarded", "runs.begin_tool", "handler.set_tool_result"],
)  # fmt: skip
def test_a_failure_of_a_hook_is_not_the_agents(broken: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(f"rollout_trace_langchain.{broken}", None)
    before = rt.stats().recorder_errors
    with serving(three_turns) as server, rt.trajectory() as trajectory:
        result = WAYS[way](adder(chat(server)), question(), {})
        assert len(server.requests) == 3
    assert result
    assert [step.status for step in trajectory.steps] == ["ok"] * 3
    assert rt.stats().recorder_errors > before
