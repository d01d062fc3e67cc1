"""The blocks of docs/export.md that need no consumer; those that do are run in its environment."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from tests.consumers import recorded

PAGE = "export.md"


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page's blocks take for granted: a recorded file and its trajectories."""
    monkeypatch.chdir(tmp_path)
    runs = recorded.tool_agent()
    with rt.JSONLWriter("rollouts.jsonl") as out:
        for one in runs:
            out.write(one)
    tokenizer = types.SimpleNamespace(decode=lambda ids: f"{len(ids)} ids")
    torch = types.SimpleNamespace(from_numpy=lambda array: array)
    return {"rt": rt, "export": export, "np": np, "torch": torch, "tokenizer": tokenizer, "trajectories": runs}


def test_turns(names: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow")
    run_blocks(PAGE, "One row a turn, for agents", **names)
    assert Path("turns.parquet").stat().st_size > 0


def test_exchanges(names: dict[str, Any]) -> None:
    run_blocks(PAGE, "One line an exchange", **names)
    assert len(Path("llm_trajectory.jsonl").read_text().splitlines()) == 18


def test_batches(names: dict[str, Any]) -> None:
    found = run_blocks(PAGE, "Batches as arrays", **names)
    assert found["tensors"]["input_ids"].shape[0] == 6
    assert sum(len(batch["trajectory_id"]) for batch in found["packed"]) == 6


def test_nemo_gym(names: dict[str, Any]) -> None:
    run_blocks(PAGE, "NeMo-Gym", **names)
    assert all("response" in json.loads(line) for line in Path("rollouts.jsonl").read_text().splitlines())


def test_otel(names: dict[str, Any]) -> None:
    """To an address where nobody listens: that a collector gets the spans is in test_otel.py."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:

        def exporter(*args: Any, **more: Any) -> Any:
            seen.append((args, more))
            return memory

        patch.setattr(trace_exporter, "OTLPSpanExporter", exporter)
        run_blocks(PAGE, "OpenTelemetry", endpoint="http://127.0.0.1/v1/traces", headers={"a": "b"}, **names)
    assert seen == [(("http://127.0.0.1/v1/traces",), {"headers": {"a": "b"}})]
    assert len(memory.get_finished_spans()) == 6 + 18 + 12
