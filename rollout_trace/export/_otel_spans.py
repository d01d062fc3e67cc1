"""Spans of runs, for ``export.otel``. Imports OpenTelemetry."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from rollout_trace.export._otel_attributes import agent_attributes, call_attributes, operation_of, tool_attributes
from rollout_trace.export._strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span, Tracer

    from rollout_trace.data.model import ErrorInfo
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport


FLUSHED = 512
"""Number of spans after which the provider is asked to send them. Its queue is bounded (2,048 by default), and drops
what a slow collector has not taken."""
_FAILED = frozenset({"error", "cancelled", "abandoned", "failed", "aborted"})


class Sender:
    """The spans of runs, one run at a time."""

    def __init__(
        self, tracer: Tracer, flush: Callable[[], object], content: bool, tokens: bool, report: ExportReport
    ) -> None:
        self._tracer = tracer
        self._flush = flush
        self._ended = 0
        self._content = content
        self._tokens = tokens
        self._report = report
        self.sent = 0

    def send(self, group: list[Trajectory]) -> None:
        """The spans of an episode. A trajectory whose parent is not among them begins a trace of its own."""
        ids = {trajectory.id for trajectory in group}
        children: dict[str | None, list[Trajectory]] = {}
        for trajectory in group:
            parent = trajectory.parent_id if trajectory.parent_id in ids else None
            children.setdefault(parent, []).append(trajectory)
        # Without recursion: agents may be nested deeply. In a file of another program parents may form a circle.
        waiting = [(one, _nowhere(), 0) for one in reversed(children.pop(None, []))]
        while waiting or children:
            if not waiting:
                waiting = [(one, _nowhere(), 0) for one in children.pop(next(iter(children)))]
            trajectory, above, earliest = waiting.pop()
            context, begin = self._trajectory(trajectory, above, earliest)
            waiting += [(one, context, begin) for one in reversed(children.pop(trajectory.id, []))]

    def _trajectory(self, trajectory: Trajectory, above: Context, earliest: int) -> tuple[Context, int]:
        begin = _begin(trajectory, earliest)
        span = self._start(f"invoke_agent {trajectory.name}", above, begin)
        self._set(span, agent_attributes(trajectory, self._content), f"trajectory {trajectory.id}")
        context = set_span_in_context(span, above)
        end = self._inside(trajectory, context, begin)
        end = _nanoseconds(trajectory.ended_at) or end
        rewards = dict(trajectory.rewards or {})
        if trajectory.reward is not None:
            rewards["reward"] = trajectory.reward
        for name, value in rewards.items():
            event: dict[str, Any] = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": float(value)}
            span.add_event("gen_ai.evaluation.result", event, timestamp=end)
        self._finish(span, end, trajectory.error, trajectory.status)
        self._report.read_one()
        return context, begin

    def _inside(self, trajectory: Trajectory, context: Context, begin: int) -> int:
        """The spans of steps and tool runs; returns the end of the last one."""
        ends, contexts, calls = [begin], {}, set()
        for step in trajectory.steps:
            first = step.call_id not in calls
            calls.add(step.call_id)
            started = _nanoseconds(step.started_at) or begin
            name = f"{operation_of(step)} {step.model or 'unknown'}"
            span = self._start(name, context, started, SpanKind.CLIENT)
            attributes = call_attributes(step, self._content, self._tokens, self._report, first=first)
            self._set(span, attributes, f"step {step.id}")
            contexts[step.id] = set_span_in_context(span, context)
            ends.append(started + _duration(step.latency))
            self._finish(span, ends[-1], step.error, step.status)
        for run in trajectory.tool_runs:
            started = _nanoseconds(run.started_at) or begin
            above = contexts.get(run.step_id or "", context)
            span = self._start(f"execute_tool {run.name or 'unknown'}", above, started)
            self._set(span, tool_attributes(run, self._content), f"trajectory {trajectory.id}")
            ends.append(started + _duration(run.duration))
            self._finish(span, ends[-1], run.error)
        return max(ends)

    def _start(self, name: str, context: Context, begin: int, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        self.sent += 1
        return self._tracer.start_span(_whole_text(name), context=context, kind=kind, start_time=begin)

    def _set(self, span: Span, attributes: dict[str, Any], where: str) -> None:
        span.set_attributes(strict_json(attributes, self._report, where))

    def _finish(self, span: Span, end: int, error: ErrorInfo | None, status: str = "") -> None:
        if error is not None:
            span.set_attribute("error.type", _whole_text(error.type))
            span.set_status(Status(StatusCode.ERROR, _whole_text(error.message)))
        elif status in _FAILED:
            span.set_attribute("error.type", status)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=end)
        self._ended += 1
        if self._ended % FLUSHED == 0:
            self._flush()


def _nowhere() -> Context:
    # Not None, which would put a run below whatever span is current here.
    return Context()


def _begin(trajectory: Trajectory, earliest: int) -> int:
    moments = [step.started_at for step in trajectory.steps if step.started_at is not None]
    return _nanoseconds(trajectory.started_at or min(moments, default=None)) or earliest


def _whole_text(text: str) -> str:
    """The text with U+FFFD for half characters, which no exporter can send."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _duration(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _nanoseconds(moment: datetime | None) -> int | None:
    # Integers: a float of seconds has no room for nanoseconds.
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1) * 1000
