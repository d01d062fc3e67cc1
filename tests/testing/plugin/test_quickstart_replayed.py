"""The quickstart agent, recorded once and replayed without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_example import KEY, Example, assert_replays, load

SOURCE = Path(__file__).parents[3] / "examples" / "quickstart.py"
TEST = f"""
import os

import pytest
from agent import run, solve
from openai import OpenAI

import rollout_trace as rt


@pytest.fixture
def client():
    with OpenAI(base_url=os.environ["MODEL_URL"], api_key="{KEY}") as client:
        yield client


@pytest.mark.replay
def test_run(client, rollout):
    rt.wrap_openai(client, engine="vllm")
    run(client, "scripted", os.environ["OUT"])
    assert [one.name for one in rollout.trajectories[1:]] == ["solver"] * 4 + ["coordinator"] + ["sub-agent"] * 2
    assert [one.reward for one in rollout.trajectories[1:6]] == [1.0] * 3 + [0.0, 1.0]


@pytest.mark.replay(engine="vllm")
@pytest.mark.parametrize("stream", [False, True])
def test_solve(client, rollout, stream):
    # The client is the agent's own: nobody wrapped it.
    assert solve(client, "scripted", "What is 12 * 7 + 5 ?", stream=stream) == "The answer is 89."
    rollout.assert_steps(3)
    rollout.assert_called("calculator", expression="12 * 7")
    rollout.assert_trainable()
"""


@pytest.mark.more
def test_recorded_once_and_replayed_offline(pytester: pytest.Pytester) -> None:
    assert_replays(Example(pytester, SOURCE, TEST, tests=3), load(SOURCE).script)
