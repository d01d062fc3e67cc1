"""What LangChain says of a model call, as fields of a step: for the calls whose bytes were not seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import Generation, LLMResult

from rollout_trace.integration import Completion, ToolCall, Usage

_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "n", "stop", "seed", "tool_choice")


def asked(prompt: Sequence[BaseMessage] | str, parameters: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """What was asked: ``messages`` in chat's shape, ``tools``, ``model``, ``sampling``."""
    sampling = {name: parameters[name] for name in _SAMPLING if parameters.get(name) is not None}
    return {
        "messages": _messages(prompt),
        "tools": parameters.get("tools") or parameters.get("functions") or None,
        "model": parameters.get("model") or parameters.get("model_name") or model,
        "sampling": sampling or None,
    }


def answers(result: LLMResult) -> list[dict[str, Any]]:
    """What was answered, one for each choice."""
    return [_answer(generation, result) for generation in (result.generations[0] if result.generations else ())]


def message_of(result: LLMResult) -> AIMessage | None:
    """The first choice of a chat model."""
    choices = result.generations[0] if result.generations else None
    first = choices[0] if choices else None
    message = getattr(first, "message", None)
    return message if isinstance(message, AIMessage) else None


def response_id(message: AIMessage | None, result: LLMResult) -> str | None:
    """The provider's id of the answer; None where LangChain does not keep it (most streams)."""
    found = None if message is None else message.response_metadata.get("id")
    return found if found is not None else (result.llm_output or {}).get("id")


def is_cached(message: AIMessage | None) -> bool:
    """Whether LangChain's cache answered: it sets the cost to zero, or makes a message that no model gave an id."""
    if message is None:
        return False
    usage: Mapping[str, Any] | None = message.usage_metadata
    return message.id is None or (usage is not None and usage.get("total_cost") == 0)


def _messages(prompt: Sequence[BaseMessage] | str) -> list[Any]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    try:
        converted = convert_to_openai_messages(list(prompt))
    except (TypeError, ValueError):  # A part that chat has no shape for.
        converted = [{"role": message.type, "content": message.content} for message in prompt]
    return list(converted)


def _answer(generation: Generation, result: LLMResult) -> dict[str, Any]:
    message = getattr(generation, "message", None)
    if not isinstance(message, AIMessage):
        return {"completion": Completion(content=generation.text or None), **_ending(generation.generation_info or {})}
    about = {**(generation.generation_info or {}), **message.response_metadata}
    return {
        "completion": Completion(
            **_content(message),
            tool_calls=_tool_calls(message),
            refusal=message.additional_kwargs.get("refusal"),
        ),
        "usage": _usage(message),
        "response_model": about.get("model_name") or about.get("model"),
        **_ending(about),
    }


def _content(message: AIMessage) -> dict[str, Any]:
    """The text and the reasoning. Blocks that say more than these and the tool calls are kept beside them."""
    reasoning = message.additional_kwargs.get("reasoning_content")
    if not isinstance(message.content, list):
        return {"content": message.content or None, "reasoning": reasoning}
    blocks = _standard_blocks(message)
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    thoughts = [block.get("reasoning") or "" for block in blocks if block.get("type") == "reasoning"]
    told: dict[str, Any] = {"content": "".join(texts) or None, "reasoning": "".join(thoughts) or reasoning}
    if len(texts) > 1 or len(thoughts) > 1 or not all(_is_told(block) for block in blocks):
        # As the wire's steps of such answers have it; with no text at all the blocks are all there is.
        told |= {"extra": {"content": message.content}} if texts or thoughts else {"content": message.content}
    return told


def _standard_blocks(message: AIMessage) -> list[dict[str, Any]]:
    """The content in LangChain's own shape, whatever the provider's is."""
    try:
        return [dict(block) for block in message.content_blocks]
    except Exception:  # Blocks that break the rules of their provider.
        return [{"type": "unknown"}]


_CALLS = ("tool_call", "invalid_tool_call", "tool_call_chunk")
_TEXT_FIELDS = {"text": {"type", "text", "index", "id"}, "reasoning": {"type", "reasoning", "index", "id"}}


def _is_told(block: Mapping[str, Any]) -> bool:
    """Whether a block says no more than a completion's own fields."""
    kind = block.get("type")
    return kind in _CALLS or {name for name, value in block.items() if value} <= _TEXT_FIELDS.get(str(kind), set())


_ENDINGS = ("finish_reason", "stop_reason", "done_reason", "stopReason")
"""Where providers say why they stopped: OpenAI, Anthropic, Ollama, Bedrock."""


def _ending(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"finish_reason": next((about[name] for name in _ENDINGS if about.get(name) is not None), None)}


def _tool_calls(message: AIMessage) -> tuple[ToolCall, ...]:
    # As the model wrote them, where the model's class keeps that.
    raw = {call.get("id"): call.get("function", {}) for call in message.additional_kwargs.get("tool_calls") or ()}
    good = [
        ToolCall(
            id=call["id"],
            name=call["name"],
            arguments=raw.get(call["id"], {}).get("arguments") or json.dumps(call["args"], ensure_ascii=False),
        )
        for call in message.tool_calls
    ]
    bad = [ToolCall(id=call["id"], name=call["name"], arguments=call["args"]) for call in message.invalid_tool_calls]
    return (*good, *bad)


def _usage(message: AIMessage) -> Usage | None:
    told = message.usage_metadata
    if told is None or "input_tokens" not in told:
        return None
    read: Mapping[str, Any] = told.get("input_token_details") or {}
    written: Mapping[str, Any] = told.get("output_token_details") or {}
    return Usage(
        input=told["input_tokens"],
        output=told["output_tokens"],
        cache_read=read.get("cache_read"),
        cache_write=read.get("cache_creation"),
        reasoning=written.get("reasoning"),
    )
