"""An agent goes on from a recorded step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from forks import adding, assert_forks
from langchain.agents import create_agent

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
