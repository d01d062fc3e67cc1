"""OpenTelemetry: spans in the GenAI semantic conventions, through the SDK.

Shapes: the conventions for GenAI spans and agent spans (``open-telemetry/semantic-conventions-genai`` 0.1.0), for
opentelemetry-sdk 1.35 and later. Langfuse and LangSmith read them through OTLP.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollout_trace.export._common import episodes, exporting

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

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
    ``chat MODEL`` for each step (``text_completion``, ``generate_content`` for endpoints of prompts and of Google) and
    ``execute_tool NAME`` for each tool run below it. Attributes are those of the GenAI conventions
    (``gen_ai.request.model``, ``gen_ai.usage.input_tokens``, ``gen_ai.input.messages``, ...); what they have no name
    for begins with ``rollout_trace.``. Failures have the status ERROR, with ``error.type``: the error's, else the
    status. Of a run's reward there is an event ``gen_ai.evaluation.result``, named ``reward``, and one for each reward
    by name.

    A span that is not known to have ended ends where it began; one whose start is not known begins with the span above
    it. With ``n > 1`` each choice is a span, and the usage is on the first. The provider is asked to send every 512
    spans, as its queue drops what a slow collector does not take in time.

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
    provider = provider or _global_provider()
    from rollout_trace._version import __version__
    from rollout_trace.export._otel_spans import Sender

    tracer = provider.get_tracer("rollout_trace", __version__)
    # The API alone has no such method.
    flush = getattr(provider, "force_flush", bool)
    with exporting("otel", strict, report) as counts:
        sender = Sender(tracer, flush, content, tokens, counts)
        for group in episodes(trajectories, counts):
            sender.send(group)
    return sender.sent


def _global_provider() -> TracerProvider:
    try:
        from opentelemetry import trace
    except ImportError:
        raise ImportError('export.otel needs OpenTelemetry: pip install ".[otel]"') from None
    return trace.get_tracer_provider()
