"""Traces of Agent-lightning: events of 1.0, spans and triplets of 0.3, and rows of its datasets of turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Step, amend
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing._agent_lightning_triplets import Triplets
from rollout_trace.importing.exchanges import exchange_steps, protocol_of
from rollout_trace.importing.imported import each_file, imported
from rollout_trace.importing.inputs import documents
from rollout_trace.importing.span_tree import trajectories_of
from rollout_trace.importing.span_values import Span, any_value, spans_of
from rollout_trace.importing.steps import number, policy_version
from rollout_trace.wire.steps import Stores
from rollout_trace.wire.tool_results import tool_runs_of

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


class Events:
    """Events, by rollout and attempt, in the order of the file."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rollouts: dict[str, dict[str, list[Fields]]] = {}

    def add(self, record: Fields) -> None:
        """Adds an event."""
        attempts = self._rollouts.setdefault(record.require_name("rollout_id"), {})
        attempts.setdefault(record.name("attempt_id") or "0", []).append(record)

    def trajectories(self) -> Iterator[Trajectory]:
        """The rollouts: of each the last attempt."""
        for rollout, attempts in self._rollouts.items():
            self._job.report.drop("earlier attempts of rollouts", len(attempts) - 1)
            attempt = list(attempts)[-1]
            yield self._trajectory(rollout, attempt, attempts[attempt])

    def _trajectory(self, rollout: str, attempt: str, events: list[Fields]) -> Trajectory:
        stores, name = Stores(), self._job.unique_id(rollout)
        steps: list[Step] = []
        reward, metadata = None, {"imported": {"source": "agent_lightning"}, "attempt_id": attempt}
        for event in events:
            kind, data = event.text("event_type"), event.object("data")
            if data is None:
                event.wrong("data", "an object")
            elif kind == "model_request":
                steps += self._call(event, data, stores, f"{name}.{len(steps)}")
            elif kind == "reward":
                reward = self._reward(data, reward)
            else:
                self._job.report.drop(f"events of the kind {str(kind)[:40]}")
        stores.finish()
        number(steps, self._job.report)
        self._job.report.miss("rewards", reward is None)
        times = [time for event in events if (time := event.time("timestamp")) is not None]
        return Trajectory(
            id=name,
            steps=steps,
            tool_runs=tool_runs_of(steps),
            reward=reward,
            started_at=min((step.started_at for step in steps if step.started_at), default=min(times, default=None)),
            ended_at=max(times, default=None),
            metadata=metadata,
        )

    def _reward(self, data: Fields, before: float | None) -> float | None:
        value = data.number("value")
        if data.get("source") == "fallback":
            self._job.report.drop("rewards that Agent-lightning filled in (source: fallback)")
            return before
        return before if value is None else value

    def _call(self, event: Fields, data: Fields, stores: Stores, name: str) -> list[Step]:
        request, response = data.object("request"), data.get("response")
        is_failed = data.get("status") == "error"
        if not isinstance(response, (dict, list)):
            if response is not None or not is_failed:
                data.wrong("response", "an object, or a list of chunks")
            response = {}
        status, ended, milliseconds = data.count("http_status"), event.time("timestamp"), data.number("latency_ms")
        seconds = None if milliseconds is None or not 0 <= milliseconds < 1e10 else milliseconds / 1e3
        body: dict[str, Any] | None = None if request is None else request.values
        began = None if ended is None or seconds is None else ended - timedelta(seconds=seconds)
        known = status if status is not None and status <= 999 else None
        # Only for how the body is read: a failed call without an answer is an error, one with a part of it is not.
        status = known or (500 if is_failed and not response else 200)
        steps = exchange_steps(
            stores, name, protocol_of(body, response), body, response, status=status, started_at=began, latency=seconds
        )
        server = data.object("server")
        version = policy_version(data, "model_version")
        if version is None and server is not None:
            version = policy_version(server, "version")
        self._job.report.drop("routed experts", data.get("routed_experts") is not None)
        retries = data.count("retry_count")
        for step in steps:
            step.policy_version = version
            if is_failed and step.status == "ok":
                # Such as a stream that broke off: what came of it is kept.
                amend(step, status="error")
            if step.error is not None and not response:
                amend(step, error=replace(step.error, message="", status=known))
            amend(step, attempts=tuple(replace(one, status=known) for one in step.attempts))
            if retries:
                step.metadata = {"retries": retries}
            if step.model is None:
                amend(step, model=data.text("model"))
        return steps
