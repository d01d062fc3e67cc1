"""OpenTelemetry: spans in the GenAI semantic conventions, through the SDK.

Shapes: the conventions for GenAI spans and agent spans (``open-telemetry/semantic-conventions-genai``, 2026-08), for
opentelemetry-sdk 1.35 and later. Langfuse and LangSmith read them through OTLP.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollout_trace.export._common import exporting
from rollout_trace.export._episodes import episodes

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport, Strict


def otel(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    provider: TracerProvider | None = None,
    content: bool = True,
    tokens: bool = False,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> int:
    """Sends trajectories as OpenTelemetry spans, with the times at which things happened; returns their number.

    A trace for each run: ``invoke_agent NAME`` for each trajectory (those opened inside another are below it),
    ``chat MODEL`` for each step and ``execute_tool NAME`` for each tool run below it. Attributes are those of the
    GenAI conventions (``gen_ai.request.model``, ``gen_ai.usage.input_tokens``, ``gen_ai.input.messages``, ...); what
    they have no name for begins with ``rollout_trace.``. Failures have the status ERROR, with ``error.type``. Of a
    run's reward there is an event ``gen_ai.evaluation.result``, named ``reward``, and one for each reward by name.

    A span that is not known to have ended ends where it began; one whose start is not known begins with the span above
    it. With ``n > 1`` each choice is a span, and the usage is on the first.

    Args:
        trajectories: one, or any iterable. Those of an episode need not stand together: 256 wait for the others.
        provider: where the spans go; None: the global one (``opentelemetry.trace.get_tracer_provider()``).
        content: messages, tools, arguments and results as attributes.
        tokens: token ids and logprobs as attributes: ``prompt_token_ids`` and ``response_token_ids`` (the names of
            Agent-lightning), ``rollout_trace.logprobs``. The prompt's ids are whole in each span.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out: what a chat message has no place for, and with ``tokens`` the extras.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ImportError: opentelemetry-api is not installed.
    """
    tracer = _tracer(provider)
    from rollout_trace.export._otel_spans import Sender

    with exporting("otel", strict, report) as counts:
        sender = Sender(tracer, content, tokens, counts)
        for group in episodes(trajectories, counts):
            sender.send(group)
    return sender.sent


def _tracer(provider: TracerProvider | None) -> Tracer:
    try:
        from opentelemetry import trace
    except ImportError:
        raise ImportError('export.otel needs OpenTelemetry: pip install ".[otel]"') from None
    from rollout_trace._version import __version__

    return trace.get_tracer("rollout_trace", __version__, tracer_provider=provider)
