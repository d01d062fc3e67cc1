"""Exact turns: the turns of an agent are one training row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exact import assert_one_row

import rollout_trace as rt

from .harness import agent_of, with_model


def test_turns_are_one_row(tmp_path: Path) -> None:
    def run(server: Any, engine: rt.Engine) -> None:
        async def scenario(model: Any) -> None:
            await agent_of(model, engine=engine).run("Add.")

        with_model(server, scenario)

    assert_one_row(run, tmp_path)
