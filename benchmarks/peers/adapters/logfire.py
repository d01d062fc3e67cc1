"""Logfire, sending nothing, with an exporter in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import logfire
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.peers.adapters.spans import ROOT, SpanAdapter


class Peer(SpanAdapter):
    """The openai SDK of this process, instrumented."""

    imports = "import logfire; logfire.configure, logfire.instrument_openai"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ["LOGFIRE_IGNORE_NO_CONFIG"] = "1"
        self.exporter = InMemorySpanExporter()
        logfire.configure(
            send_to_logfire=False,
            console=False,
            inspect_arguments=False,
            additional_span_processors=[SimpleSpanProcessor(self.exporter)],
        )
        logfire.instrument_openai()

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with logfire.span(ROOT + name, _span_name=ROOT + name):
            yield

    def is_call(self, span: Any) -> bool:
        pending = (span.attributes or {}).get("logfire.span_type") == "pending_span"
        return not pending and super().is_call(span)
