"""Fields of a step from Inspect's model events, for calls whose bytes were not seen.

Messages and tools take the shape of OpenAI's chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inspect_ai.event import ModelEvent
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    Content,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelUsage,
)
from inspect_ai.tool import ToolInfo

from rollout_trace.integration import Completion, ToolCall, Usage, snapshot

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "stop": "stop_seqs",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "n": "num_choices",
}
"""Sampling parameters by their names in OpenAI's chat, and Inspect's names for them."""


def request_fields(event: ModelEvent) -> dict[str, Any]:
    """Fields of a request: ``messages``, ``tools``, ``model`` and ``sampling``."""
    return {
        "messages": [_message(message) for message in event.input],
        "tools": [_tool(tool) for tool in event.tools] or None,
        "model": event.model,
        "sampling": _sampling(event.config),
    }


def answers(event: ModelEvent) -> list[dict[str, Any]]:
    """Fields of an answer, for each choice: ``completion``, ``finish_reason``, ``usage``, ``response_model``."""
    output = event.output
    usage = _usage(output.usage)
    return [
        {
            "completion": _completion(choice),
            "finish_reason": choice.stop_reason,
            "usage": usage,
            "response_model": output.model or None,
        }
        for choice in output.choices
    ]


def _sampling(config: GenerateConfig) -> dict[str, Any] | None:
    set_here = {name: getattr(config, field, None) for name, field in _SAMPLING.items()}
    return {name: value for name, value in set_here.items() if value is not None} or None


def _tool(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _message(message: ChatMessage) -> dict[str, Any]:
    if isinstance(message, ChatMessageTool):
        text = f"Error: {message.error.message}" if message.error else _content(message.content)
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}
    fields: dict[str, Any] = {"role": message.role, "content": _content(message.content)}
    if isinstance(message, ChatMessageAssistant):
        reasoning = _reasoning(message.content)
        if reasoning:
            fields["reasoning_content"] = reasoning
        if message.tool_calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.function, "arguments": _arguments(call)}}
                for call in message.tool_calls
            ]
    return fields


def _completion(choice: ChatCompletionChoice) -> Completion:
    message = choice.message
    calls = tuple(
        ToolCall(id=call.id, name=call.function, arguments=_arguments(call)) for call in message.tool_calls or ()
    )
    reasoning = _reasoning(message.content)
    content = _content(message.content)
    if content == "" and (calls or reasoning):
        content = None
    return Completion(content=content, reasoning=reasoning or None, tool_calls=calls)


def _arguments(call: Any) -> str:
    return json.dumps(snapshot(call.arguments), ensure_ascii=False)


def _reasoning(content: str | Sequence[Content]) -> str:
    if isinstance(content, str):
        return ""
    return "".join(part.reasoning for part in content if isinstance(part, ContentReasoning))


def _content(content: str | Sequence[Content]) -> str | list[Any] | None:
    """The text, if that is all, else the parts without reasoning."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content if not isinstance(part, ContentReasoning)]
    if len(parts) <= 1 and all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Content) -> dict[str, Any]:
    if isinstance(part, ContentText):
        return {"type": "text", "text": part.text}
    if isinstance(part, ContentImage):
        return {"type": "image_url", "image_url": {"url": part.image, "detail": part.detail}}
    fields: dict[str, Any] = snapshot(part)
    return fields


def _usage(usage: ModelUsage | None) -> Usage | None:
    if usage is None:
        return None
    read, written = usage.input_tokens_cache_read, usage.input_tokens_cache_write
    return Usage(
        # Inspect's count is without what the provider's cache had.
        input=usage.input_tokens + (read or 0) + (written or 0),
        output=usage.output_tokens,
        cache_read=read,
        cache_write=written,
        reasoning=usage.reasoning_tokens,
    )
