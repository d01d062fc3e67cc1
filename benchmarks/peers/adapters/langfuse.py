"""Langfuse's drop-in client, with an exporter in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import langfuse
import langfuse.openai  # patches the SDK
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.peers.adapters.spans import ROOT, SpanAdapter


class Peer(SpanAdapter):
    """`langfuse.openai` patches the SDK when it is imported."""

    imports = "import langfuse; from langfuse.openai import OpenAI"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk-lf-bench", "LANGFUSE_SECRET_KEY": "sk-lf-bench"}
        self.exporter = InMemorySpanExporter()
        self._langfuse = langfuse.Langfuse(base_url="http://127.0.0.1:9", span_exporter=self.exporter)

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with self._langfuse.start_as_current_observation(name=ROOT + name, as_type="span"):
            yield

    def flush(self) -> None:
        self._langfuse.flush()

    def failed(self, span: Any) -> bool:
        level = (span.attributes or {}).get("langfuse.observation.level")
        return level == "ERROR" or super().failed(span)
