"""Exact turns: the turns of an agent are one training row."""

from __future__ import annotations

from pathlib import Path

from exact import assert_one_row

from .harness import agent_of, openai_model


def test_turns_are_one_row(tmp_path: Path) -> None:
    assert_one_row(lambda server, engine: agent_of(openai_model(server), engine=engine)("Add."), tmp_path)
