"""What the peers on OpenTelemetry share: spans in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from benchmarks.peers.adapters.base import Adapter, Record

ROOT = "trace:"
"""Begins the names of the spans that hold the calls of one agent."""


class SpanAdapter(Adapter):
    """A peer whose spans go to an exporter in memory."""

    exporter: InMemorySpanExporter

    def count(self) -> int:
        return sum(self.is_call(span) for span in self.exporter.get_finished_spans())

    def records(self) -> list[Record]:
        spans = self.exporter.get_finished_spans()
        names = {span.context.trace_id: span.name[len(ROOT) :] for span in spans if span.name.startswith(ROOT)}
        return [
            Record(names.get(span.context.trace_id), _content(span), self.failed(span))
            for span in spans
            if self.is_call(span)
        ]

    def is_call(self, span: Any) -> bool:
        """Whether a span is a model call's."""
        return not span.name.startswith(ROOT)

    def failed(self, span: Any) -> bool:
        """Whether a span is marked as failed."""
        return bool(span.status.status_code is StatusCode.ERROR)

    def clear(self) -> None:
        self.exporter.clear()


def _content(span: Any) -> dict[str, Any]:
    events = [{"name": event.name, **dict(event.attributes or {})} for event in span.events]
    status = [span.status.status_code.name, span.status.description]
    return {"name": span.name, "status": status, "attributes": dict(span.attributes or {}), "events": events}
