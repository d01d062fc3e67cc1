"""Step fields from ADK's requests and responses, for model calls whose bytes were not recorded.

Messages and tools take the shape of OpenAI's chat.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from rollout_trace.integration import Completion, ToolCall, Usage

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
}


def request_fields(request: LlmRequest, model: str | None = None) -> dict[str, Any]:
    """Returns a request's ``messages``, ``tools``, ``model`` (the argument, if it names none) and ``sampling``."""
    config = request.config
    settings = {name: getattr(config, field, None) for field, name in _SAMPLING.items()}
    tools = [tool for one in config.tools or () for tool in _tools(one)]
    return {
        "messages": [*_system(config.system_instruction), *(one for each in request.contents for one in _chat(each))],
        "tools": tools or None,
        "model": request.model or model,
        "sampling": {name: value for name, value in settings.items() if value is not None} or None,
    }


def answer_fields(responses: Sequence[LlmResponse]) -> dict[str, Any]:
    """Fields of an answer: ``completion``, ``finish_reason``, ``usage`` and ``response_model``.

    Args:
        responses: the answer, in one piece or in several that follow each other.
    """
    last = responses[-1]
    parts = [part for one in responses if one.content is not None for part in one.content.parts or ()]
    calls = tuple(
        ToolCall(id=call.id, name=call.name, arguments=_json(call.args or {}))
        for call in (part.function_call for part in parts)
        if call is not None
    )
    reasoning = "".join(part.text or "" for part in parts if part.thought)
    content = _content([part for part in parts if part.function_call is None and not part.thought])
    completion = Completion(content=content or None, reasoning=reasoning or None, tool_calls=calls)
    reason = last.finish_reason
    return {
        "completion": completion,
        "finish_reason": getattr(reason, "value", reason),
        "usage": _usage(last.usage_metadata),
        "response_model": last.model_version,
    }


def _usage(counts: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    if counts is None:
        return None
    return Usage(
        input=counts.prompt_token_count,
        output=counts.candidates_token_count,
        cache_read=counts.cached_content_token_count,
        reasoning=counts.thoughts_token_count,
    )


def _system(instruction: Any) -> list[dict[str, Any]]:
    if instruction is None or instruction == "":
        return []
    if isinstance(instruction, types.Content):
        instruction = _content(instruction.parts or [])
    return [{"role": "system", "content": instruction if isinstance(instruction, (str, list)) else str(instruction)}]


def _tools(tool: Any) -> Iterator[dict[str, Any]]:
    """The function declarations of a tool; one that has none, such as Google's search, as it is."""
    if not isinstance(tool, types.Tool):
        return
    for declared in tool.function_declarations or ():
        yield {"type": "function", "function": declared.model_dump(mode="json", exclude_none=True)}
    rest = tool.model_dump(mode="json", exclude_none=True, exclude={"function_declarations"})
    if rest:
        yield rest


def _chat(content: types.Content) -> Iterator[dict[str, Any]]:
    """A content as messages of OpenAI's chat: one for each tool result, and one for the rest."""
    parts = content.parts or []
    for part in parts:
        result = part.function_response
        if result is not None:
            yield {"role": "tool", "tool_call_id": result.id, "content": _json(result.response)}
    calls = [part.function_call for part in parts if part.function_call is not None]
    rest = [part for part in parts if part.function_call is None and part.function_response is None]
    if not calls and not rest:
        return
    message: dict[str, Any] = {"role": "assistant" if content.role == "model" else "user"}
    message["content"] = _content([part for part in rest if not part.thought]) or None
    reasoning = "".join(part.text or "" for part in rest if part.thought)
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        functions = [{"name": call.name, "arguments": _json(call.args or {})} for call in calls]
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": function}
            for call, function in zip(calls, functions, strict=True)
        ]
    yield message


def _content(parts: Sequence[types.Part]) -> str | list[Any]:
    """The text of parts that are all text, else a list of content parts."""
    if all(part.text is not None for part in parts):
        return "".join(part.text or "" for part in parts)
    return [_part(part) for part in parts]


def _part(part: types.Part) -> dict[str, Any]:
    if part.text is not None:
        return {"type": "text", "text": part.text}
    blob = part.inline_data
    if blob is not None and blob.data is not None and str(blob.mime_type).startswith("image/"):
        data = base64.b64encode(blob.data).decode()
        return {"type": "image_url", "image_url": {"url": f"data:{blob.mime_type};base64,{data}"}}
    return part.model_dump(mode="json", exclude_none=True)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
