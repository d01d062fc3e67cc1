"""Recorded once from a live vLLM, with the ids and logprobs of every token.

The model was two layers of random weights, so what it writes is nonsense: fit for checks of tokens and streams, not of
what the agent achieves. Answers that have to fit a schema fit it all the same.
"""

from __future__ import annotations

import os

import pytest
from agent.support import MOST_TOKENS, answer_in_pieces
from agent.triage import DESKS, triage

# vLLM is asked for the ids and logprobs of its tokens.
pytestmark = pytest.mark.replay("cassettes/vllm.jsonl", engine="vllm")


@pytest.fixture(autouse=True)
def local(monkeypatch):
    """The agent asks a server of our own, for the model that it serves under the name "tiny"."""
    monkeypatch.setenv("OPENAI_BASE_URL", os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"))
    monkeypatch.setenv("SUPPORT_MODEL", "tiny")


def test_the_desk_is_one_of_the_schemas(rollout):
    found = triage("My lamp never came.")

    assert found["desk"] in DESKS
    rollout.assert_finished("stop")


def test_a_stream_has_the_ids_of_all_its_tokens(rollout):
    pieces = list(answer_in_pieces("Where is my kettle? ada@example.com"))

    assert "".join(pieces) == rollout.text
    (step,) = rollout.steps
    assert len(step.completion_token_ids) == len(step.logprobs) == step.usage.output <= MOST_TOKENS
    rollout.assert_trainable()
