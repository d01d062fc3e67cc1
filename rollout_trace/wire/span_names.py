"""Names of our fields in span conventions: OpenTelemetry's for GenAI, OpenInference's, OpenLLMetry's, others.

Importers read all names of a field, the first that is there; ``export.otel`` writes the first. Counts of tokens and
costs have a table of their own: ``rollout_trace/data/counts.py``.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

SpanKind: TypeAlias = Literal["call", "tool", "agent"]
_OTEL = "OpenTelemetry's conventions for GenAI 0.1.0"
_OPENINFERENCE = "OpenInference 0.1.42, source"
_OPENLLMETRY = "OpenLLMetry 0.5.1, source"
_LIGHTNING = "Agent-lightning 0.3, spans"
_PYDANTIC_AI = "Pydantic AI before 2, spans"
_CALLS = frozenset({"chat", "generate_content", "text_completion", "completion"})


class KindPlace(NamedTuple):
    """Values of an attribute that say what a span is of."""

    kind: SpanKind
    name: str
    values: frozenset[str]
    seen: str
    """Who writes it, and the evidence."""


KINDS: Final = (
    KindPlace("call", "gen_ai.operation.name", _CALLS, _OTEL),
    KindPlace("call", "openinference.span.kind", frozenset({"LLM"}), _OPENINFERENCE),
    KindPlace("call", "llm.request.type", _CALLS, _OPENLLMETRY),
    KindPlace("tool", "gen_ai.operation.name", frozenset({"execute_tool"}), _OTEL),
    KindPlace("tool", "openinference.span.kind", frozenset({"TOOL"}), _OPENINFERENCE),
    KindPlace("tool", "traceloop.span.kind", frozenset({"tool"}), _OPENLLMETRY),
    KindPlace("agent", "gen_ai.operation.name", frozenset({"invoke_agent", "invoke_workflow"}), _OTEL),
    KindPlace("agent", "openinference.span.kind", frozenset({"AGENT"}), _OPENINFERENCE),
    KindPlace("agent", "traceloop.span.kind", frozenset({"agent"}), _OPENLLMETRY),
)


class NamePlace(NamedTuple):
    """A name of a field."""

    field: str
    name: str
    seen: str
    """Who writes it, and the evidence."""


NAMES: Final = (
    NamePlace("agent", "gen_ai.agent.name", _OTEL),
    NamePlace("trajectory name", "gen_ai.agent.name", _OTEL),
    NamePlace("trajectory name", "agent.name", _OPENINFERENCE),
    NamePlace("trajectory name", "agent_name", _PYDANTIC_AI),
    NamePlace("trajectory name", "traceloop.entity.name", _OPENLLMETRY),
    NamePlace("model", "gen_ai.request.model", _OTEL),
    NamePlace("model", "llm.request.model_name", _OPENINFERENCE),
    NamePlace("model", "llm.model_name", _OPENINFERENCE),
    NamePlace("response_model", "gen_ai.response.model", _OTEL),
    NamePlace("response_model", "llm.response.model_name", _OPENINFERENCE),
    NamePlace("response_model", "llm.model_name", _OPENINFERENCE),
    NamePlace("response_id", "gen_ai.response.id", _OTEL),
    NamePlace("finish_reasons", "gen_ai.response.finish_reasons", _OTEL),
    NamePlace("time_to_first_token", "gen_ai.response.time_to_first_chunk", _OTEL),
    NamePlace("choices", "gen_ai.request.choice.count", _OTEL),
    NamePlace("parameters", "llm.invocation_parameters", _OPENINFERENCE),
    NamePlace("parameters", "request_data", "Logfire, recorded"),
    NamePlace("temperature", "gen_ai.request.temperature", _OTEL),
    NamePlace("top_p", "gen_ai.request.top_p", _OTEL),
    NamePlace("top_k", "gen_ai.request.top_k", _OTEL),
    NamePlace("max_tokens", "gen_ai.request.max_tokens", _OTEL),
    NamePlace("seed", "gen_ai.request.seed", _OTEL),
    NamePlace("frequency_penalty", "gen_ai.request.frequency_penalty", _OTEL),
    NamePlace("presence_penalty", "gen_ai.request.presence_penalty", _OTEL),
    NamePlace("stop", "gen_ai.request.stop_sequences", _OTEL),
    NamePlace("system", "gen_ai.system_instructions", _OTEL),
    NamePlace("messages", "gen_ai.input.messages", _OTEL),
    NamePlace("completion", "gen_ai.output.messages", _OTEL),
    NamePlace("tools", "gen_ai.tool.definitions", _OTEL),
    NamePlace("tool_call_id", "gen_ai.tool.call.id", _OTEL),
    NamePlace("tool_call_id", "tool_call.id", _OPENINFERENCE),
    NamePlace("tool_call_id", "tool.id", _OPENINFERENCE),
    NamePlace("tool name", "gen_ai.tool.name", _OTEL),
    NamePlace("tool name", "tool.name", _OPENINFERENCE),
    NamePlace("tool name", "traceloop.entity.name", _OPENLLMETRY),
    NamePlace("arguments", "gen_ai.tool.call.arguments", _OTEL),
    NamePlace("arguments", "input.value", _OPENINFERENCE),
    NamePlace("arguments", "tool_arguments", _PYDANTIC_AI),
    NamePlace("result", "gen_ai.tool.call.result", _OTEL),
    NamePlace("result", "output.value", _OPENINFERENCE),
    NamePlace("result", "tool_response", _PYDANTIC_AI),
    NamePlace("prompt_token_ids", "prompt_token_ids", _LIGHTNING),
    NamePlace("completion_token_ids", "response_token_ids", _LIGHTNING),
    NamePlace("completion_token_ids", "completion_token_ids", "the field's own name"),
    NamePlace("logprobs", "logprobs.content", _LIGHTNING),
    NamePlace("logprobs", "logprobs", "the field's own name"),
    NamePlace("logprobs", "rollout_trace.logprobs", "this library's own export"),
    NamePlace("logprobs", "response_logprobs", _LIGHTNING),
)
_NAMES: Final = {row.field: tuple(one.name for one in NAMES if one.field == row.field) for row in NAMES}
SAMPLING: Final = ("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty")
"""Fields of the table that are numbers of a request."""


def names_of(field: str) -> tuple[str, ...]:
    """The names of a field of ``NAMES``, the conventions' own first."""
    return _NAMES[field]


def kind_in(attributes: dict[str, Any]) -> SpanKind | None:
    """What a span with these attributes is of, by ``KINDS``; None where no row says it."""
    return next((row.kind for row in KINDS if str(attributes.get(row.name)) in row.values), None)
