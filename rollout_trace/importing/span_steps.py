"""Model calls and tools among the spans of one trace, as steps and tool runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_trace.data.counts import SPAN_COSTS, count_at, counts_from
from rollout_trace.data.model import Completion, Step, ToolCall, ToolRun, Usage
from rollout_trace.importing import span_own
from rollout_trace.importing.chat import arguments_text, chat_calls
from rollout_trace.importing.fields import Fields, as_float, is_finite
from rollout_trace.importing.span_messages import Conversation
from rollout_trace.importing.span_values import Span, as_json
from rollout_trace.importing.steps import SharedStores, token_fields, usd

if TYPE_CHECKING:
    from rollout_trace.importing.imported import Job

_CALLS = frozenset({"chat", "generate_content", "text_completion", "completion"})
_AGENTS = frozenset({"invoke_agent", "invoke_workflow"})
_ARGUMENTS = ("gen_ai.tool.call.arguments", "input.value", "tool_arguments")
_RESULTS = ("gen_ai.tool.call.result", "output.value", "tool_response")
_NO_IDS = "conventions for spans have no attribute for token ids, and this span has none of its own."
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty")


def kind_of(span: Span) -> str | None:
    """What a span is: ``call``, ``tool`` or ``agent``; None for anything else."""
    operation, kind = span.text("gen_ai.operation.name"), span.text("openinference.span.kind")
    loop = span.text("traceloop.span.kind")
    if operation in _CALLS or kind == "LLM" or span.text("llm.request.type") in _CALLS:
        return "call"
    if operation == "execute_tool" or kind == "TOOL" or loop == "tool":
        return "tool"
    if operation in _AGENTS or kind == "AGENT" or loop == "agent":
        return "agent"
    if operation is None and kind is None and loop is None:
        # Pydantic AI's before 2.
        if "gen_ai.tool.name" in span.attributes:
            return "tool"
        if span.attributes.keys() >= {"agent_name", "model_name"}:
            return "agent"
    # Agent-lightning's, whose spans have no operation.
    names = span.attributes.keys() & {"gen_ai.prompt.0.role", "gen_ai.completion.0.content", "response_token_ids"}
    return "call" if names and operation is None else None


def call_steps(span: Span, stores: SharedStores, job: Job, name: str) -> list[Step]:
    """The steps of a span that is a model call: one for each choice, at least one."""
    talk = Conversation(span, job.report)
    usage = _usage(span)
    messages = stores.add_messages(talk.sent) if talk.sent else None
    if messages is None:
        job.report.miss("messages: their capture was not switched on")
    found = []
    answers: list[dict[str, Any] | None] = list(talk.answers) or [None]
    if len(answers) > 1 and not span_own.is_own(span) and _is_one_answer(span, talk):
        answers = [_joined(talk.answers)]
    for at, answer in enumerate(answers):
        reason = talk.finish_reasons[at] if at < len(talk.finish_reasons) else None
        tokens = _tokens(span, stores, usage, only=len(answers) == 1)
        completion = None if answer is None else _completion(answer, span)
        if completion is None and tokens["token_issue"] is not None and span.error is not None:
            tokens["token_issue"] = None
        facts: dict[str, Any] = {
            "call_id": name,
            "choice": at,
            "status": "error" if span.error is not None and answer is None else "ok",
            "error": span.error,
            "latency": span.seconds,
            "cost": usd(_number(span, *SPAN_COSTS)) if at == 0 else None,
        }
        reason = reason if isinstance(reason, str) else None
        if span_own.is_own(span):
            facts = span_own.step_facts(span, has_ids=tokens["completion_token_ids"] is not None)
            reason = span_own.finish_reason(facts["status"], reason)
        found.append(
            Step(
                **{**tokens, **facts},
                id=f"{name}.{at}",
                agent=span.text("gen_ai.agent.name"),
                protocol="openai.chat",
                model=span.text("gen_ai.request.model", "llm.request.model_name", "llm.model_name"),
                response_model=span.text("gen_ai.response.model", "llm.response.model_name", "llm.model_name"),
                response_id=span.text("gen_ai.response.id"),
                messages=messages,  # type: ignore[arg-type]  # A stored form, which the field takes.
                tools=talk.tools,
                sampling=_sampling(span),
                completion=completion,
                finish_reason=reason,
                usage=usage,
                started_at=span.started_at,
                time_to_first_token=_number(span, "gen_ai.response.time_to_first_chunk"),
                metadata={"span_id": span.id, "span": span.name},
            )
        )
        job.report.miss_tokens(tokens["completion_token_ids"], tokens["logprobs"])
    return found


def _is_one_answer(span: Span, talk: Conversation) -> bool:
    """Whether the messages of an answer are the items of one (reasoning, text, calls), not several choices.

    Writers for the Responses API have a message for each item. Choices were asked for, or end each for a reason.
    """
    asked = span.attributes.get("gen_ai.request.choice.count")
    for name in ("llm.invocation_parameters", "request_data"):
        request = as_json(span.attributes.get(name))
        asked = request.get("n", asked) if isinstance(request, dict) else asked
    return asked in (None, 1) and sum(one is not None for one in talk.finish_reasons) <= 1


def _joined(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The items of one answer as one message."""
    joined: dict[str, Any] = {"role": "assistant"}
    for message in messages:
        for name in ("content", "reasoning_content", "tool_calls"):
            value, before = message.get(name), joined.get(name)
            if not value:
                continue
            if before and isinstance(before, str) != isinstance(value, str):
                parts = ([{"type": "text", "text": one}] if isinstance(one, str) else one for one in (before, value))
                before, value = parts
            joined[name] = before + value if before else value
    return joined


def _completion(answer: dict[str, Any], span: Span) -> Completion:
    fields = Fields(answer, span.fields.place, span.fields.path)
    content, reasoning = answer.get("content"), answer.get("reasoning_content")
    calls: tuple[ToolCall, ...] = chat_calls(fields)
    return Completion(
        content=content if isinstance(content, (str, list)) and (content or not calls) else None,
        reasoning=reasoning if isinstance(reasoning, str) and reasoning else None,
        tool_calls=calls,
    )


def _tokens(span: Span, stores: SharedStores, usage: Usage | None, *, only: bool) -> dict[str, Any]:
    """Ids and logprobs in the attributes that Agent-lightning, and our own export, have for them."""
    prompt, completion = _ids(span, "prompt_token_ids"), _ids(span, "response_token_ids", "completion_token_ids")
    logprobs = _logprobs(span)
    # They are of one choice; usage counts all of them.
    return token_fields(
        stores.tokens,
        prompt=prompt if only else None,
        completion=completion if only else None,
        logprobs=logprobs if only else None,
        missing=_NO_IDS,
        # Our own export has spans of each choice, with the usage of all of them.
        counted=usage.output if only and usage is not None and completion and not span_own.is_own(span) else None,
        issue=span_own.token_issue(span),
    )


def _ids(span: Span, *names: str) -> list[int] | None:
    prefixes = ("", "rollout_trace.", "gen_ai.rollout_trace.")
    for name in (f"{prefix}{one}" for one in names for prefix in prefixes):
        value = as_json(span.attributes.get(name))
        if isinstance(value, list) and value:
            if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
                return value
            path = f"{span.fields.path}.attributes.{name}"
            span.fields.place.problems.add(span.fields.place.error(path, "a list of token ids", "other items"))
    return None


def _logprobs(span: Span) -> list[float | None] | None:
    for name in ("logprobs.content", "logprobs", "rollout_trace.logprobs", "response_logprobs"):
        value = as_json(span.attributes.get(name))
        if not isinstance(value, list) or not value:
            continue
        numbers = [one.get("logprob") if isinstance(one, dict) else one for one in value]
        if all(one is None or (isinstance(one, (int, float)) and not isinstance(one, bool)) for one in numbers):
            return [None if one is None else as_float(one) for one in numbers]
        path = f"{span.fields.path}.attributes.{name}"
        span.fields.place.problems.add(span.fields.place.error(path, "a list of logprobs", "other items"))
    return None


def _number(span: Span, *names: str) -> float | None:
    numbers = (span.attributes.get(name) for name in names)
    return next((float(one) for one in numbers if is_finite(one) and one >= 0), None)


def _usage(span: Span) -> Usage | None:
    found = Usage(**counts_from("spans", partial(count_at, span.attributes))[0])
    return None if found == Usage() else found


def _sampling(span: Span) -> dict[str, Any] | None:
    given = as_json(span.attributes.get("llm.invocation_parameters"))
    found = dict(given) if isinstance(given, dict) else {}
    for name in _SAMPLING:
        value = span.attributes.get(f"gen_ai.request.{name}")
        if value is not None:
            found[name] = value
    stop = span.attributes.get("gen_ai.request.stop_sequences")
    return {**found, **({} if stop is None else {"stop": stop})} or None


def _first(span: Span, names: tuple[str, ...]) -> Any:
    return next((span.attributes[name] for name in names if name in span.attributes), None)


def tool_run(span: Span, callers: dict[str, str], *, is_own: bool) -> ToolRun:
    """The tool run of a span. ``callers``: the step of each tool call, by its id. ``is_own``: of our own export."""
    call_id = span.text("gen_ai.tool.call.id", "tool_call.id", "tool.id")
    arguments, result = _first(span, _ARGUMENTS), _first(span, _RESULTS)
    return ToolRun(
        tool_call_id=call_id,
        name=span.text("gen_ai.tool.name", "tool.name", "traceloop.entity.name") or span.name or None,
        arguments=arguments_text(arguments),
        result=result,
        error=span.error,
        started_at=span.started_at,
        duration=span_own.duration(span) if is_own else span.seconds,
        step_id=None if call_id is None else callers.get(call_id),
    )
