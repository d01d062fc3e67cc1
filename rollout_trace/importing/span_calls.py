"""Model calls and tools among the spans of one trace, as steps and tool runs; those of our own export as they were."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rollout_trace.data.counts import SPAN_COSTS, count_at
from rollout_trace.data.model import Completion, Cost, ErrorInfo, Step, Task, TokenIssue, ToolRun, Usage
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.chat import arguments_text, chat_calls
from rollout_trace.importing.fields import Fields, as_float, is_finite, is_number, is_whole, usage_from
from rollout_trace.importing.imported import Job
from rollout_trace.importing.span_messages import Conversation
from rollout_trace.importing.span_values import Span, as_json
from rollout_trace.importing.steps import SharedStores, mode_of, status_of, token_fields, usd
from rollout_trace.wire.span_names import SAMPLING, SpanKind, kind_in, names_of

_NO_IDS = "conventions for spans have no attribute for token ids, and this span has none of its own."
_NAMED = ("agent", "model", "response_model", "response_id")
_COST = "rollout_trace.cost."
_METRICS = "rollout_trace.metrics."
_PREFIXES = ("", "rollout_trace.", "gen_ai.rollout_trace.")


def kind_of(span: Span) -> SpanKind | None:
    """What a span is; None for anything else than a call, a tool or an agent."""
    found = kind_in(span.attributes)
    names = span.attributes.keys()
    has_operation = span.text("gen_ai.operation.name") is not None
    if found is None and not has_operation and span.text("openinference.span.kind", "traceloop.span.kind") is None:
        # Pydantic AI's before 2.
        found = "tool" if "gen_ai.tool.name" in names else "agent" if names >= {"agent_name", "model_name"} else None
    if found is None and not has_operation:
        # Agent-lightning's, whose spans have no operation.
        is_call = names & {"gen_ai.prompt.0.role", "gen_ai.completion.0.content", "response_token_ids"}
        found = "call" if is_call else None
    return found


def call_steps(span: Span, stores: SharedStores, job: Job, name: str) -> list[Step]:
    """The steps of a span that is a model call: one for each choice, at least one."""
    talk = Conversation(span, job.report)
    usage = usage_from("spans", partial(count_at, span.attributes))
    messages = stores.add_messages(talk.sent) if talk.sent else None
    if messages is None:
        job.report.miss("messages: their capture was not switched on")
    found = []
    answers: list[dict[str, Any] | None] = list(talk.answers) or [None]
    if len(answers) > 1 and not is_own(span) and _is_one_answer(span, talk):
        answers = [_joined(talk.answers)]
    for at, answer in enumerate(answers):
        reason = talk.finish_reasons[at] if at < len(talk.finish_reasons) else None
        tokens = _tokens(span, stores, usage, only=len(answers) == 1)
        completion = None if answer is None else _completion(answer, span)
        if completion is None and tokens["token_issue"] is not None and span.error is not None:
            tokens["token_issue"] = None
        names: dict[str, Any] = {field: span.text(*names_of(field)) for field in _NAMED}
        facts: dict[str, Any] = {
            "call_id": name,
            "choice": at,
            "status": "error" if span.error is not None and answer is None else "ok",
            "error": span.error,
            "latency": span.seconds,
            "cost": usd(_number(span, *SPAN_COSTS)) if at == 0 else None,
            "finish_reason": reason if isinstance(reason, str) else None,
        }
        if is_own(span):
            facts = _own_facts(span, facts, has_ids=tokens["completion_token_ids"] is not None)
        found.append(
            Step(
                **{**tokens, **names, **facts},
                id=f"{name}.{at}",
                protocol="openai.chat",
                messages=messages,  # type: ignore[arg-type]  # A stored form, which the field takes.
                tools=talk.tools,
                sampling=_sampling(span),
                completion=completion,
                usage=usage,
                started_at=span.started_at,
                time_to_first_token=_number(span, *names_of("time_to_first_token")),
                metadata={"span_id": span.id, "span": span.name},
            )
        )
        job.report.miss_tokens(tokens["completion_token_ids"], tokens["logprobs"])
    return found


def _is_one_answer(span: Span, talk: Conversation) -> bool:
    """Whether the messages of an answer are the items of one (reasoning, text, calls), not several choices.

    Writers for the Responses API have a message for each item. Choices were asked for, or end each for a reason.
    """
    asked = span.first("choices")
    for name in names_of("parameters"):
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
    content, reasoning = answer.get("content"), answer.get("reasoning_content")
    calls = chat_calls(Fields(answer, span.fields.place, span.fields.path))
    return Completion(
        content=content if isinstance(content, (str, list)) and (content or not calls) else None,
        reasoning=reasoning if isinstance(reasoning, str) and reasoning else None,
        tool_calls=calls,
    )


def _tokens(span: Span, stores: SharedStores, usage: Usage | None, *, only: bool) -> dict[str, Any]:
    """Ids and logprobs in the attributes that Agent-lightning, and our own export, have for them."""
    prompt, completion = _ids(span, "prompt_token_ids"), _ids(span, "completion_token_ids")
    logprobs = _listed(span, names_of("logprobs"), "a list of logprobs", lambda one: one is None or is_number(one))
    code = span.text("rollout_trace.token_issue")
    issue = None if code is None else TokenIssue(code=code, message="as the step had it when it was exported.")
    # They are of one choice; usage counts all of them.
    return token_fields(
        stores.tokens,
        prompt=prompt if only else None,
        completion=completion if only else None,
        logprobs=[None if one is None else as_float(one) for one in logprobs] if only and logprobs else None,
        missing=_NO_IDS,
        # Our own export has spans of each choice, with the usage of all of them.
        counted=usage.output if only and usage is not None and completion and not is_own(span) else None,
        issue=issue,
    )


def _ids(span: Span, field: str) -> list[int] | None:
    names = tuple(f"{prefix}{one}" for one in names_of(field) for prefix in _PREFIXES)
    return _listed(span, names, "a list of token ids", is_whole)


def _listed(span: Span, names: tuple[str, ...], expected: str, test: Callable[[Any], bool]) -> list[Any] | None:
    """The first of these attributes that is such a list; others are reported."""
    for name in names:
        value = as_json(span.attributes.get(name))
        if isinstance(value, list) and value:
            value = [one.get("logprob") if isinstance(one, dict) and one else one for one in value]
            if all(map(test, value)):
                return value
            path = f"{span.fields.path}.attributes.{name}"
            span.fields.place.problems.add(span.fields.place.error(path, expected, "other items"))
    return None


def _number(span: Span, *names: str) -> float | None:
    numbers = (span.attributes.get(name) for name in names)
    return next((float(one) for one in numbers if is_finite(one) and one >= 0), None)


def _sampling(span: Span) -> dict[str, Any] | None:
    given = as_json(span.attributes.get("llm.invocation_parameters"))
    found = dict(given) if isinstance(given, dict) else {}
    known = {name: span.first(name) for name in (*SAMPLING, "stop")}
    return {**found, **{name: value for name, value in known.items() if value is not None}} or None


def tool_run(span: Span, callers: dict[str, str], *, of_own: bool) -> ToolRun:
    """The tool run of a span. ``callers``: the step of each tool call, by its id. ``of_own``: of our own export."""
    call_id = span.text(*names_of("tool_call_id"))
    return ToolRun(
        tool_call_id=call_id,
        name=span.text(*names_of("tool name")) or span.name or None,
        arguments=arguments_text(span.first("arguments")),
        result=span.first("result"),
        error=span.error,
        started_at=span.started_at,
        duration=_own_duration(span) if of_own else span.seconds,
        step_id=None if call_id is None else callers.get(call_id),
    )


def is_own(span: Span) -> bool:
    """Whether the span is one of our export: that of a trajectory, or of a step."""
    return "rollout_trace.call_id" in span.attributes or "rollout_trace.trajectory.id" in span.attributes


def _own_duration(span: Span) -> float | None:
    """Seconds; None where our export did not know them: it ends such a span where it begins."""
    return span.seconds or None


def _own_error(status: str, error: ErrorInfo | None) -> ErrorInfo | None:
    """The error; None for one that is the status alone, which our export gives a span that failed without one."""
    return None if error is not None and error.type == status and not error.message else error


def _own_facts(span: Span, facts: dict[str, Any], *, has_ids: bool) -> dict[str, Any]:
    """The fields of a step that our export keeps beside the conventions, by their names."""
    source, reason = span.text("rollout_trace.token_source"), facts["finish_reason"]
    reward, choice = span.attributes.get("rollout_trace.reward"), span.attributes.get("rollout_trace.choice")
    status = status_of(span.text("rollout_trace.status"))
    if reason == "error" and status in ("error", "cancelled", "abandoned"):
        reason = None  # The export gives it a step that failed without one.
    costs = {name: one for name, one in span.attributes.items() if name.startswith(_COST) and is_finite(one)}
    currency = next(iter(costs), None)
    found: dict[str, Any] = {
        "call_id": span.text("rollout_trace.call_id"),
        "choice": choice if type(choice) is int and choice >= 0 else 0,
        "trainable": span.attributes.get("rollout_trace.trainable") is not False,
        "policy_version": span.text("rollout_trace.policy_version"),
        "reward": float(reward) if is_finite(reward) else None,
        "logprobs_mode": mode_of(span.text("rollout_trace.logprobs_mode")),
        "status": status,
        "error": _own_error(status, span.error),
        "latency": _own_duration(span),
        "cost": currency
        and Cost(amount=costs[currency], currency=currency.removeprefix(_COST).upper(), source="unknown"),
        "finish_reason": reason,
    }
    return {**found, "token_source": source} if has_ids and source in ("logprobs", "retokenized") else found


def restore(trajectory: Trajectory, span: Span) -> None:
    """Restores the fields of a trajectory that our export keeps on its span."""
    attributes = span.attributes
    reward, index = attributes.get("rollout_trace.reward"), attributes.get("rollout_trace.rollout_index")
    trajectory.reward = float(reward) if is_finite(reward) else None
    trajectory.group_id = span.text("rollout_trace.group_id")
    trajectory.rollout_index = index if type(index) is int and index >= 0 else None
    task, data = span.text("rollout_trace.task.id"), as_json(attributes.get("rollout_trace.task.data"))
    trajectory.task = None if task is None and data is None else Task(id=task, data=data)
    if not is_own(span):
        return
    trajectory.status = span.text("rollout_trace.status") or trajectory.status
    trajectory.stop_reason = span.text("rollout_trace.stop_reason")
    trajectory.error = _own_error(trajectory.status, span.error)
    if trajectory.parent_id is None:
        trajectory.parent_id = span.text("rollout_trace.parent_id")
        trajectory.episode_id = span.text("gen_ai.conversation.id") or trajectory.episode_id
    if not _own_duration(span):
        trajectory.ended_at = None
    rewards = [facts for name, facts in span.events if name == "gen_ai.evaluation.result"]
    trajectory.rewards = _named(
        (one.get("gen_ai.evaluation.name"), one.get("gen_ai.evaluation.score.value"))
        for one in rewards
        if trajectory.reward is None or one.get("gen_ai.evaluation.name") != "reward"
    )
    metrics = ((name, one) for name, one in attributes.items() if name.startswith(_METRICS))
    trajectory.metrics = _named((name.removeprefix(_METRICS), one) for name, one in metrics)
    environment, metadata = (as_json(attributes.get(f"rollout_trace.{name}")) for name in ("environment", "metadata"))
    trajectory.environment = environment if isinstance(environment, dict) else None
    if isinstance(metadata, dict):
        trajectory.metadata = {**metadata, **(trajectory.metadata or {})}


def _named(values: Any) -> dict[str, float] | None:
    return {name: float(one) for name, one in values if isinstance(name, str) and is_finite(one)} or None
