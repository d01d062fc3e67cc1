"""The example's agents under the pytest plugin: recorded once, replayed without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_example import Change, Example, assert_replays, load

SOURCE = Path(__file__).parents[1] / "example.py"
TEST = """
import asyncio
import os

import pytest
from agent import solve


@pytest.mark.replay
def test_agent(rollout):
    answer = asyncio.run(solve(os.environ["MODEL_URL"], "scripted", "vllm", "What is 17 * 23?"))
    assert answer == "17 * 23 is 391."
    rollout.assert_steps(5)
    rollout.assert_called_in_order("ask_mathematician", ("multiply", {"a": 17, "b": 23}))
    rollout.assert_trainable()
"""


@pytest.mark.more
def test_recorded_once_and_replayed_offline(pytester: pytest.Pytester) -> None:
    example = Example(pytester, SOURCE, TEST, tests=1)
    # Of the helper, whose failed call is for the manager a tool that failed.
    old, new = "You work out products, with the tool.", "You work out products, by hand."
    named = ["*messages.0.content (system)*", f"*{old}*", f"*{new}*", "*pytest --replay=record*"]
    assert_replays(example, load(SOURCE).script, Change(old, new, named))
