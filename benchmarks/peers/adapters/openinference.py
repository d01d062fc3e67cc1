"""Arize's OpenInference instrumentation of openai, with OpenTelemetry's SDK, to its exporter in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.peers.adapters.spans import ROOT, SpanAdapter


class Peer(SpanAdapter):
    """The openai SDK of this process, instrumented."""

    imports = (
        "from openinference.instrumentation.openai import OpenAIInstrumentor; "
        "from opentelemetry.sdk.trace import TracerProvider; "
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor"
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._tracer = provider.get_tracer("bench")
        OpenAIInstrumentor().instrument(tracer_provider=provider)

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with self._tracer.start_as_current_span(ROOT + name):
            yield
