"""Agent-lightning's own models take the rollouts, and its adapter makes triplets of our spans."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from page_blocks import run_blocks

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.report import ExportReport
from tests.consumers import recorded
from tests.consumers.modules import skip_init

skip_init("agentlightning")
from agentlightning.adapter.triplet import TracerTraceToTriplet  # noqa: E402 - after its package is in place
from agentlightning.types import RolloutLegacy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of Agent-lightning itself


@pytest.mark.parametrize("made", recorded.EVERY, ids=lambda made: made.__name__)
def test_its_models_take_every_rollout(made: Callable[[], list[rt.Trajectory]]) -> None:
    for row in export.agent_lightning(made(), report=ExportReport()):
        read = RolloutLegacy.model_validate_json(json.dumps(row))
        assert read.final_reward == row["final_reward"]
        assert read.triplets is not None
        assert [triplet.model_dump() for triplet in read.triplets] == row["triplets"]
        # What the verl daemon reads of them.
        assert all(one.prompt["token_ids"] and one.response["token_ids"] for one in read.triplets)


def test_its_adapter_makes_triplets_of_spans() -> None:
    (run,) = recorded.bad_arguments()
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    export.otel(run, provider=provider, tokens=True, report=ExportReport())
    triplets = TracerTraceToTriplet(llm_call_match=r"^chat ").adapt(list(memory.get_finished_spans()))
    found: Any = [(list(one.prompt["token_ids"]), list(one.response["token_ids"])) for one in triplets]
    assert found == [
        (step.prompt_token_ids.tolist(), step.completion_token_ids.tolist())  # type: ignore[union-attr]
        for step in run.steps
    ]


def test_the_block_of_the_page() -> None:
    names = {"export": export, "RolloutLegacy": RolloutLegacy, "trajectories": recorded.tool_agent()}
    found = run_blocks("docs/export.md", "Agent-lightning", **names)
    assert [len(rollout.triplets) for rollout in found["rollouts"]] == [3] * 6
