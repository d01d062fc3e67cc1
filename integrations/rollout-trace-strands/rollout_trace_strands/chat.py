"""Step fields from Strands' messages, for model calls whose bytes were not recorded.

Messages and tools take the shape of OpenAI's chat.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollout_trace.integration import Completion, ToolCall, Usage

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop", "stop_sequences")

Blocks = Iterable[Mapping[str, Any]]


def request_fields(messages: Any, system_prompt: Any, tool_specs: Any, model: Any) -> dict[str, Any]:
    """Fields of a request: ``messages``, ``tools``, ``model`` and ``sampling``.

    Args:
        messages: Strands messages, as they go to the model.
        system_prompt: a text, content blocks, or None.
        tool_specs: the tools the model may call; None or empty without.
        model: Strands' model object; its configuration has the model's name and the sampling options.
    """
    config = model.get_config()
    config = config if isinstance(config, Mapping) else {}
    settings = {**config, **(config.get("params") or {})}
    sampling = {name: settings[name] for name in _SAMPLING if settings.get(name) is not None}
    return {
        "messages": [*_system(system_prompt), *(part for message in messages for part in _chat(message))],
        "tools": [_tool(spec) for spec in tool_specs] if tool_specs else None,
        "model": config.get("model_id"),
        "sampling": sampling or None,
    }


def answer_fields(message: Mapping[str, Any], stop_reason: str | None, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an answer: ``completion``, ``finish_reason`` (Strands' ``stop_reason``) and ``usage``."""
    fields = _assistant_fields(message.get("content") or ())
    calls = tuple(
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in fields.get("tool_calls", ())
    )
    completion = Completion(content=fields["content"], reasoning=fields.get("reasoning_content"), tool_calls=calls)
    return {"completion": completion, "finish_reason": stop_reason, "usage": _usage(usage)}


def snapshot(value: Any) -> Any:
    """Copies a value: mappings and lists are copied at every depth."""
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    return [snapshot(item) for item in value] if isinstance(value, (list, tuple)) else value


def result_of(blocks: Blocks) -> Any:
    """The result of a tool: the text or the JSON of a single block, else all blocks."""
    blocks = list(blocks)
    if len(blocks) == 1:
        for kind in ("text", "json"):
            if kind in blocks[0]:
                return snapshot(blocks[0][kind])
    return snapshot(blocks)


def _usage(usage: Mapping[str, Any]) -> Usage | None:
    counts = {
        "input": usage.get("inputTokens"),
        "output": usage.get("outputTokens"),
        "cache_read": usage.get("cacheReadInputTokens"),
        "cache_write": usage.get("cacheWriteInputTokens"),
    }
    # Strands fills in zeros if the model reports no usage: missing is not zero.
    return Usage(**counts) if counts["input"] or counts["output"] else None


def _system(prompt: Any) -> list[dict[str, Any]]:
    content = prompt if isinstance(prompt, str) else _content(prompt or ())
    return [{"role": "system", "content": content}] if content else []


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    schema = spec.get("inputSchema") or {}
    parameters = snapshot(schema.get("json", schema))
    function = {"name": spec.get("name"), "description": spec.get("description"), "parameters": parameters}
    return {"type": "function", "function": function}


def _chat(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message of Strands as messages of OpenAI's chat: one for each tool result, and one for the rest."""
    blocks = list(message.get("content") or ())
    if message.get("role") == "assistant":
        yield {"role": "assistant", **_assistant_fields(blocks)}
        return
    for block in blocks:
        if "toolResult" in block:
            result = block["toolResult"]
            content = _content(result.get("content") or ())
            yield {"role": "tool", "tool_call_id": result.get("toolUseId"), "content": content}
    rest = _content(block for block in blocks if "toolResult" not in block)
    if rest:
        yield {"role": message.get("role"), "content": rest}


def _assistant_fields(blocks: Blocks) -> dict[str, Any]:
    blocks = list(blocks)
    uses = [block["toolUse"] for block in blocks if "toolUse" in block]
    thoughts = [block["reasoningContent"].get("reasoningText") or {} for block in blocks if "reasoningContent" in block]
    reasoning = "".join(thought.get("text") or "" for thought in thoughts)
    content = _content(block for block in blocks if "toolUse" not in block and "reasoningContent" not in block)
    fields: dict[str, Any] = {"content": content or (None if uses or reasoning else "")}
    if reasoning:
        fields["reasoning_content"] = reasoning
    if uses:
        fields["tool_calls"] = [_tool_call(use) for use in uses]
    return fields


def _tool_call(use: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(use.get("input"), ensure_ascii=False, default=repr)
    return {
        "id": use.get("toolUseId"),
        "type": "function",
        "function": {"name": use.get("name"), "arguments": arguments},
    }


def _content(blocks: Blocks) -> str | list[Any]:
    """The text of a single text block, else a list of content parts. Cache points are left out."""
    parts = [_part(block) for block in blocks if "cachePoint" not in block]
    if all(part.get("type") == "text" for part in parts) and len(parts) <= 1:
        return "".join(part["text"] for part in parts)
    return parts


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in block:
        return {"type": "text", "text": block["text"]}
    if "json" in block:
        return {"type": "text", "text": json.dumps(block["json"], ensure_ascii=False, default=repr)}
    data = (block["image"].get("source") or {}).get("bytes") if "image" in block else None
    if data is not None:
        encoded = base64.b64encode(data).decode()
        return {
            "type": "image_url",
            "image_url": {"url": f"data:image/{block['image'].get('format')};base64,{encoded}"},
        }
    return dict(snapshot(block))
