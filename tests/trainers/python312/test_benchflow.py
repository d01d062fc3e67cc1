"""BenchFlow's own exchanges, and the rows for fine-tuning that it makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.report import ExportReport
from tests.consumers import closed_exchange, recorded
from tests.consumers.modules import skip_init

skip_init("benchflow", "benchflow.trajectories")
from benchflow.trajectories.types import LLMExchange, LLMRequest, LLMResponse, Trajectory  # noqa: E402 - after its package is in place


def read(path: Path) -> list[Any]:
    return [LLMExchange.model_validate_json(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("made", recorded.EVERY, ids=lambda made: made.__name__)
def test_it_takes_every_line(made: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    runs = made()
    count = export.write_exchanges(tmp_path / "llm_trajectory.jsonl", runs, report=ExportReport())
    exchanges = read(tmp_path / "llm_trajectory.jsonl")
    assert len(exchanges) == count
    for exchange, row in zip(exchanges, export.exchanges(runs, report=ExportReport()), strict=True):
        assert exchange.response.status_code == row["response"]["status_code"]
        assert exchange.duration_ms == row.get("duration_ms", 0.0)
        assert exchange.response.body == row["response"]["body"]


def test_it_counts_the_tokens_and_has_the_conversation(tmp_path: Path) -> None:
    run = recorded.tool_agent()[0]
    export.write_exchanges(tmp_path / "llm_trajectory.jsonl", run)
    whole = Trajectory(session_id="a", exchanges=read(tmp_path / "llm_trajectory.jsonl"))
    assert whole.has_provider_usage
    assert (whole.total_input_tokens, whole.total_output_tokens) == (run.n_input_tokens, run.n_output_tokens)
    assert [message["role"] for message in whole.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip


def test_lines_are_closed_records_of_its_fields() -> None:
    """Its models ignore what they do not know: a line that ``closed_exchange`` reads has their fields, and ours."""
    ours = {
        LLMRequest: closed_exchange.Request,
        LLMResponse: closed_exchange.Response,
        LLMExchange: closed_exchange.Exchange,
    }
    for theirs, closed in ours.items():
        more = closed_exchange.OWN if theirs is LLMExchange else ()
        assert {*theirs.model_fields, *more} == set(closed.__struct_fields__)
