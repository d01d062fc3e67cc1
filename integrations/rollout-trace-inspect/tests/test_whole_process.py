"""``rt.instrument(hooks=True)``: every run of the process is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whole_process import assert_runs_are_recorded

from rollout_trace.testing import ScriptedServer
from rollout_trace_inspect import record

from .harness import Evals, adding, adding_task, plain_model


def test_every_evaluation_of_the_process_is_recorded(evals: Evals, tmp_path: Path) -> None:
    def make(server: ScriptedServer) -> list[Any]:
        model: Any = plain_model(server, memoize=False)
        return [model, model.api, model.api.client]

    path = tmp_path / "runs.jsonl"
    assert_runs_are_recorded(
        path,
        adding(2),
        make,
        lambda model: evals.run(adding_task(), model),
        lambda model: record(model, engine="vllm"),
        package="inspect_ai",
    )
