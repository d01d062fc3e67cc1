"""The example's agents under the pytest plugin: recorded once, replayed without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_example import Change, Example, assert_replays, load

SOURCE = Path(__file__).parents[1] / "example.py"
TEST = """
import functools
import os
import sys

import agent
import pytest


@pytest.mark.replay
@pytest.mark.parametrize("stream", [False, True])
def test_agent(rollout, monkeypatch, stream):
    for kind in ("CodeAgent", "ToolCallingAgent"):
        monkeypatch.setattr(agent, kind, functools.partial(getattr(agent, kind), stream_outputs=stream))
    asked = ["--base-url", os.environ["MODEL_URL"], "--engine", "vllm", "--out", os.environ["OUT"]]
    monkeypatch.setattr(sys, "argv", ["example.py", *asked])
    agent.main()
    assert [one.name for one in rollout.trajectories[1:]] == ["manager", "statistician"]
    assert rollout.trajectories[1].reward == 1.0
    rollout.assert_steps(4)
    rollout.assert_called("population", city="Paris")
    rollout.assert_called("population", city="Lyon")
    rollout.assert_trainable()
"""


@pytest.mark.more
def test_recorded_once_and_replayed_offline(pytester: pytest.Pytester) -> None:
    example = Example(pytester, SOURCE, TEST, tests=2)
    # Of the helper, whose error the manager is shown as the output of its code.
    old, new = "The number of people in a city.", "The number of birds in a city."
    named = ["*tool*population*", f"*{old}*", f"*{new}*", "*pytest --replay=record*"]
    assert_replays(example, load(SOURCE).script, Change(old, new, named))
