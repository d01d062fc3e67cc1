"""Step fields from LangChain's objects, for model calls whose bytes were not recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import Generation, LLMResult

from rollout_trace.integration import Completion, ToolCall, Usage

_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "n", "stop", "seed", "tool_choice")


def request_fields(
    prompt: Sequence[BaseMessage] | str, parameters: Mapping[str, Any], model: str | None
) -> dict[str, Any]:
    """Fields of a request: ``messages`` (in the shape of OpenAI's chat), ``tools``, ``model``, ``sampling``.

    Args:
        prompt: messages, or the text of a completion model.
        parameters: LangChain's ``invocation_params``.
        model: name of the model, if the parameters have none.
    """
    sampling = {name: parameters[name] for name in _SAMPLING if parameters.get(name) is not None}
    return {
        "messages": _messages(prompt),
        "tools": parameters.get("tools") or parameters.get("functions") or None,
        "model": parameters.get("model") or parameters.get("model_name") or model,
        "sampling": sampling or None,
    }


def answer_fields(result: LLMResult) -> list[dict[str, Any]]:
    """Fields of an answer, one mapping per choice: ``completion``, ``finish_reason``, ``usage``, ``response_model``."""
    return [_answer(generation, result) for generation in (result.generations[0] if result.generations else ())]


def message_of(result: LLMResult) -> AIMessage | None:
    """The message of the first choice; None for a text model."""
    choices = result.generations[0] if result.generations else None
    first = choices[0] if choices else None
    message = getattr(first, "message", None)
    return message if isinstance(message, AIMessage) else None


def response_id(message: AIMessage | None, result: LLMResult) -> str | None:
    """The provider's id of the answer; None if LangChain does not keep it, as in most streams."""
    found = None if message is None else message.response_metadata.get("id")
    return found if found is not None else (result.llm_output or {}).get("id")


def is_cached(message: AIMessage | None) -> bool:
    """Whether the answer came from LangChain's cache: then its cost is zero, or its message has no id."""
    if message is None:
        return False
    usage: Mapping[str, Any] | None = message.usage_metadata
    return message.id is None or (usage is not None and usage.get("total_cost") == 0)


def _messages(prompt: Sequence[BaseMessage] | str) -> list[Any]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    try:
        converted = convert_to_openai_messages(list(prompt))
    except (TypeError, ValueError):  # A content part that OpenAI's chat does not have.
        converted = [{"role": message.type, "content": message.content} for message in prompt]
    return list(converted)


def _answer(generation: Generation, result: LLMResult) -> dict[str, Any]:
    message = getattr(generation, "message", None)
    if not isinstance(message, AIMessage):
        completion = Completion(content=generation.text or None)
        return {"completion": completion, **_finish_reason(generation.generation_info or {})}
    facts = {**(generation.generation_info or {}), **message.response_metadata}
    return {
        "completion": Completion(
            **_content(message),
            tool_calls=_tool_calls(message),
            refusal=message.additional_kwargs.get("refusal"),
        ),
        "usage": _usage(message),
        "response_model": facts.get("model_name") or facts.get("model"),
        **_finish_reason(facts),
    }


def _content(message: AIMessage) -> dict[str, Any]:
    """The text and the reasoning of a message. If its blocks hold more than these and tool calls, they are kept too."""
    reasoning = message.additional_kwargs.get("reasoning_content")
    if not isinstance(message.content, list):
        return {"content": message.content or None, "reasoning": reasoning}
    blocks = _standard_blocks(message)
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    thoughts = [block.get("reasoning") or "" for block in blocks if block.get("type") == "reasoning"]
    fields: dict[str, Any] = {"content": "".join(texts) or None, "reasoning": "".join(thoughts) or reasoning}
    if len(texts) > 1 or len(thoughts) > 1 or not all(_fits_fields(block) for block in blocks):
        # As in steps that are decoded from bytes. With neither text nor reasoning, the blocks are the content.
        fields |= {"extra": {"content": message.content}} if texts or thoughts else {"content": message.content}
    return fields


def _standard_blocks(message: AIMessage) -> list[dict[str, Any]]:
    """The content blocks in LangChain's standard shape, for every provider."""
    try:
        return [dict(block) for block in message.content_blocks]
    except Exception:  # The conversion raises on blocks that are malformed for their provider.
        return [{"type": "unknown"}]


_TOOL_CALL_BLOCKS = ("tool_call", "invalid_tool_call", "tool_call_chunk")
_TEXT_FIELDS = {"text": {"type", "text", "index", "id"}, "reasoning": {"type", "reasoning", "index", "id"}}


def _fits_fields(block: Mapping[str, Any]) -> bool:
    """Whether a block is held completely by the fields of a ``Completion``."""
    kind = block.get("type")
    filled = {name for name, value in block.items() if value}
    return kind in _TOOL_CALL_BLOCKS or filled <= _TEXT_FIELDS.get(str(kind), set())


_FINISH_REASON_FIELDS = ("finish_reason", "stop_reason", "done_reason", "stopReason")
"""Names of the finish reason: OpenAI's, Anthropic's, Ollama's, Bedrock's."""


def _finish_reason(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"finish_reason": next((facts[name] for name in _FINISH_REASON_FIELDS if facts.get(name) is not None), None)}


def _tool_calls(message: AIMessage) -> tuple[ToolCall, ...]:
    # The arguments as the model wrote them, if the class keeps that text: dumping parsed ones may differ from it.
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
    counts = message.usage_metadata
    if counts is None or "input_tokens" not in counts:
        return None
    input_details: Mapping[str, Any] = counts.get("input_token_details") or {}
    output_details: Mapping[str, Any] = counts.get("output_token_details") or {}
    return Usage(
        input=counts["input_tokens"],
        output=counts["output_tokens"],
        cache_read=input_details.get("cache_read"),
        cache_write=input_details.get("cache_creation"),
        reasoning=output_details.get("reasoning"),
    )
