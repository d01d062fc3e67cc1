"""Traces of Agent-lightning: events of 1.0, spans and triplets of 0.3, and rows of its datasets of turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollout_trace.importing._agent_lightning_events import Events
from rollout_trace.importing._agent_lightning_triplets import Triplets
from rollout_trace.importing.imported import each_file, imported
from rollout_trace.importing.inputs import documents
from rollout_trace.importing.span_tree import trajectories_of
from rollout_trace.importing.span_values import Span, any_value, spans_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.importing.fields import Fields, OnError
    from rollout_trace.importing.imported import Imported, Job
    from rollout_trace.importing.inputs import Given, Input
    from rollout_trace.importing.report import ImportReport

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst")


def agent_lightning(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """The rollouts of a file: a trajectory each, from the last attempt.

    Known are events (``model_request`` and ``reward``, with the answers' ids), spans (``rollout_id``, attributes
    ``prompt_token_ids``, ``response_token_ids``, ``logprobs.content``), triplets (``prompt``, ``response``; the reward
    is on the last), and rows of turns (``instance_id``, ``prompt_ids``, ``gold_completion_ids``). A reward whose
    source is ``fallback`` was filled in: it is left out, and counted.

    Rollouts may stand on any lines: each file is read whole.

    Args:
        path: files, folders, patterns, addresses, or an open file.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is none of these.
    """
    return imported("agent_lightning", path, SUFFIXES, on_error, report, each_file(_rollouts))


def _rollouts(source: Input, job: Job) -> Iterator[Trajectory]:
    events, triplets, spans = Events(job), Triplets(job, source.stem), _Spans(job)
    for record in documents(source, job.problems):
        if "event_type" in record.values:
            add = events.add
        elif "span_id" in record.values or "attributes" in record.values:
            add = spans.add
        elif record.values.keys() & {"triplets", "prompt_ids", "gold_completion_ids", "response"}:
            add = triplets.add
        else:
            expected, found = "an event, a span, a triplet or a row", "an object of another kind"
            job.problems.add(record.place.error(record.path, expected, found))
            continue
        job.attempt(add, record)
    for made in (events.trajectories(), spans.trajectories(), triplets.trajectories()):
        yield from made


class _Spans:
    """Spans of 0.3, by rollout and attempt."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rollouts: dict[str, dict[str, list[Span]]] = {}

    def add(self, record: Fields) -> None:
        rollout = record.require_name("rollout_id")
        for span in spans_of(record):
            span.order = record.count("sequence_id") or 0
            attempts = self._rollouts.setdefault(rollout, {})
            attempts.setdefault(record.name("attempt_id") or "0", []).append(span)

    def trajectories(self) -> Iterator[Trajectory]:
        for rollout, attempts in self._rollouts.items():
            self._job.report.drop("earlier attempts of rollouts", len(attempts) - 1)
            spans = attempts[list(attempts)[-1]]
            made = trajectories_of(spans, self._job, rollout)
            if made:
                made[0].reward = _reward(spans)
                self._job.report.miss("rewards", made[0].reward is None)
            yield from made


def _reward(spans: list[Span]) -> float | None:
    """The last reward that was emitted: an annotation's first, or what ``emit_reward`` of older releases wrote."""
    found = None
    for span in sorted(spans, key=lambda one: one.order):
        for name in ("agentlightning.reward.0.value", "reward"):
            value = span.attributes.get(name)
            value = any_value(value) if isinstance(value, dict) else value
            if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf"):
                found = float(value)
    return found
