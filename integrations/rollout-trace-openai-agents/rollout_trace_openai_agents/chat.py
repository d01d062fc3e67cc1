"""Step fields from the SDK's objects, for model calls whose bytes were not recorded.

Messages and tools take the shape of OpenAI's chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.models.chatcmpl_converter import Converter

from rollout_trace.integration import Completion, ToolCall, Usage, snapshot

_SAMPLING = ("temperature", "top_p", "max_tokens", "frequency_penalty", "presence_penalty", "tool_choice")


def request_fields(model: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Messages, tools, sampling and the model's name, from the arguments of a call."""
    settings = asked.get("model_settings")
    sampling = {name: getattr(settings, name, None) for name in _SAMPLING}
    name = getattr(model, "model", None)
    fields: dict[str, Any] = {
        "model": name if isinstance(name, str) else None,
        "messages": _messages(asked.get("system_instructions"), asked.get("input")),
        "sampling": {name: snapshot(value) for name, value in sampling.items() if value is not None} or None,
    }
    tools = [_tool(tool) for tool in asked.get("tools") or ()]
    tools += [Converter.convert_handoff_tool(handoff) for handoff in asked.get("handoffs") or ()]
    return {**fields, "tools": tools or None}


def _messages(system: str | None, items: Any) -> list[Any]:
    head = [{"role": "system", "content": system}] if system else []
    try:
        return head + [dict(message) for message in Converter.items_to_messages(items or [])]
    except Exception:
        # Items that chat has no shape for, such as those of hosted tools: as the SDK has them.
        return head + ([{"role": "user", "content": items}] if isinstance(items, str) else snapshot(items))


def _tool(tool: Any) -> Any:
    try:
        return Converter.tool_to_openai(tool)
    except Exception:  # A hosted tool.
        return {"type": str(getattr(tool, "name", type(tool).__name__))}


def answer_fields(response: Any) -> tuple[dict[str, Any], str | None]:
    """Completion and usage of a ``ModelResponse``, or of the ``Response`` of a stream, and the provider's id of it."""
    content, reasoning, refusal, calls = [], [], [], []
    response_id = getattr(response, "response_id", None) or getattr(response, "id", None)
    for item in response.output:
        kind = _get(item, "type")
        provider_data = _get(item, "provider_data")
        if isinstance(provider_data, dict) and provider_data.get("response_id"):
            response_id = provider_data["response_id"]
        if kind == "message":
            content += [text for part in _get(item, "content") or () if (text := _get(part, "text"))]
            refusal += [text for part in _get(item, "content") or () if (text := _get(part, "refusal"))]
        elif kind == "reasoning":
            reasoning += [text for part in _get(item, "summary") or () if (text := _get(part, "text"))]
        elif kind == "function_call":
            calls.append(ToolCall(id=_get(item, "call_id"), name=_get(item, "name"), arguments=_get(item, "arguments")))
    completion = Completion(
        content="".join(content) if content else None,
        reasoning="".join(reasoning) if reasoning else None,
        refusal="".join(refusal) if refusal else None,
        tool_calls=tuple(calls),
    )
    fields: dict[str, Any] = {"completion": completion}
    incomplete = getattr(response, "incomplete_details", None)
    if incomplete is not None:
        fields["finish_reason"] = incomplete.reason
    usage = getattr(response, "usage", None)
    if usage is not None and getattr(usage, "total_tokens", None):
        fields["usage"] = Usage(input=usage.input_tokens, output=usage.output_tokens)
    return fields, response_id if response_id != "__fake_id__" else None


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)
