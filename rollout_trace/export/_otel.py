"""OpenTelemetry: spans in the GenAI semantic conventions, through the SDK.

Shapes: the conventions for GenAI spans and agent spans (``open-telemetry/semantic-conventions-genai`` 0.1.0), for
opentelemetry-sdk 1.35 and later. Langfuse and LangSmith read them through OTLP.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from rollout_trace._version import __version__
from rollout_trace._wrong_use import import_extra
from rollout_trace.export._exporter import exporting
from rollout_trace.export._otel_attributes import agent_attributes, call_attributes, operation_of, tool_attributes
from rollout_trace.export._rows import episodes
from rollout_trace.export._values import strict_json, whole_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from rollout_trace.data.model import ErrorInfo
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Trajectories
    from rollout_trace.report import ExportReport, Strict

FLUSHED = 512
"""Number of spans after which the provider is asked to send them. Its queue is bounded (2,048 by default), and drops
what a slow collector has not taken."""
_FAILED = frozenset({"error", "cancelled", "abandoned", "failed", "aborted"})
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def otel(
    trajectories: Trajectories,
    *,
    provider: TracerProvider | None = None,
    content: bool = True,
    tokens: bool = False,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> int:
    """Sends trajectories as OpenTelemetry spans, with the times at which things happened; returns their number.

    Each run is a trace: a span ``invoke_agent NAME`` for each trajectory (nested like the trajectories), and below it
    ``chat MODEL`` for each step (``text_completion`` for prompt endpoints, ``generate_content`` for Google's) and
    ``execute_tool NAME`` for each tool run. Attributes are those of the GenAI conventions (``gen_ai.request.model``,
    ``gen_ai.usage.input_tokens``, ``gen_ai.input.messages``, ...); attributes without a name there begin with
    ``rollout_trace.``. Failures have the status ERROR and an ``error.type``: the error's type, otherwise the status. A
    run's reward is an event ``gen_ai.evaluation.result`` named ``reward``; each named reward is another.

    A span without a known end ends where it began; one without a known start begins with its parent. With ``n > 1``
    each choice is a span, and the usage is on the first. The provider is flushed every 512 spans, because its queue
    drops spans that a slow collector does not take in time.

    Args:
        trajectories: one, or any iterable. Trajectories of an episode need not be adjacent: up to 256 wait for the
            others.
        provider: where the spans go; None: the global one (``opentelemetry.trace.get_tracer_provider()``).
        content: send messages, tools, arguments and results as attributes.
        tokens: send token ids and logprobs as attributes: ``prompt_token_ids`` and ``response_token_ids`` (the names of
            Agent-lightning), ``rollout_trace.logprobs``. Each span has all ids of its prompt.
        report: counts what is left out: what a chat message has no place for and, with ``tokens``, the extras.

    Raises:
        ImportError: opentelemetry-api is not installed.
    """
    provider = provider or import_extra("opentelemetry.trace", "export.otel needs", ".[otel]").get_tracer_provider()
    with exporting("otel", strict, report) as counts:
        sender = _Sender(provider, content, tokens, counts)
        for group in episodes(trajectories, counts):
            sender.send(group)
    return sender.sent


class _Sender:
    """The spans of runs, one run at a time."""

    def __init__(self, provider: TracerProvider, content: bool, tokens: bool, report: ExportReport) -> None:
        from opentelemetry import context, trace

        self._context, self._trace = context, trace
        self._tracer = provider.get_tracer("rollout_trace", __version__)
        # The API alone has no such method.
        self._flush = getattr(provider, "force_flush", bool)
        self._content, self._tokens, self._report = content, tokens, report
        self._ended = self.sent = 0

    def send(self, group: list[Trajectory]) -> None:
        """The spans of an episode. A trajectory whose parent is not among them begins a trace of its own."""
        ids = {trajectory.id for trajectory in group}
        children: dict[str | None, list[Trajectory]] = {}
        for trajectory in group:
            parent = trajectory.parent_id if trajectory.parent_id in ids else None
            children.setdefault(parent, []).append(trajectory)
        # Without recursion: agents may be nested deeply. In a file of another program parents may form a circle.
        # A context of its own, not None, which would put a run below whatever span is current here.
        waiting = [(one, self._context.Context(), 0) for one in reversed(children.pop(None, []))]
        while waiting or children:
            if not waiting:
                waiting = [(one, self._context.Context(), 0) for one in children.pop(next(iter(children)))]
            trajectory, above, earliest = waiting.pop()
            context, begin = self._trajectory(trajectory, above, earliest)
            waiting += [(one, context, begin) for one in reversed(children.pop(trajectory.id, []))]

    def _trajectory(self, trajectory: Trajectory, above: Context, earliest: int) -> tuple[Context, int]:
        begin = _begin(trajectory, earliest)
        span = self._start(f"invoke_agent {trajectory.name}", above, begin)
        self._set(span, agent_attributes(trajectory, self._content), f"trajectory {trajectory.id}")
        context = self._trace.set_span_in_context(span, above)
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
            span = self._start(name, context, started, is_client=True)
            attributes = call_attributes(step, self._content, self._tokens, self._report, first=first)
            self._set(span, attributes, f"step {step.id}")
            contexts[step.id] = self._trace.set_span_in_context(span, context)
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

    def _start(self, name: str, context: Context, begin: int, is_client: bool = False) -> Span:
        self.sent += 1
        kind = self._trace.SpanKind.CLIENT if is_client else self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(whole_text(name), context=context, kind=kind, start_time=begin)

    def _set(self, span: Span, attributes: dict[str, Any], where: str) -> None:
        span.set_attributes(strict_json(attributes, self._report, where))

    def _finish(self, span: Span, end: int, error: ErrorInfo | None, status: str = "") -> None:
        if error is not None:
            span.set_attribute("error.type", whole_text(error.type))
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, whole_text(error.message)))
        elif status in _FAILED:
            span.set_attribute("error.type", status)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.end(end_time=end)
        self._ended += 1
        if self._ended % FLUSHED == 0:
            self._flush()


def _begin(trajectory: Trajectory, earliest: int) -> int:
    moments = [step.started_at for step in trajectory.steps if step.started_at is not None]
    return _nanoseconds(trajectory.started_at or min(moments, default=None)) or earliest


def _duration(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)


def _nanoseconds(moment: datetime | None) -> int | None:
    # Integers: a float of seconds has no room for nanoseconds.
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1) * 1000
