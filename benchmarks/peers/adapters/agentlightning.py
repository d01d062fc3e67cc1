"""Agent-lightning's tracer on AgentOps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "AGENTOPS_API_KEY": "bench",
    "AGENTOPS_API_ENDPOINT": "http://127.0.0.1:9",
    "AGENTOPS_EXPORTER_ENDPOINT": "http://127.0.0.1:9",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

from agentlightning.tracer.agentops import AgentOpsTracer

from benchmarks.peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """The process has one trace at a time."""

    one_trace = True
    imports = (
        "import os; os.environ['LITELLM_LOCAL_MODEL_COST_MAP'] = 'True'; "
        "from agentlightning.tracer.agentops import AgentOpsTracer"
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._tracer = AgentOpsTracer()
        self._tracer.init()
        self._tracer.init_worker(0)
        self._kept: list[tuple[str, Any]] = []

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with self._tracer._trace_context_sync(name=name):
            yield
        self._kept += [(name, span) for span in self._tracer.get_last_trace() if _is_call(span)]

    def count(self) -> int:
        return len(self._kept)

    def records(self) -> list[Record]:
        return [
            Record(name, span.model_dump(mode="json"), failed=span.status.status_code == "ERROR")
            for name, span in self._kept
        ]

    def clear(self) -> None:
        self._kept.clear()


def _is_call(span: Any) -> bool:
    return "chat.completion" in span.name
