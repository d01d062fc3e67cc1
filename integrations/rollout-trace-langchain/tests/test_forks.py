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


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed, async"])
def test_an_agent_goes_on_from_a_step(is_streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(adding(lambda: Reply("The sum is known."))) as server:

        def run(question: str) -> None:
            llm = record(chat(server, recorded=False, streaming=is_streamed), engine="vllm", keep_bytes=True)
            agent = create_agent(llm, [add])
            asked = {"messages": [("user", question)]}
            settings = {"recursion_limit": 100}
            if is_streamed:
                asyncio.run(agent.ainvoke(asked, settings))
            else:
                agent.invoke(asked, settings)

        assert_forks(run, server, tmp_path, monkeypatch)
