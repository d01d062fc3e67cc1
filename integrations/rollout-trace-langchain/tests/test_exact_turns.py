"""Exact turns: the turns of an agent are one training row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exact import assert_one_row

import rollout_trace as rt

from .agents import WAYS, adder, chat, question


@pytest.mark.parametrize("way", ["invoke", "stream messages", "ainvoke"])
def test_turns_are_one_row(way: str, tmp_path: Path) -> None:
    def run(server: Any, engine: rt.Engine) -> None:
        with rt.trajectory():
            WAYS[way](adder(chat(server, engine=engine)), question(), None)

    assert_one_row(run, tmp_path)
