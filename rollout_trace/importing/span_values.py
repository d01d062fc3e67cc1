"""Spans of traces: OTLP JSON, the SDK's own JSON, and spans whose attributes are plain objects."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rollout_trace.data.model import ErrorInfo
from rollout_trace.importing.fields import Fields, is_whole, time_of
from rollout_trace.wire.span_names import names_of

_DEPTH = 100
_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""What the JSON of protobuf has for numbers that JSON does not."""
_HEX = frozenset("0123456789abcdefABCDEF")


@dataclass(slots=True)
class Span:
    """One span, its attributes as plain values."""

    fields: Fields
    id: str
    trace_id: str
    parent_id: str | None
    name: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Name and attributes of each."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: ErrorInfo | None = None
    order: int = 0
    """Position in the file, or the number that its writer gave it."""
    resource: dict[str, Any] = field(default_factory=dict)

    def text(self, *names: str) -> str | None:
        """The first of these attributes that is a text which is not empty."""
        return next((one for name in names if isinstance(one := self.attributes.get(name), str) and one), None)

    def first(self, field: str) -> Any:
        """The first attribute that stands for a field of ours, of any type."""
        return next((self.attributes[name] for name in names_of(field) if name in self.attributes), None)

    @property
    def seconds(self) -> float | None:
        """Its duration; None where a time is missing, or the end is before the begin."""
        if self.started_at is None or self.ended_at is None or self.ended_at < self.started_at:
            return None
        return (self.ended_at - self.started_at).total_seconds()


def spans_of(record: Fields) -> Iterator[Span]:
    """The spans of one JSON object: a batch of OTLP's, or one span."""
    batches = "resourceSpans" if "resourceSpans" in record.values else "resource_spans"
    if batches in record.values:
        for batch in record.objects(batches):
            resource = batch.object("resource")
            facts = attributes_of(resource)
            for name in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
                for scope in batch.objects(name):
                    for span in scope.objects("spans"):
                        yield _span(span, facts)
        return
    resource = record.object("resource")
    yield _span(record, attributes_of(resource))


def _span(fields: Fields, resource: dict[str, Any]) -> Span:
    context = fields.object("context") or fields
    own = _id(context, "spanId", "span_id")
    trace = _id(context, "traceId", "trace_id")
    if own is None:
        context.refuse("spanId", "the id of a span")
    found = Span(
        fields,
        own,
        trace or own,
        _id(fields, "parentSpanId", "parent_span_id", "parent_id"),
        fields.text("name") or "",
        attributes_of(fields),
        started_at=_time(fields, "startTimeUnixNano", "start_time_unix_nano", "start_time"),
        ended_at=_time(fields, "endTimeUnixNano", "end_time_unix_nano", "end_time"),
        resource=resource,
    )
    found.events = [(event.text("name") or "", attributes_of(event)) for event in fields.objects("events")]
    found.error = _error(found)
    return found


def _id(fields: Fields, *names: str) -> str | None:
    """An id in hex, without 0x; None for one that is empty or of zeros alone."""
    name = next((one for one in names if fields.get(one) is not None), names[0])
    text = fields.text(name)
    if not text:
        return None
    text = text.removeprefix("0x")
    if (len(text) in (12, 24) and text.endswith("=")) or not set(text) <= _HEX:
        try:
            # The JSON of protobuf's own writer has bytes in base64.
            text = base64.b64decode(text, validate=True).hex()
        except (binascii.Error, ValueError):
            return text
    return text.lower() if text.strip("0") else None


def _time(fields: Fields, *names: str) -> datetime | None:
    name = next((one for one in names if fields.get(one) is not None), None)
    if name is None:
        return None
    value = fields.get(name)
    if "nano" not in name.lower():
        return fields.time(name)
    number = int(value) if isinstance(value, int) or _is_digits(value) else -1
    found = time_of(number / 1e9) if 0 <= number < 2**63 else None
    if found is None and value not in (0, "0"):
        fields.wrong(name, "nanoseconds since 1970")
    return found


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 25


def attributes_of(fields: Fields) -> dict[str, Any]:
    """The attributes of a span, an event or a resource, as plain values by their names."""
    given = fields.get("attributes")
    if isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    for item in fields.objects("attributes"):
        key = item.text("key")
        if key is not None:
            found[key] = any_value(item.get("value"))
    return found


def any_value(value: Any, depth: int = 0) -> Any:
    """The plain value of OTLP's ``AnyValue``; None for one of an unknown form."""
    if not isinstance(value, dict) or depth > _DEPTH:
        return None
    for name, item in value.items():
        if name in ("intValue", "int_value"):
            return _integer(item)
        if name in ("doubleValue", "double_value"):
            return _WORDS.get(item, item) if isinstance(item, str) else item
        if name in ("stringValue", "boolValue", "string_value", "bool_value"):
            return item
        inner = item.get("values") if isinstance(item, dict) else None
        inner = inner if isinstance(inner, list) else []
        if name in ("arrayValue", "array_value"):
            return [any_value(one, depth + 1) for one in inner]
        if name in ("kvlistValue", "kvlist_value"):
            pairs = [one for one in inner if isinstance(one, dict)]
            return {str(one.get("key")): any_value(one.get("value"), depth + 1) for one in pairs}
    return None


def _integer(value: Any) -> int | None:
    if is_whole(value):
        return int(value)
    text = value.removeprefix("-") if isinstance(value, str) else ""
    return int(value) if _is_digits(text) else None


def _error(span: Span) -> ErrorInfo | None:
    status = span.fields.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    kind = span.text("error.type")
    exception = next((facts for name, facts in span.events if name == "exception"), {})
    if kind is None and code not in (2, "STATUS_CODE_ERROR", "ERROR", "StatusCode.ERROR"):
        return None
    texts = [exception.get("exception.message")]
    if isinstance(status, dict):
        texts += [status.get("message"), status.get("description")]
    message = next((text for text in texts if isinstance(text, str) and text), "")
    named = exception.get("exception.type")
    return ErrorInfo(type=kind or (named if isinstance(named, str) else "Error"), message=message)


def as_json(value: Any) -> Any:
    """The value of an attribute that may be JSON as a text; the text itself where it is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
