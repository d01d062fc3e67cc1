"""Spans of OpenTelemetry: conventions for GenAI (four generations) and OpenInference."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.plain import dumps
from rollout_trace.importing.fields import OnError
from rollout_trace.importing.imported import JSON, Imported, ImportReport, Job, each_file, imported
from rollout_trace.importing.inputs import Given, Input, documents
from rollout_trace.importing.span_calls import kind_of
from rollout_trace.importing.span_tree import trajectories_of
from rollout_trace.importing.span_values import Span, spans_of
from rollout_trace.wire.span_names import names_of


def otel(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads OTLP JSON files, or one span per line: one trajectory for each agent span with model calls.

    Model calls are spans with the ``gen_ai.operation.name`` chat, generate_content or text_completion, spans of
    OpenInference's kind ``LLM``, and OpenLLMetry's. Of nested ones, the innermost is the call. Messages are available
    only if their capture was switched on. Ids and logprobs are read from ``prompt_token_ids``, ``response_token_ids``
    and ``logprobs.content``, which some writers add: the conventions have no place for them.

    The spans of a trace need not be adjacent, so each file is read completely first.

    Args:
        path: files, folders, patterns, addresses, or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """
    return imported("otel", path, (*JSON, ".ndjson"), on_error, report, each_file(_traces))


def _traces(source: Input, job: Job) -> Iterator[Trajectory]:
    traces: dict[str, list[Span]] = {}
    found = (span for record in documents(source, job.problems) for span in job.guarded(lambda: spans_of(record)))  # noqa: B023
    for number, span in enumerate(joined_streams(found), 1):
        span.order = number
        traces.setdefault(span.trace_id, []).append(span)
    for trace_id, spans in traces.items():
        if any(kind_of(span) == "call" for span in spans):
            made = trajectories_of(spans, job, trace_id)
            job.report.miss("rewards", made[0].reward is None)
            yield from made
        else:
            job.report.drop("traces without a model call")


_ANSWERS = (*names_of("completion"), "response_data", "all_messages_events")
_REQUESTS = ("request_data", *(names_of(field)[0] for field in ("model", "messages", "system")))


def joined_streams(spans: Iterable[Span]) -> list[Span]:
    """The spans; that of a streamed call has what its log says of the answer, and the log is not among them.

    The log names no span: it is of the earliest call with the same request, of its trace where there is one, that has
    no answer yet.
    """
    found = list(spans)
    waiting: dict[bytes, deque[Span]] = defaultdict(deque)
    for span in found:
        if span.text("logfire.span_type") == "span" and span.error is None and not _has_answer(span):
            waiting[_request(span)].append(span)
    kept = []
    for span in found:
        is_log = span.text("logfire.span_type") == "log" and _has_answer(span)
        opened = _pop(waiting.get(_request(span)), span) if is_log else None
        if opened is None:
            kept.append(span)
            continue
        kinds = {name: opened.attributes.get(name) for name in ("logfire.span_type", "logfire.msg")}
        opened.attributes.update({**span.attributes, **kinds})
        opened.ended_at = span.started_at or opened.ended_at
    return kept


def _pop(waiting: deque[Span] | None, log: Span) -> Span | None:
    if not waiting:
        return None
    found = next((one for one in waiting if one.trace_id == log.trace_id), waiting[0])
    waiting.remove(found)
    return found


def _has_answer(span: Span) -> bool:
    return any(span.attributes.get(name) is not None for name in _ANSWERS)


def _request(span: Span) -> bytes:
    return dumps([span.attributes.get(name) for name in _REQUESTS])
