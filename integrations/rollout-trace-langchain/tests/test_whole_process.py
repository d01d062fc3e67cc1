"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whole_process import assert_runs_are_recorded

from rollout_trace.testing import ScriptedServer
from rollout_trace_langchain import RolloutCallbackHandler, record

from .agents import adder, chat, question, three_turns


def test_every_run_of_the_process_is_recorded(tmp_path: Path) -> None:
    models: dict[int, Any] = {}

    def make(server: ScriptedServer) -> list[Any]:
        llm = chat(server, recorded=False)
        agent = adder(llm)
        models[id(agent)] = llm
        return [agent, llm, llm.root_client, llm.root_async_client]

    def by_hand(agent: Any) -> Any:
        record(models[id(agent)], engine="vllm")
        return agent.with_config(callbacks=[RolloutCallbackHandler()])

    for package in ("langchain_core", "langgraph"):
        path = tmp_path / f"{package}.jsonl"
        assert_runs_are_recorded(
            path, three_turns, make, lambda agent: agent.invoke(question()), by_hand, package=package
        )
