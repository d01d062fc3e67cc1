"""The example's agents under the pytest plugin: recorded once, replayed without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_example import Change, Example, assert_replays, load

SOURCE = Path(__file__).parents[1] / "example.py"
TEST = """
import os

# litellm's aiohttp gives what has arrived so far: the pieces of an answer would differ from run to run.
os.environ["DISABLE_AIOHTTP_TRANSPORT"] = "True"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import pytest
from agent import solve

# ADK's own, and litellm's.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated"),
    pytest.mark.filterwarnings(r"ignore:\\[EXPERIMENTAL\\]"),
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession"),
    pytest.mark.filterwarnings("ignore:Items? '.*' on TypedDict class '.*' .* using the `ReadOnly`"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*' attribute on the instance"),
]


@pytest.mark.replay
def test_agent(rollout):
    assert solve(os.environ["MODEL_URL"], "scripted", "vllm", "What is 17 * 23?") == "17 * 23 is 391."
    rollout.assert_steps(4)
    rollout.assert_called_in_order("mathematician", ("multiply", {"a": 17, "b": 23}))
    rollout.assert_trainable()
"""


@pytest.mark.more
def test_recorded_once_and_replayed_offline(pytester: pytest.Pytester) -> None:
    example = Example(pytester, SOURCE, TEST, tests=1)
    old, new = "You work out products, with the tool.", "You work out products, by hand."
    named = ["*messages.0.content (system)*", f"*{old}*", f"*{new}*", "*pytest --replay=record*"]
    assert_replays(example, load(SOURCE).script, Change(old, new, named))
