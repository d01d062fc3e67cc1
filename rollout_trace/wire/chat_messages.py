"""Requests and answers of every protocol as OpenAI's chat messages, the shape that most consumers of text accept.

Messages of ``openai.chat`` stay as they were sent. Others are converted: a separate system prompt becomes the first
message, tool results become messages of the role ``tool``, reasoning becomes ``reasoning_content``, and everything in
one answer becomes one message. What has no place in a chat message is left out and counted in the report. Left out
without being counted are fields that no model reads: ids and statuses of items, cache marks, signatures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.wire.protocols import SHAPES_IN, MessageShape, record_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

Arguments: TypeAlias = Literal["json", "dict"]
Message: TypeAlias = dict[str, Any]

OUTPUT_ITEMS = frozenset({"reasoning", "function_call", "custom_tool_call"})
"""Items of an answer of Responses that a chat message has a place for."""
NO_OBJECT = "messages that are no objects"
_BLOCKS = frozenset({"text", "thinking", "reasoning", "tool_use"})
_CONVERTED_TYPES = {"content": _BLOCKS, "output": OUTPUT_ITEMS | {"message"}}
"""Fields of ``Completion.extra`` with whole blocks or items, and the types of these that its own fields cover."""
_PLACED = frozenset({"text", "thought", "thoughtSignature", "functionCall"})
"""Fields of a part of an answer that a chat message has a place for, or that no model reads."""
HELD_BY_SERVER = "requests whose first messages the server holds"
_NOT_READ_BY_MODELS = frozenset({"item_id", "status", "signature", "thoughtSignature", "cache_control"})


def to_chat(step: Step, report: ExportReport | None = None) -> list[Message]:
    """The messages of a step's request as chat messages, oldest first; tool arguments are JSON texts.

    The prompt of a completions or generate endpoint is one message of the role ``user``; one that was sent as token ids
    has no text and gives no message. Earlier messages that the server keeps (``previous_response_id``) are missing.
    Chat messages are objects that the steps share: do not change them.
    """
    drop_if(report, previous_response_of(step), HELD_BY_SERVER)
    return [message for part in message_groups(step) for message in convert(step.protocol, part, report)]


def previous_response_of(step: Step) -> Any:
    """Id of the stored response that a request continues; None where it has its whole prompt itself."""
    return (step.sampling or {}).get("previous_response_id") if _shape(step.protocol) == "items" else None


def _shape(protocol: str | None) -> MessageShape:
    return record_of(protocol).messages


@cache
def _module(protocol: str | None) -> Any:
    """The module with ``to_chat`` for the protocol's messages, imported on first use; None where there is none."""
    name = SHAPES_IN.get(_shape(protocol))
    return None if name is None else import_module(f"rollout_trace.wire.{name}")


def message_groups(step: Step) -> Iterator[tuple[Any, ...]]:
    """The messages of a request as they were sent, in groups for ``convert``."""
    return grouped(step.protocol, step.messages or ())


def grouped(protocol: str | None, sent: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Messages of a request, or a part of them, in groups for ``convert``."""
    module, shape = _module(protocol), _shape(protocol)
    if shape == "texts":
        yield tuple(sent)
    elif hasattr(module, "groups"):
        yield from module.groups(sent)
    else:
        yield from zip(sent)


def convert(protocol: str | None, sent: tuple[Any, ...], report: ExportReport | None = None) -> list[Message]:
    """One group of ``message_groups`` as chat messages."""
    module, shape = _module(protocol), _shape(protocol)
    if module is not None:
        return list(module.to_chat(sent, report))
    if shape == "texts" or (shape == "sampled" and isinstance(sent[0], (str, list))):
        return _from_prompts(sent, report)
    if isinstance(sent[0], dict):
        return [sent[0]]
    drop_if(report, True, NO_OBJECT)
    return []


def answer(step: Step, arguments: Arguments = "json", report: ExportReport | None = None) -> Message | None:
    """The completion of a step as an assistant message; None where the step has none.

    ``arguments="dict"`` decodes the arguments of tool calls. Those that are no JSON object stay texts and are counted.
    """
    if step.completion is None:
        return None
    message = message_of(step.completion, report)
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
    raise ValueError(f"{constant} is not JSON")


def tools_of(step: Step, report: ExportReport | None = None) -> list[dict[str, Any]] | None:
    """The tools of a step's request in chat's shape (``{"type": "function", "function": {...}}``); None without tools.

    Tools that the provider runs itself have no schema: they are left out and counted.
    """
    tools = step.tools
    if tools is None:
        # The older field of chat requests, from before `tools`.
        functions = (step.sampling or {}).get("functions")
        return [{"type": "function", "function": one} for one in functions] if isinstance(functions, list) else None
    return [converted for tool in _declared(step.protocol, tools) if (converted := tool_of(tool, report)) is not None]


def names_of_tools(step: Step) -> list[str]:
    """Names of the tools of a step's request; of those that the provider runs itself, their type."""
    return [_name_of_tool(tool) for tool in _declared(step.protocol, step.tools or ())]


def _declared(protocol: str | None, tools: Iterable[Any]) -> Iterable[Any]:
    """The single tools, where the protocol has several in one."""
    declared_in = getattr(_module(protocol), "declared_in", None)
    return tools if declared_in is None else [one for tool in tools for one in declared_in(tool)]


def _name_of_tool(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "?"
    named = [one.get("name") for one in (tool.get("function"), tool.get("custom"), tool) if isinstance(one, dict)]
    return next((one for one in (*named, tool.get("type")) if isinstance(one, str)), "?")


def drop_if(report: ExportReport | None, condition: Any, what: str, *, metadata: bool = False) -> None:
    """Counts what a chat message has no place for."""
    if condition and report is not None:
        report.drop(what, metadata=metadata)


def _from_prompts(sent: tuple[Any, ...], report: ExportReport | None) -> list[Message]:
    texts = [prompt for prompt in sent if isinstance(prompt, str)]
    drop_if(report, len(sent) > 1, "prompts of a request with several, where it is not known which one was answered")
    drop_if(report, len(sent) < 2 and not texts, "prompts that were sent as token ids, not as text")
    return [{"role": "user", "content": texts[0]}] if len(sent) == 1 and texts else []


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
    drop_if(report, arguments is None, "tool arguments that are no JSON object, left as text")
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def message_of(completion: Completion, report: ExportReport | None) -> Message:
    """A completion as an assistant message."""
    for what in _dropped_fields(completion):
        metadata = what == "citations" or what.startswith("fields of ")
        drop_if(report, True, what, metadata=metadata)
    function_call = (completion.extra or {}).get("function_call")
    message = assistant_message(completion)
    return message if function_call is None else {**message, "function_call": function_call}


def assistant_message(completion: Completion) -> Message:
    """A completion as the message that later requests repeat, without what stands in its ``extra``."""
    content = completion.content
    message: Message = {"role": completion.role, "content": list(content) if isinstance(content, tuple) else content}
    if completion.reasoning is not None:
        message["reasoning_content"] = completion.reasoning
    if completion.tool_calls:
        message["tool_calls"] = [_call(call) for call in completion.tool_calls]
    if completion.refusal is not None:
        message["refusal"] = completion.refusal
    return message


def _dropped_fields(completion: Completion) -> Iterator[str]:
    """Names of what a completion has and its chat message lacks."""
    for name, value in (completion.extra or {}).items():
        kept = _CONVERTED_TYPES.get(name)
        if kept is not None and isinstance(value, list):
            yield from _dropped_parts(value, kept)
        elif name == "parts" and isinstance(value, list):
            yield from (f"parts of an answer: {kind}" for kind in _kinds_without_place(value))
        elif name not in ("function_call", "index") and value not in (None, [], {}, ""):
            yield f"fields of an answer: {name}"
    for call in completion.tool_calls:
        yield from (f"fields of a tool call: {name}" for name in call.extra or {} if name not in _NOT_READ_BY_MODELS)


def _kinds_without_place(parts: list[Any]) -> Iterator[str]:
    """Names of Google's parts of an answer that a chat message has no place for."""
    for part in parts:
        if not isinstance(part, dict):
            yield type(part).__name__
        elif not part.keys() <= _PLACED:
            yield kind_of_part(part)


def kind_of_part(part: Mapping[str, Any]) -> str:
    """The name of what one of Google's parts is."""
    return next((name for name in part if name not in _PLACED), "no field")


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
    drop_if(report, True, f"tools that the provider runs itself: {kind}")
    return None


_CHAT = frozenset({"text", "image_url", "input_audio", "file", "refusal"})


def content_of(value: Any, report: ExportReport | None = None) -> str | list[dict[str, Any]] | None:
    """The content of a message as a text or a list of chat parts. A single text part becomes its text.

    Parts without a place in a chat message (a search result, a file stored by the provider, ...) are left out and
    counted in the report.
    """
    if value is None or isinstance(value, str):
        return value
    parts = [part for item in (value if isinstance(value, list) else [value]) for part in _parts(item, report)]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def as_text(content: Any) -> Any:
    """The content as one text where all its parts are text, joined with newlines; else unchanged.

    vLLM and llama-server join parts in this way for chat templates that expect texts.
    """
    texts = texts_of(content)
    return content if texts is None else "\n".join(texts)


def joined_texts(content: Any) -> str | None:
    """The texts of a content one behind the other, whatever other parts it has; None where there is no content."""
    if content is None or isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def texts_of(content: Any) -> list[str] | None:
    """The texts of a list of text parts; None for other contents, and where a part is not text or there is none."""
    if not isinstance(content, list) or not content:
        return None
    texts = [item if isinstance(item, str) else _text_of_part(item) for item in content]
    return None if None in texts else texts  # type: ignore[return-value]


def _text_of_part(item: Any) -> str | None:
    text = item.get("text") if isinstance(item, dict) and item.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _parts(item: Any, report: ExportReport | None) -> list[dict[str, Any]]:
    if isinstance(item, str):
        return [_text(item)]
    kind = str(item.get("type")) if isinstance(item, dict) else type(item).__name__
    convert = _CONVERTERS.get(kind)
    parts = convert(item) if convert is not None else [item] if kind in _CHAT else None
    if parts is None:
        if report is not None:
            report.drop(f"content parts without a place in a chat message: {kind}")
        return []
    # A document can have parts of Anthropic's shape inside, which are converted in turn.
    return [
        part for inner in parts for part in (_parts(inner, report) if str(inner.get("type")) not in _CHAT else [inner])
    ]


def _text(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text if isinstance(text, str) else ""}


def _responses_image(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    url, detail = item.get("image_url"), item.get("detail")
    if not isinstance(url, str):
        return None
    return [{"type": "image_url", "image_url": {"url": url} if detail is None else {"url": url, "detail": detail}}]


def _responses_file(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    fields = {name: item[name] for name in ("file_data", "file_id", "filename") if item.get(name) is not None}
    return [{"type": "file", "file": fields}] if "file_data" in fields or "file_id" in fields else None


def _anthropic_image(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    url = _url(item.get("source"))
    return None if url is None else [{"type": "image_url", "image_url": {"url": url}}]


def _anthropic_document(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    source, title = item.get("source"), item.get("title")
    if not isinstance(source, dict):
        return None
    if source.get("type") == "text":
        return [_text(source.get("data"))]
    if source.get("type") == "content":
        inner = source.get("content")
        return [_text(inner)] if isinstance(inner, str) else [part for part in inner or () if isinstance(part, dict)]
    data = _url(source) if source.get("type") == "base64" else None
    if data is None:
        return None
    return [{"type": "file", "file": {"file_data": data} if title is None else {"file_data": data, "filename": title}}]


def _url(source: Any) -> str | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    url = source.get("url")
    return url if isinstance(url, str) else None


_CONVERTERS: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]] | None]] = {
    # Rebuilt, as a text may have a cache mark, citations or annotations beside it, which no model reads.
    "text": lambda item: [_text(item.get("text"))],
    "input_text": lambda item: [_text(item.get("text"))],
    "output_text": lambda item: [_text(item.get("text"))],
    "input_image": _responses_image,
    "input_file": _responses_file,
    "image": _anthropic_image,
    "document": _anthropic_document,
}
