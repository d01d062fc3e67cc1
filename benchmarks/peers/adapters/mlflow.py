"""MLflow's autologging, to a database in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import mlflow.openai

from benchmarks.peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """The openai SDK of this process, patched; traces are written to SQLite."""

    imports = "import mlflow, mlflow.openai; mlflow.openai.autolog"
    keeps_in_memory = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        self._experiments = 0
        self._experiment = ""
        self.clear()
        mlflow.openai.autolog()

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with mlflow.start_span(name=name):
            yield

    def flush(self) -> None:
        mlflow.flush_trace_async_logging()

    def records(self) -> list[Record]:
        traces = mlflow.search_traces(locations=[self._experiment], return_type="list", max_results=50_000)
        return [
            Record(root.name if root is not span else None, span.to_dict(), span.status.status_code.value == "ERROR")
            for trace in traces
            for root in [_root(trace)]
            for span in trace.data.spans
            if span.span_type == "CHAT_MODEL"
        ]

    def clear(self) -> None:
        self._experiments += 1
        self._experiment = mlflow.set_experiment(f"bench-{self._experiments}").experiment_id


def _root(trace: Any) -> Any:
    return next(span for span in trace.data.spans if span.parent_id is None)
