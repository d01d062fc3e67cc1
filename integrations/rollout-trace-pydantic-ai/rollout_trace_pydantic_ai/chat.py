"""Step fields from Pydantic AI's messages, for model calls whose bytes were not recorded.

Messages and tools take the shape of OpenAI's chat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import BinaryContent, ImageUrl, ModelMessage, ModelResponse, ToolReturn
from pydantic_ai.models import ModelRequestParameters

from rollout_trace.integration import Completion, ToolCall, Usage, snapshot

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "stop_sequences": "stop",
}
"""Settings of a request, and their names in a step."""


def request_fields(
    messages: Sequence[ModelMessage],
    settings: Mapping[str, Any] | None,
    parameters: ModelRequestParameters,
    model_name: str,
) -> dict[str, Any]:
    """Fields of a request: ``messages``, ``tools``, ``model`` and ``sampling``.

    Args:
        messages: as they go to the model.
        settings: of the request; None without.
        parameters: of the request; they have the tools.
        model_name: of the model.
    """
    given = settings or {}
    sampling = {ours: given[theirs] for theirs, ours in _SAMPLING.items() if given.get(theirs) is not None}
    tools = [*parameters.function_tools, *parameters.output_tools]
    return {
        "messages": [*_instructions(messages), *(part for message in messages for part in _chat(message))],
        "tools": [_tool(tool) for tool in tools] or None,
        "model": model_name,
        "sampling": sampling or None,
    }


def answer_fields(response: ModelResponse) -> dict[str, Any]:
    """Fields of an answer: ``completion``, ``finish_reason``, ``response_model`` and ``usage``."""
    fields = _assistant(response)
    calls = tuple(
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in fields.get("tool_calls", ())
    )
    completion = Completion(content=fields["content"], reasoning=fields.get("reasoning_content"), tool_calls=calls)
    return {
        "completion": completion,
        "finish_reason": response.finish_reason,
        "response_model": response.model_name,
        "usage": _usage(response.usage),
    }


def tool_result(result: Any) -> Any:
    """A copy of the result of a tool: of a ``ToolReturn`` without further content its value alone."""
    if isinstance(result, ToolReturn) and not result.content and result.metadata is None:
        return snapshot(result.return_value)
    return snapshot(result)


def parsed(arguments: Any) -> Any:
    """The arguments of a tool call, as the model wrote them, without their JSON; a text that is none stays one."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def retry_reason(part: Any) -> str | None:
    """Returns why the model is asked again, if this part of a request says so; otherwise None."""
    if part.part_kind in ("retry-prompt", "retry-feedback") or getattr(part, "outcome", None) == "retried":
        return part.content if isinstance(part.content, str) else json.dumps(snapshot(part.content))
    return None


def _usage(usage: Any) -> Usage | None:
    counts = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens or None,
        "cache_write": usage.cache_write_tokens or None,
    }
    # Pydantic AI has zeros for what the model does not report: missing is not zero.
    return Usage(**counts) if counts["input"] or counts["output"] else None


def _instructions(messages: Sequence[ModelMessage]) -> Iterator[dict[str, Any]]:
    """The instructions, which are those of the latest request that has any."""
    for message in reversed(messages):
        if message.kind == "request" and message.instructions:
            yield {"role": "system", "content": message.instructions}
            return


def _tool(tool: Any) -> dict[str, Any]:
    parameters = snapshot(tool.parameters_json_schema)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _chat(message: ModelMessage) -> Iterator[dict[str, Any]]:
    """A message of Pydantic AI as messages of OpenAI's chat."""
    if message.kind == "response":
        yield {"role": "assistant", **_assistant(message)}
        return
    parts: Sequence[Any] = message.parts  # Which kinds there are depends on the release.
    for part in parts:
        kind = part.part_kind
        if kind == "tool-return" or (kind == "retry-prompt" and part.tool_name is not None):
            text = part.model_response_str() if kind == "tool-return" else part.model_response()
            yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
        elif kind in ("retry-prompt", "retry-feedback"):
            yield {"role": "user", "content": part.model_response()}
        elif kind in ("system-prompt", "user-prompt"):
            yield {"role": kind.partition("-")[0], "content": _content(part.content)}
        # Others record changes of tools and settings, which the request's own fields show.


def _assistant(response: ModelResponse) -> dict[str, Any]:
    texts, thoughts, calls, others = [], [], [], []
    for part in response.parts:
        if part.part_kind == "text":
            texts.append(part.content)
        elif part.part_kind == "thinking":
            thoughts.append(part.content)
        elif part.part_kind == "tool-call":
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
        else:
            # Files, and tools that the provider runs itself.
            others.append({"type": part.part_kind, **snapshot(part)})
    text = "".join(texts)
    content: Any = text if text or not (calls or thoughts) else None
    if others:
        content = [*([{"type": "text", "text": text}] if text else []), *others]
    fields: dict[str, Any] = {"content": content}
    if thoughts:
        fields["reasoning_content"] = "".join(thoughts)
    if calls:
        fields["tool_calls"] = calls
    return fields


def _content(content: Any) -> str | list[Any]:
    return content if isinstance(content, str) else [_part(one) for one in content]


def _part(one: Any) -> dict[str, Any]:
    if isinstance(one, str):
        return {"type": "text", "text": one}
    if isinstance(one, ImageUrl):
        return {"type": "image_url", "image_url": {"url": one.url}}
    if isinstance(one, BinaryContent) and one.is_image:
        return {"type": "image_url", "image_url": {"url": one.data_uri}}
    held = snapshot(one)
    return {"type": "other", **held} if isinstance(held, dict) else {"type": "text", "text": str(held)}


def waiting(call: Any, what: str) -> dict[str, Any]:
    """A tool call (a ``ToolCallPart``) that a run waits for. ``what``: its ``approval``, or its ``result``."""
    return {"tool_call_id": call.tool_call_id, "name": call.tool_name, "arguments": parsed(call.args), "for": what}
