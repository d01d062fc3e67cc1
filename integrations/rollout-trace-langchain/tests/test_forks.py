"""An agent goes on from a recorded step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from forks import adding, assert_forks
from langchain.agents import create_agent
from langchain_core.tools import tool
from page_blocks import blocks_of

import rollout_trace as rt
from rollout_trace.testing import Reply
from rollout_trace_langchain import record

from .agents import add, chat, serving


def test_an_agent_goes_on_from_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(adding(lambda: Reply("The sum is known."))) as server:

        def run(question: str) -> None:
            llm = record(chat(server, recorded=False, streaming=True), engine="vllm", keep_bytes=True)
            agent = create_agent(llm, [add])
            asyncio.run(agent.ainvoke({"messages": [("user", question)]}, {"recursion_limit": 100}))

        assert_forks(run, server, tmp_path, monkeypatch)


def test_a_middleware_answers_tools_from_the_recording(tmp_path: Path) -> None:
    """The block of docs/fork.md: before the step no tool runs, behind it each does."""
    (block,) = [one for one in blocks_of("docs/fork.md") if "wrap_tool_call" in one.text]
    ran: list[int] = []

    @tool
    def add(a: int, b: int) -> int:
        """Adds."""
        ran.append(a)
        return a + b

    with serving(adding(lambda: Reply("The sum is known."))) as server:

        def run() -> None:
            llm = chat(server, recorded=False)
            names: dict[str, Any] = {
                "rt": rt,
                "create_agent": create_agent,
                "record": record,
                "llm": llm,
                "tools": [add],
            }
            exec(block.text, names)
            names["agent"].invoke({"messages": [("user", "Add.")]}, {"recursion_limit": 100})

        path = tmp_path / "rollouts.jsonl"
        with rt.recording(path), rt.trajectory():
            run()
        (origin,) = rt.read(path)
        assert ran == list(range(19))
        ran.clear()
        with rt.recording(path), rt.fork(origin, step=7, tools="recorded") as branch:
            run()
    assert ran == list(range(7, 19))
    assert [one.status for one in branch.steps] == ["cached"] * 7 + ["ok"] * 13
