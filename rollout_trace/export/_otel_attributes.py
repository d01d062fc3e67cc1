"""Attributes of OpenTelemetry spans for trajectories, steps and tool runs, in the GenAI semantic conventions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import episode_of
from rollout_trace.export._exchanges import finish_reason
from rollout_trace.export._extras import count_step_extras
from rollout_trace.file.plain import dumps
from rollout_trace.wire.chat_messages import answer, arguments_of, calls_of, previous_response_of, to_chat, tools_of
from rollout_trace.wire.grammars import settings_of
from rollout_trace.wire.protocols import MessageShape, record_of
from rollout_trace.wire.span_names import SAMPLING, names_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, ToolRun
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.wire.chat_messages import Message

_SAMPLING = {name: names_of(name)[0] for name in SAMPLING}
_SAMPLING |= dict.fromkeys(("max_completion_tokens", "max_output_tokens"), _SAMPLING["max_tokens"])
"""Attributes by field of a request."""
_USAGE = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_write.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
_OPERATIONS: dict[MessageShape, str] = {"texts": "text_completion", "contents": "generate_content"}
"""Operations by shape of a request's messages; the others are ``chat``."""
_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gcp.gen_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
}


def agent_attributes(trajectory: Trajectory, content: bool) -> dict[str, Any]:
    """Returns the attributes of the span ``invoke_agent``."""
    task = trajectory.task
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": trajectory.name,
        "gen_ai.conversation.id": episode_of(trajectory),
        "session.id": episode_of(trajectory),
        "rollout_trace.trajectory.id": trajectory.id,
        "rollout_trace.parent_id": trajectory.parent_id,
        "rollout_trace.group_id": trajectory.group_id,
        "rollout_trace.rollout_index": trajectory.rollout_index,
        "rollout_trace.task.id": None if task is None else task.id,
        "rollout_trace.task.data": None if task is None or task.data is None or not content else _json(task.data),
        "rollout_trace.status": trajectory.status,
        "rollout_trace.stop_reason": trajectory.stop_reason,
        "rollout_trace.reward": trajectory.reward,
        "rollout_trace.environment": None if trajectory.environment is None else _json(trajectory.environment),
        "rollout_trace.metadata": None if trajectory.metadata is None else _json(trajectory.metadata),
    }
    for name, value in (trajectory.metrics or {}).items():
        attributes[f"rollout_trace.metrics.{name}"] = value
    return _known(attributes)


def operation_of(step: Step) -> str:
    """``gen_ai.operation.name`` of a call."""
    return _OPERATIONS.get(record_of(step.protocol).messages, "chat")


def call_attributes(step: Step, content: bool, tokens: bool, report: ExportReport, *, first: bool) -> dict[str, Any]:
    """Returns the attributes of a call's span. ``first``: it is the call's first choice, which has the usage."""
    sampling = {name: value for settings in settings_of(step) for name, value in settings.items()}
    stop, choices = sampling.get("stop"), sampling.get("n")
    reason, previous = _reason(step), previous_response_of(step)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation_of(step),
        "gen_ai.provider.name": _provider(step),
        "gen_ai.request.model": step.model,
        "gen_ai.response.model": step.response_model,
        "gen_ai.response.id": step.response_id,
        "gen_ai.response.finish_reasons": None if reason is None else [reason],
        "gen_ai.response.time_to_first_chunk": step.time_to_first_token,
        "gen_ai.request.previous_response.id": previous if isinstance(previous, str) else None,
        "gen_ai.request.choice.count": choices if isinstance(choices, int) and choices > 1 else None,
        "gen_ai.request.stop_sequences": [stop] if isinstance(stop, str) else stop if _are_texts(stop) else None,
        "gen_ai.agent.name": step.agent,
        "rollout_trace.step.id": step.id,
        "rollout_trace.call_id": step.call_id,
        "rollout_trace.choice": step.choice,
        "rollout_trace.protocol": step.protocol,
        "rollout_trace.status": step.status,
        "rollout_trace.trainable": step.trainable,
        "rollout_trace.policy_version": None if step.policy_version is None else str(step.policy_version),
        "rollout_trace.reward": step.reward,
    }
    for field, name in _SAMPLING.items():
        value = sampling.get(field)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            attributes[name] = value
    # An answer from a cache has the usage of the call that filled it.
    if step.usage is not None and first and step.status != "cached":
        attributes |= {name: getattr(step.usage, field) for field, name in _USAGE.items()}
    if step.cost is not None:
        attributes[f"rollout_trace.cost.{step.cost.currency.lower()}"] = step.cost.amount
    return _known({**attributes, **_texts(step, content, report), **_tokens(step, tokens, report)})


def tool_attributes(run: ToolRun, content: bool) -> dict[str, Any]:
    """Returns the attributes of the span ``execute_tool``."""
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": run.name or "unknown",
        "gen_ai.tool.call.id": run.tool_call_id,
        "gen_ai.tool.type": "function",
    }
    if content:
        attributes["gen_ai.tool.call.arguments"] = _text(run.arguments)
        attributes["gen_ai.tool.call.result"] = _text(run.result)
    return _known(attributes)


def _texts(step: Step, content: bool, report: ExportReport) -> dict[str, Any]:
    if not content:
        return {}
    tools, said = tools_of(step, report), answer(step, "json", report)
    reason = _reason(step)
    ended = {} if reason is None else {"finish_reason": reason}
    return {
        "gen_ai.input.messages": None if step.messages is None else _json([_message(m) for m in to_chat(step, report)]),
        "gen_ai.output.messages": None if said is None else _json([{**_message(said), **ended}]),
        "gen_ai.tool.definitions": None if tools is None else _json([_tool(tool) for tool in tools]),
    }


def _reason(step: Step) -> str | None:
    """The finish reason; ``error`` where a call ended without one, as the conventions ask for."""
    failed = step.status in ("error", "cancelled", "abandoned")
    return finish_reason(step) or ("error" if failed else None)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A chat tool as the conventions have it: its name and parameters beside its type."""
    kind = str(tool.get("type", "function"))
    fields = tool.get(kind)
    return {"type": kind, **fields} if isinstance(fields, Mapping) else tool


def _tokens(step: Step, tokens: bool, report: ExportReport) -> dict[str, Any]:
    if not tokens:
        return {}
    count_step_extras(step, report)
    return {
        "prompt_token_ids": step.prompt_token_ids,
        "response_token_ids": step.completion_token_ids,
        "rollout_trace.logprobs": step.logprobs,
        "rollout_trace.token_source": step.token_source,
        "rollout_trace.logprobs_mode": step.logprobs_mode,
        "rollout_trace.token_issue": None if step.token_issue is None else step.token_issue.code,
    }


def _message(message: Message) -> dict[str, Any]:
    """A chat message in the conventions' shape: a role and parts."""
    role = str(message.get("role"))
    parts: list[dict[str, Any]] = []
    if role == "tool":
        result = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [result]}
    if message.get("reasoning_content"):
        parts.append({"type": "reasoning", "content": message["reasoning_content"]})
    content = message.get("content")
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        parts.append(_part(part))
    for call in calls_of(message):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            text = function.get("arguments")
            arguments = arguments_of(text)
            parts.append(
                {
                    "type": "tool_call",
                    "id": call.get("id"),
                    "name": str(function.get("name")),
                    "arguments": text if arguments is None else arguments,
                }
            )
        else:
            parts.append({"type": "tool_call", "id": None, "name": "unknown", "arguments": call})
    if message.get("refusal"):
        parts.append({"type": "text", "content": message["refusal"]})
    return {"role": role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "content": part}
    if not isinstance(part, Mapping):
        return {"type": "text", "content": _text(part) or ""}
    image = part.get("image_url")
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "content": part["text"]}
    if part.get("type") == "image_url" and isinstance(image, Mapping) and isinstance(image.get("url"), str):
        return _image(image["url"])
    # The conventions let any other type of part have its own fields.
    return {**part, "type": str(part.get("type"))}


def _image(url: str) -> dict[str, Any]:
    found = _DATA_URL.match(url)
    if found is None:
        return {"type": "uri", "modality": "image", "uri": url}
    return {"type": "blob", "modality": "image", "mime_type": found["mime_type"], "content": url[found.end() :]}


_DATA_URL = re.compile(r"data:(?P<mime_type>[^;,]+);base64,")


def _provider(step: Step) -> str:
    """The provider's well-known name where the engine is one; otherwise the engine, or the protocol's first word."""
    return _PROVIDERS.get(step.engine or "", step.engine or (step.protocol or "unknown").partition(".")[0])


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return dumps(value).decode()


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
