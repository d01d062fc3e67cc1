"""The blocks of docs/export.md that need no consumer; those that do are run in its environment."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import recorded
from tests.export.test_names import EXPORTERS

DOCS = Path(__file__).parents[2] / "docs"
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


def test_what_is_counted_where_there_is_no_place() -> None:
    """The table of what users set, against what each exporter counts."""
    words = {
        "Step.reward": "step rewards",
        "Step.advantage": "step advantages",
        "Step.policy_version": "policy versions",
        "Trajectory.rewards": "rewards by name",
    }
    options: dict[str, dict[str, Any]] = {"tinker": {"advantages": None}, "batches": {"batch_size": 2}}
    exporters = [name for name in EXPORTERS if name != "verl_prompts"] + ["batches", "openrlhf", "trl_rollout"]
    counted: dict[str, set[str]] = {what: set() for what in words}
    for name in exporters:
        report, given = ExportReport(), {"source": "sampled"} if name == "distillation" else options.get(name, {})
        list(getattr(export, name)(recorded.annotated(), report=report, **given))
        for what, reason in words.items():
            if reason in report.dropped:
                counted[what].add(name)
    section = (DOCS / PAGE).read_text(encoding="utf-8").partition("## What has no place")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+\.\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    assert {what: set(re.findall(r"`(\w+)`", names)) for what, names in rows} == counted
