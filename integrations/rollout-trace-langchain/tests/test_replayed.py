"""The example's agents under the pytest plugin: recorded once, replayed without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_example import Change, Example, assert_replays, load

SOURCE = Path(__file__).parents[1] / "example.py"
TEST = """
import functools
import os

import agent
import pytest


@pytest.mark.replay
@pytest.mark.parametrize("streaming", [False, True])
def test_agent(rollout, monkeypatch, streaming):
    monkeypatch.setattr(agent, "ChatOpenAI", functools.partial(agent.ChatOpenAI, streaming=streaming))
    agent.run(os.environ["MODEL_URL"], "scripted", "vllm", os.environ["OUT"])
    assert [one.name for one in rollout.trajectories[1:]] == ["lead", "mathematician"]
    rollout.assert_steps(4)
    rollout.assert_called_in_order("ask_mathematician", ("add", {"a": 17, "b": 25}))
    rollout.assert_trainable()
"""


@pytest.mark.more
def test_recorded_once_and_replayed_offline(pytester: pytest.Pytester) -> None:
    example = Example(pytester, SOURCE, TEST, tests=2)
    old, new = "Add two numbers", "Sum two numbers"
    named = ["*tool*add*", f"*{old}*", f"*{new}*", "*pytest --replay=record*"]
    assert_replays(example, load(SOURCE).scripted, Change(old, new, named))
