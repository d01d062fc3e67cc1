"""Requests and answers of every protocol as OpenAI's chat messages, the shape that most consumers of text accept.

Messages of ``openai.chat`` stay as they were sent. Others are converted: a separate system prompt becomes the first
message, tool results become messages of the role ``tool``, reasoning becomes ``reasoning_content``, and everything in
one answer becomes one message. What has no place in a chat message is left out and counted in the report. Left out
without being counted are fields that no model reads: ids and statuses of items, cache marks, signatures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.wire import blocks, google_messages, google_parts, response_items
from rollout_trace.wire.chat_parts import as_text, content_of
from rollout_trace.wire.ollama_messages import from_ollama
from rollout_trace.wire.protocols import MessageShape, record_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

Arguments: TypeAlias = Literal["json", "dict"]
Message: TypeAlias = dict[str, Any]

_OUTPUT_ITEMS = frozenset({"reasoning", "function_call", "custom_tool_call"})
_TOOL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_BLOCKS = frozenset({"text", "thinking", "reasoning", "tool_use"})
_CONVERTED_TYPES = {"content": _BLOCKS, "output": _OUTPUT_ITEMS | {"message"}}
"""Fields of ``Completion.extra`` with whole blocks or items, and the types of these that its own fields cover."""
HELD_BY_SERVER = "requests whose first messages the server holds"
_NOT_READ_BY_MODELS = frozenset({"item_id", "status", "signature", "thoughtSignature", "cache_control"})


def to_chat(step: Step, report: ExportReport | None = None) -> list[Message]:
    """The messages of a step's request as chat messages, oldest first; tool arguments are JSON texts.

    The prompt of a completions or generate endpoint is one message of the role ``user``; one that was sent as token ids
    has no text and gives no message. Earlier messages that the server keeps (``previous_response_id``) are missing.
    Chat messages are objects that the steps share: do not change them.
    """
    _drop_if(report, previous_response_of(step), HELD_BY_SERVER)
    return [message for part in message_groups(step) for message in convert(step.protocol, part, report)]


def previous_response_of(step: Step) -> Any:
    """Id of the stored response that a request continues; None where it has its whole prompt itself."""
    return (step.sampling or {}).get("previous_response_id") if _shape(step.protocol) == "items" else None


def _shape(protocol: str | None) -> MessageShape:
    return record_of(protocol).messages


def message_groups(step: Step) -> Iterator[tuple[Any, ...]]:
    """The messages of a request as they were sent, in groups for ``convert``."""
    return grouped(step.protocol, step.messages or ())


def grouped(protocol: str | None, sent: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Messages of a request, or a part of them, in groups for ``convert``."""
    shape = _shape(protocol)
    if shape == "texts":
        yield tuple(sent)
    elif shape != "items":
        yield from ((message,) for message in sent)
    else:
        for is_output, group in groupby(sent, _is_output):
            items = tuple(group)
            # Consecutive output items are one answer, and so one message.
            yield from [items] if is_output else zip(items)


def convert(protocol: str | None, sent: tuple[Any, ...], report: ExportReport | None = None) -> list[Message]:
    """One group of ``message_groups`` as chat messages."""
    shape = _shape(protocol)
    if shape == "texts":
        return _from_prompts(sent, report)
    if shape == "items":
        return _from_items(sent, report)
    (message,) = sent
    if shape == "ollama" and isinstance(message, (dict, str)):
        return [from_ollama(message, report)]
    if shape == "sampled" and isinstance(message, (str, list)):
        return _from_prompts((message,), report)
    if not isinstance(message, dict):
        _drop_if(report, True, "messages that are no objects")
        return []
    if shape == "contents":
        return list(_from_contents(message, report))
    return list(_from_blocks(message, report)) if shape == "blocks" else [message]


def answer(step: Step, arguments: Arguments = "json", report: ExportReport | None = None) -> Message | None:
    """The completion of a step as an assistant message; None where the step has none.

    ``arguments="dict"`` decodes the arguments of tool calls. Those that are no JSON object stay texts and are counted.
    """
    if step.completion is None:
        return None
    message = _message(step.completion, report)
    return message if arguments == "json" else with_decoded_arguments(message, report)


def with_decoded_arguments(message: Message, report: ExportReport | None = None) -> Message:
    """A copy of a chat message with the arguments of its function calls decoded, where they are JSON objects."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    # A copy, as the steps share the message.
    return {**message, "tool_calls": [_decoded_call(call, report) for call in calls]}


def with_text(message: Message) -> Message:
    """A chat message with content of text parts joined to one text; see ``as_text``."""
    content = message.get("content")
    text = as_text(content)
    return message if text is content else {**message, "content": text}


def calls_of(message: Message) -> list[Any]:
    """The tool calls of a chat message; empty where there is no list of them."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def arguments_of(text: Any) -> dict[str, Any] | None:
    """The arguments of a tool call, decoded; None where the model wrote no JSON object (NaN is no JSON)."""
    if isinstance(text, dict):
        return text
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def tools_of(step: Step, report: ExportReport | None = None) -> list[dict[str, Any]] | None:
    """The tools of a step's request in chat's shape (``{"type": "function", "function": {...}}``); None without tools.

    Tools that the provider runs itself have no schema: they are left out and counted.
    """
    tools = step.tools
    if tools is None:
        # The older field of chat requests, from before `tools`.
        functions = (step.sampling or {}).get("functions")
        return [{"type": "function", "function": one} for one in functions] if isinstance(functions, list) else None
    if _shape(step.protocol) == "contents":
        tools = [one for tool in tools for one in google_messages.declared_in(tool)]
    return [converted for tool in tools if (converted := tool_of(tool, report)) is not None]


def names_of_tools(step: Step) -> list[str]:
    """Names of the tools of a step's request; of those that the provider runs itself, their type."""
    tools = list(step.tools or ())
    if _shape(step.protocol) == "contents":
        tools = [one for tool in tools for one in google_messages.declared_in(tool)]
    return [_name_of_tool(tool) for tool in tools]


def _name_of_tool(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "?"
    named = [one.get("name") for one in (tool.get("function"), tool.get("custom"), tool) if isinstance(one, dict)]
    return next((one for one in (*named, tool.get("type")) if isinstance(one, str)), "?")


def _drop_if(report: ExportReport | None, condition: Any, what: str, *, metadata: bool = False) -> None:
    if condition and report is not None:
        report.drop(what, metadata=metadata)


def _from_prompts(sent: tuple[Any, ...], report: ExportReport | None) -> list[Message]:
    texts = [prompt for prompt in sent if isinstance(prompt, str)]
    _drop_if(report, len(sent) > 1, "prompts of a request with several, where it is not known which one was answered")
    _drop_if(report, len(sent) < 2 and not texts, "prompts that were sent as token ids, not as text")
    return [{"role": "user", "content": texts[0]}] if len(sent) == 1 and texts else []


def _from_blocks(message: dict[str, Any], report: ExportReport | None) -> Iterator[Message]:
    """One of Anthropic's messages as chat messages: several where it has tool results."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
    elif role == "assistant":
        yield _message(blocks.completion_of(role, [blocks.Block(value) for value in content], {}), report)
    else:
        # Chat has a message per tool result; texts before and between them keep their places.
        for is_result, values in groupby(content, _is_result):
            if is_result:
                yield from (_tool_message(value, report) for value in values)
            else:
                yield {"role": role, "content": content_of(list(values), report)}


def _from_contents(message: dict[str, Any], report: ExportReport | None) -> Iterator[Message]:
    """One of Google's contents as chat messages: several where it has results of functions."""
    role, parts = message.get("role") or "user", google_messages.parts_of(message)
    if role == "model":
        yield _message(google_parts.completion_of(parts), report)
        return
    # Chat has a message per result; texts before and between them keep their places.
    for is_result, values in groupby(parts, google_messages.is_result):
        if is_result:
            yield from map(google_messages.tool_message, values)
        else:
            yield {"role": role, "content": content_of([google_messages.part_of(value) for value in values], report)}


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _tool_message(block: dict[str, Any], report: ExportReport | None) -> Message:
    content = content_of(block.get("content"), report)
    message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "" if content is None else content}
    return {**message, "is_error": True} if block.get("is_error") else message


def _from_items(items: tuple[Any, ...], report: ExportReport | None) -> list[Message]:
    """The output items of one answer, or one other item of a Responses request, as chat messages."""
    item = items[0]
    if _is_output(item):
        return [_message(response_items.completion_of(list(items)), report)]
    if isinstance(item, str):
        return [{"role": "user", "content": item}]
    if not isinstance(item, dict):
        _drop_if(report, True, "messages that are no objects")
    elif str(item.get("type")) in _TOOL_OUTPUTS:
        output = content_of(item.get("output"), report)
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": "" if output is None else output}]
    elif item.get("role") is not None:
        return [{"role": item["role"], "content": content_of(item.get("content"), report)}]
    else:
        _drop_if(report, True, f"items without a place in a chat message: {item.get('type')}")
    return []


def _is_output(item: Any) -> bool:
    """True for an item of an earlier answer. An assistant message written by the caller lacks parts of these types."""
    if not isinstance(item, dict):
        return False
    kind, content = item.get("type"), item.get("content")
    if kind == "message":
        parts = content if isinstance(content, list) and item.get("role") == "assistant" else []
        return any(isinstance(part, dict) and part.get("type") in ("output_text", "refusal") for part in parts)
    return isinstance(kind, str) and (kind in _OUTPUT_ITEMS or kind.endswith("_call"))


def _message(completion: Completion, report: ExportReport | None) -> Message:
    for what in _dropped_fields(completion):
        metadata = what == "citations" or what.startswith("fields of ")
        _drop_if(report, True, what, metadata=metadata)
    content = completion.content
    message: Message = {"role": completion.role, "content": list(content) if isinstance(content, tuple) else content}
    if completion.reasoning is not None:
        message["reasoning_content"] = completion.reasoning
    if completion.tool_calls:
        message["tool_calls"] = [_call(call) for call in completion.tool_calls]
    if completion.refusal is not None:
        message["refusal"] = completion.refusal
    function_call = (completion.extra or {}).get("function_call")
    return message if function_call is None else {**message, "function_call": function_call}


def _call(call: ToolCall) -> dict[str, Any]:
    if call.type == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments or ""}}
    # Anthropic's tools without parameters are called without arguments; chat has an empty object there.
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def _decoded_call(call: Any, report: ExportReport | None) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = arguments_of(function.get("arguments"))
    _drop_if(report, arguments is None, "tool arguments that are no JSON object, left as text")
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def _dropped_fields(completion: Completion) -> Iterator[str]:
    """Names of what a completion has and its chat message lacks."""
    for name, value in (completion.extra or {}).items():
        kept = _CONVERTED_TYPES.get(name)
        if kept is not None and isinstance(value, list):
            yield from _dropped_parts(value, kept)
        elif name == "parts" and isinstance(value, list):
            yield from (f"parts of an answer: {kind}" for kind in google_messages.kinds_without_place(value))
        elif name not in ("function_call", "index") and value not in (None, [], {}, ""):
            yield f"fields of an answer: {name}"
    for call in completion.tool_calls:
        yield from (f"fields of a tool call: {name}" for name in call.extra or {} if name not in _NOT_READ_BY_MODELS)


def _dropped_parts(values: Iterable[Any], kept: frozenset[str]) -> Iterator[str]:
    for value in values:
        kind = value.get("type") if isinstance(value, dict) else type(value).__name__
        # A type that is no text may not be hashable.
        if not isinstance(kind, str) or kind not in kept:
            yield f"parts of an answer: {kind}"
        elif kind == "reasoning" and not (value.get("content") or value.get("summary")):
            yield "reasoning that the provider encrypted"
        elif kind == "text" and value.get("citations"):
            yield "citations"


def tool_of(tool: Any, report: ExportReport | None) -> dict[str, Any] | None:
    """One tool in chat's shape; None for one that the provider runs itself, which is counted."""
    kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
    if isinstance(tool, dict):
        if isinstance(tool.get("function"), dict) or isinstance(tool.get("custom"), dict):
            return tool
        if isinstance(tool.get("input_schema"), dict):
            names = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
            return {"type": "function", "function": {new: tool[old] for old, new in names.items() if old in tool}}
        if kind in ("function", "custom"):
            return {"type": kind, kind: {name: value for name, value in tool.items() if name != "type"}}
    _drop_if(report, True, f"tools that the provider runs itself: {kind}")
    return None
