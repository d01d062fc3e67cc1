"""Spans of OpenTelemetry: conventions for GenAI (four generations) and OpenInference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollout_trace.importing.imported import each_file, imported
from rollout_trace.importing.inputs import documents
from rollout_trace.importing.span_steps import kind_of
from rollout_trace.importing.span_streams import joined_streams
from rollout_trace.importing.span_tree import trajectories_of
from rollout_trace.importing.span_values import Span, spans_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.importing.fields import OnError
    from rollout_trace.importing.imported import Imported, Job
    from rollout_trace.importing.inputs import Given, Input
    from rollout_trace.importing.report import ImportReport

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst", ".ndjson")


def otel(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """The traces of OTLP JSON files, or of spans by lines: a trajectory for each agent span with model calls.

    Model calls are spans of ``gen_ai.operation.name`` chat, generate_content and text_completion, of OpenInference's
    kind ``LLM``, and OpenLLMetry's. Of spans around each other the innermost is the call. Messages are there only
    where their capture was switched on. Ids and logprobs are read from ``prompt_token_ids``, ``response_token_ids`` and
    ``logprobs.content``, which some writers add: the conventions have no place for them.

    The spans of a trace may stand on any lines: each file is read whole.

    Args:
        path: files, folders, patterns, addresses, or an open file.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is no span.
    """
    return imported("otel", path, SUFFIXES, on_error, report, each_file(_traces))


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
