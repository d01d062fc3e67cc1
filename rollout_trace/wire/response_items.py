"""The output items of a response: the completion they make, and the logprobs that stand on their texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_trace.data.model import Completion, ToolCall

_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_MESSAGE_FIELDS = frozenset({"id", "type", "role", "status", "content"})
_TEXT_FIELDS = frozenset({"type", "text", "logprobs"})
_REFUSAL_FIELDS = frozenset({"type", "refusal"})
_NONE: frozenset[str] = frozenset()
_REASONING_FIELDS = frozenset({"id", "type", "status", "content"})


def completion_of(items: list[Any]) -> Completion:
    """What the items say.

    The text of all messages is ``content``, the text of the reasoning (or else its summary) ``reasoning``, function and
    custom calls are ``tool_calls``. Where that is not all, or not in that order, the items as they came, without their
    logprobs, are ``extra["output"]``: built-in tools, annotations, encrypted reasoning, items of an unknown type, ....
    """
    known = [item for item in items if isinstance(item, dict)]
    calls = tuple(_call(item) for item in known if _kind(item) in _CALLS)
    texts = [_text(part, "text") for part in parts_of(known) if part.get("type") == "output_text"]
    refusals = [_text(part, "refusal") for part in parts_of(known) if part.get("type") == "refusal"]
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


def parts_of(items: list[Any]) -> Iterator[dict[str, Any]]:
    """The content parts of all messages, in order."""
    for item in items:
        if isinstance(item, dict) and item.get("type") == "message":
            yield from _objects(item.get("content"))


def sampled(items: list[Any]) -> int:
    """How many of the items hold tokens of the model's: all but the outputs of tools."""
    kinds = [_kind(item) for item in items if isinstance(item, dict)]
    return sum(not kind.endswith("_output") for kind in kinds)


def _call(item: dict[str, Any]) -> ToolCall:
    kind, field = _CALLS[item["type"]]
    taken = {"type", "call_id", "name", field, "id"}
    extra = {name: value for name, value in item.items() if value is not None and name not in taken}
    if item.get("id") is not None:
        # An item has an id of its own, which is not the one that the tool's output answers to.
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
    """The model's own reasoning; where only a summary of it is shown, that."""
    found = [item for item in items if item.get("type") == "reasoning"]
    for field, between in (("content", ""), ("summary", "\n\n")):
        texts = [between.join(_text(part, "text") for part in _objects(item.get(field))) for item in found]
        if any(texts):
            return "\n\n".join(filter(None, texts))
    return ""


def _is_plain(items: list[Any]) -> bool:
    """Whether a completion's own fields tell it all: one reasoning, then one message, then calls."""
    kinds = [_kind(item) if isinstance(item, dict) else "" for item in items]
    order = [("reasoning", "message", *_CALLS).index(kind) if kind in _PLAIN else -1 for kind in kinds]
    if order != sorted(order) or -1 in order or kinds.count("reasoning") > 1 or kinds.count("message") > 1:
        return False
    return all(_PLAIN[kind](item) for kind, item in zip(kinds, items, strict=True))


def _is_plain_message(item: dict[str, Any]) -> bool:
    content = item.get("content")
    if _beyond(item, _MESSAGE_FIELDS) or not (content is None or isinstance(content, list)):
        return False
    parts = content or []
    kinds = {"output_text": _TEXT_FIELDS, "refusal": _REFUSAL_FIELDS}
    return all(isinstance(p, dict) and not _beyond(p, kinds.get(_kind(p), _NONE)) for p in parts)


def _is_plain_reasoning(item: dict[str, Any]) -> bool:
    parts = item.get("content")
    if _beyond(item, _REASONING_FIELDS) or not isinstance(parts, list) or not parts:
        return False
    return all(isinstance(part, dict) and not _beyond(part, {"type", "text"}) for part in parts)


def _is_plain_call(item: dict[str, Any]) -> bool:
    texts = ("call_id", "name", _CALLS[item["type"]][1])
    return all(item.get(name) is None or isinstance(item[name], str) for name in texts)


_PLAIN = {
    "message": _is_plain_message,
    "reasoning": _is_plain_reasoning,
    "function_call": _is_plain_call,
    "custom_tool_call": _is_plain_call,
}


def _beyond(item: dict[str, Any], fields: frozenset[str] | set[str]) -> bool:
    """Whether an object says anything beyond these fields: null and empty lists do not."""
    return any(name not in fields and value is not None and value != [] for name, value in item.items())


def _without_logprobs(item: Any) -> Any:
    # The logprobs of a step have a place of their own, and are large.
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
