"""What the tests share."""

from __future__ import annotations

import pytest

import rollout_trace as rt


@pytest.fixture
def tiny_vllm(monkeypatch):
    """The agent asks the model that a local vLLM serves under the name "tiny", and for its token ids and logprobs."""
    monkeypatch.setenv("SUPPORT_MODEL", "tiny")
    with rt.instrument(engine="vllm"):
        yield
