"""Attributes of OpenTelemetry spans for trajectories, steps and tool runs, in the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace.chat.messages import answer, arguments_of, calls_of, to_chat, tools_of
from rollout_trace.export._chat_exchange import finish_reason
from rollout_trace.export._extras import count_step_extras
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.chat.messages import Message
    from rollout_trace.data.model import Step, ToolRun
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "n": "choice.count",
}
"""Attributes ``gen_ai.request.*`` by field of a request."""
_USAGE = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gcp.gen_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
}


def agent_attributes(trajectory: Trajectory, content: bool) -> dict[str, Any]:
    """Of the span ``invoke_agent``."""
    task = trajectory.task
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": trajectory.name,
        "gen_ai.agent.id": trajectory.id,
        "gen_ai.conversation.id": trajectory.episode_id or trajectory.id,
        "session.id": trajectory.episode_id or trajectory.id,
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


def call_attributes(step: Step, content: bool, tokens: bool, report: ExportReport, *, first: bool) -> dict[str, Any]:
    """Of the span ``chat``. ``first``: it is the first choice of its call, which has the usage."""
    sampling = step.sampling or {}
    stop = sampling.get("stop")
    reason = finish_reason(step)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider(step),
        "gen_ai.request.model": step.model,
        "gen_ai.response.model": step.response_model,
        "gen_ai.response.id": step.response_id,
        "gen_ai.response.finish_reasons": None if reason is None else [reason],
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
        "rollout_trace.time_to_first_token": step.time_to_first_token,
    }
    for field, name in _SAMPLING.items():
        value = sampling.get(field)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{name}"] = value
    if step.usage is not None and first:
        attributes |= {name: getattr(step.usage, field) for field, name in _USAGE.items()}
    if step.cost is not None:
        attributes[f"rollout_trace.cost.{step.cost.currency.lower()}"] = step.cost.amount
    return _known({**attributes, **_texts(step, content, report), **_tokens(step, tokens, report)})


def tool_attributes(run: ToolRun, content: bool) -> dict[str, Any]:
    """Of the span ``execute_tool``."""
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
    reason = finish_reason(step) or ("error" if step.error is not None else "unknown")
    return {
        "gen_ai.input.messages": None if step.messages is None else _json([_message(m) for m in to_chat(step, report)]),
        "gen_ai.output.messages": None if said is None else _json([{**_message(said), "finish_reason": reason}]),
        "gen_ai.tool.definitions": None if tools is None else _json(tools),
    }


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
        return {"type": "uri", "modality": "image", "uri": image["url"]}
    # The conventions let any other type of part have its own fields.
    return {**part, "type": str(part.get("type"))}


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
