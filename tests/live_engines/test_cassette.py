"""A cassette recorded from a live engine and replayed without it: the same ids, logprobs, chunks and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from tests.live_engines.servers import MODEL, Server
from tests.pytest_agent_copy import copy_to, outcomes

STREAM = "tests/test_vllm.py::test_a_stream_has_the_ids_of_all_its_tokens"


def contents(path: Path) -> list[Any]:
    """What a replay has to give again."""
    found: list[Any] = []
    for trajectory in rt.read(path):
        for step in trajectory.steps:
            assert step.prompt_token_ids is not None
            assert step.completion_token_ids is not None
            assert step.logprobs is not None
            ids = (step.prompt_token_ids.tolist(), step.completion_token_ids.tolist())
            found.append((step.model, step.finish_reason, *ids, step.logprobs.tolist(), step.completion))
    return found


def test_what_a_live_engine_said_is_replayed_without_it(server: Server, tmp_path: Path) -> None:
    if server.engine != "vllm":
        pytest.skip("ids in streams with tools are vLLM's alone")
    copy = copy_to(tmp_path)
    cassette = copy.folder / "tests" / "cassettes" / "vllm.jsonl"
    cassette.unlink()

    code, output = copy.run(
        STREAM, "--replay=record", CI="", OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="none", SUPPORT_MODEL=MODEL
    )
    assert (code, outcomes(output)) == (0, {"passed": 1}), output
    recorded = contents(cassette)
    (exchange,) = [one for trajectory in rt.read(cassette) for one in trajectory.exchanges]

    folder = tmp_path / "rollouts"
    code, output = copy.run(STREAM, f"--rollout-dir={folder}", "--rollout-keep=all")

    assert (code, outcomes(output)) == (0, {"passed": 1}), output
    (replayed,) = folder.rglob("*.jsonl")
    assert contents(replayed) == recorded
    assert len(exchange.chunk_sizes) > 1, "a stream came in one piece"
    assert sum(exchange.chunk_sizes) == len(exchange.response)
    assert copy.refused == []
