"""Exact turns: the turns of an agent are one training row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exact import TURNS, assert_one_row

from rollout_trace.testing import Reply
from rollout_trace_smolagents import record

from .conftest import code_agent, model_at


def codes(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Reply:
    """Code that adds, then the answer. A stop text cuts it, and smolagents sends it back with more text behind it."""
    done = sum(message["role"] == "assistant" for message in messages)
    code = 'final_answer("The sum is known.")' if done == TURNS - 1 else f"print(add(a={done}, b=2))"
    return Reply(f"I add the sum.\n<code>\n{code}\n</code>")


def test_turns_of_code_are_one_row(tmp_path: Path) -> None:
    def run(server: Any, engine: Any) -> None:
        record(code_agent(model_at(server)), engine=engine).run("Add.", max_steps=2 * TURNS)

    assert_one_row(run, tmp_path, codes)
