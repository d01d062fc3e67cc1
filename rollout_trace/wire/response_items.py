"""The output items of a response, as a completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Completion, ToolCall
from rollout_trace.wire.chat_messages import NO_OBJECT, OUTPUT_ITEMS, content_of, drop_if, message_of

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_TOOL_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_MESSAGE_FIELDS = frozenset({"id", "type", "role", "status", "content"})
_TEXT_FIELDS = frozenset({"type", "text", "logprobs"})
_REFUSAL_FIELDS = frozenset({"type", "refusal"})
_NO_FIELDS: frozenset[str] = frozenset()
_REASONING_FIELDS = frozenset({"id", "type", "status", "content"})


def completion_of(items: list[Any]) -> Completion:
    """The completion that output items make.

    ``content`` is the text of all messages, ``reasoning`` that of the reasoning or else its summary, ``tool_calls`` are
    the function and custom calls. Where these fields lose something (order, built-in tools, annotations, encrypted
    reasoning, items of unknown types), ``extra["output"]`` has the items as they came, without their logprobs.
    """
    known = [item for item in items if isinstance(item, dict)]
    calls = tuple(_call(item) for item in known if _kind(item) in _CALLS)
    texts = [_text(part, "text") for part in content_parts(known) if part.get("type") == "output_text"]
    refusals = [_text(part, "refusal") for part in content_parts(known) if part.get("type") == "refusal"]
    reasoning = _reasoning(known) or None
    content: str | None = "".join(texts) if texts else None
    if not content and (calls or reasoning or refusals):
        content = None
    return Completion(
        role=next((item["role"] for item in known if isinstance(item.get("role"), str)), "assistant"),
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        refusal="".join(refusals) if refusals else None,
        extra=None if _is_plain(items) else {"output": [_without_logprobs(item) for item in items]},
    )


def content_parts(items: list[Any]) -> Iterator[dict[str, Any]]:
    """The content parts of all messages, in order."""
    for item in items:
        if isinstance(item, dict) and item.get("type") == "message":
            yield from _objects(item.get("content"))


def num_sampled(items: list[Any]) -> int:
    """Number of items that the model sampled: all but the outputs of tools."""
    kinds = [_kind(item) for item in items if isinstance(item, dict)]
    return sum(not kind.endswith("_output") for kind in kinds)


def _call(item: dict[str, Any]) -> ToolCall:
    kind, field = _CALLS[item["type"]]
    taken = {"type", "call_id", "name", field, "id"}
    extra = {name: value for name, value in item.items() if value is not None and name not in taken}
    if item.get("id") is not None:
        # The item's own id; a tool's output refers to `call_id` instead.
        extra["item_id"] = item["id"]
    call_id, name, arguments = (item.get(key) for key in ("call_id", "name", field))
    return ToolCall(
        id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
        arguments=arguments if isinstance(arguments, str) else None,
        type=kind,
        extra=extra or None,
    )


def _reasoning(items: list[dict[str, Any]]) -> str:
    """The text of the reasoning; its summary where the provider sends no more."""
    found = [item for item in items if item.get("type") == "reasoning"]
    for field, between in (("content", ""), ("summary", "\n\n")):
        texts = [between.join(_text(part, "text") for part in _objects(item.get(field))) for item in found]
        if any(texts):
            return "\n\n".join(filter(None, texts))
    return ""


def _is_plain(items: list[Any]) -> bool:
    """True where a completion's own fields hold everything: at most one reasoning, then one message, then calls."""
    kinds = [_kind(item) if isinstance(item, dict) else "" for item in items]
    order = [("reasoning", "message", *_CALLS).index(kind) if kind in _PLAIN else -1 for kind in kinds]
    if order != sorted(order) or -1 in order or kinds.count("reasoning") > 1 or kinds.count("message") > 1:
        return False
    return all(_PLAIN[kind](item) for kind, item in zip(kinds, items, strict=True))


def _is_plain_message(item: dict[str, Any]) -> bool:
    content = item.get("content")
    if _has_other_fields(item, _MESSAGE_FIELDS) or not (content is None or isinstance(content, list)):
        return False
    parts = content or []
    kinds = {"output_text": _TEXT_FIELDS, "refusal": _REFUSAL_FIELDS}
    return all(isinstance(p, dict) and not _has_other_fields(p, kinds.get(_kind(p), _NO_FIELDS)) for p in parts)


def _is_plain_reasoning(item: dict[str, Any]) -> bool:
    parts = item.get("content")
    if _has_other_fields(item, _REASONING_FIELDS) or not isinstance(parts, list) or not parts:
        return False
    return all(isinstance(part, dict) and not _has_other_fields(part, {"type", "text"}) for part in parts)


def _is_plain_call(item: dict[str, Any]) -> bool:
    texts = ("call_id", "name", _CALLS[item["type"]][1])
    return all(item.get(name) is None or isinstance(item[name], str) for name in texts)


_PLAIN = {
    "message": _is_plain_message,
    "reasoning": _is_plain_reasoning,
    "function_call": _is_plain_call,
    "custom_tool_call": _is_plain_call,
}


def _has_other_fields(item: dict[str, Any], fields: frozenset[str] | set[str]) -> bool:
    """True where an object has other fields than these, nulls and empty lists aside."""
    return any(name not in fields and value is not None and value != [] for name, value in item.items())


def _without_logprobs(item: Any) -> Any:
    # A step has its logprobs as an array, and they are large.
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return item
    content = [
        {name: value for name, value in part.items() if name != "logprobs"} if isinstance(part, dict) else part
        for part in item["content"]
    ]
    return {**item, "content": content}


def _kind(item: dict[str, Any]) -> str:
    return _text(item, "type")


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _text(part: dict[str, Any], name: str) -> str:
    return part[name] if isinstance(part.get(name), str) else ""


def groups(sent: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The items of a request in groups that are one chat message each: consecutive output items are one answer."""
    for is_output, group in groupby(sent, _is_output):
        items = tuple(group)
        yield from [items] if is_output else zip(items)


def to_chat(sent: tuple[Any, ...], report: ExportReport | None) -> Iterator[dict[str, Any]]:
    """The output items of one answer, or one other item of a Responses request, as chat messages."""
    item = sent[0]
    if _is_output(item):
        yield message_of(completion_of(list(sent)), report)
    elif isinstance(item, str):
        yield {"role": "user", "content": item}
    elif not isinstance(item, dict):
        drop_if(report, True, NO_OBJECT)
    elif str(item.get("type")) in _TOOL_OUTPUTS:
        output = content_of(item.get("output"), report)
        yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": "" if output is None else output}
    elif item.get("role") is not None:
        yield {"role": item["role"], "content": content_of(item.get("content"), report)}
    else:
        drop_if(report, True, f"items without a place in a chat message: {item.get('type')}")


def _is_output(item: Any) -> bool:
    """True for an item of an earlier answer. An assistant message written by the caller lacks parts of these types."""
    if not isinstance(item, dict):
        return False
    kind, content = item.get("type"), item.get("content")
    if kind == "message":
        parts = content if isinstance(content, list) and item.get("role") == "assistant" else []
        return any(isinstance(part, dict) and part.get("type") in ("output_text", "refusal") for part in parts)
    return isinstance(kind, str) and (kind in OUTPUT_ITEMS or kind.endswith("_call"))
