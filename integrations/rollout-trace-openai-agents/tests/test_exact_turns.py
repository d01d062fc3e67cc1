"""Exact turns: the turns of an agent are one training row."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from exact import assert_one_row

import rollout_trace as rt
from rollout_trace_openai_agents import record

from .harness import agent_of, chat_model, responses_model, run, streamed


@pytest.mark.parametrize("way", [run, streamed])
@pytest.mark.parametrize("model", [chat_model, responses_model])
def test_turns_are_one_row(tmp_path: Path, way: Any, model: Any) -> None:
    def go(server: Any, engine: rt.Engine) -> None:
        asyncio.run(way(record(agent_of(model(server)), engine=engine)))

    assert_one_row(go, tmp_path)
