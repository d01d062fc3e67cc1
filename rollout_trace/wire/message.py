"""OpenAI's messages: merging the deltas of a stream, and the completion that a message makes."""

from __future__ import annotations

import json
from typing import Any

from rollout_trace.data.model import Completion, ToolCall, new_completion

# Servers repeat these in every delta: concatenated, the role would become "assistantassistant".
_KEPT_ONCE = frozenset({"role", "id", "type", "index"})


class MessageMerger:
    """Merges the deltas of one choice into the message of the unstreamed answer."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._call_at: dict[int, dict[str, Any]] = {}

    def add(self, delta: dict[str, Any]) -> None:
        """Merges the next delta. Strings are concatenated, lists extended, objects merged; nulls ignored."""
        for name, value in delta.items():
            if value is None:
                continue
            if name == "tool_calls" and isinstance(value, list):
                for fragment in value:
                    self._add_call(fragment)
            elif name == "function_call":
                _merge_function(self._fields, name, value)
            elif isinstance(value, str) and name not in _KEPT_ONCE and name not in self._fields:
                self._texts.setdefault(name, []).append(value)
            else:
                if name in self._texts:
                    # Text so far, now something else (a list of parts): the text stays in front.
                    _merge(self._fields, name, "".join(self._texts.pop(name)))
                _merge(self._fields, name, value)

    def message(self) -> dict[str, Any]:
        """The whole message so far."""
        message = {**self._fields, **{name: "".join(parts) for name, parts in self._texts.items()}}
        if self._calls:
            numbered = all(isinstance(call.get("index"), int) for call in self._calls)
            message["tool_calls"] = sorted(self._calls, key=lambda call: call["index"]) if numbered else self._calls
        return message

    def _add_call(self, fragment: Any) -> None:
        if not isinstance(fragment, dict):
            return
        call = self._call_for(fragment)
        for name, value in fragment.items():
            if name == "function":
                _merge_function(call, name, value)
            elif value is not None:
                _merge(call, name, value)

    def _call_for(self, fragment: dict[str, Any]) -> dict[str, Any]:
        """The call a fragment belongs to: by index, else by id, else the last one begun.

        Servers send the index as null, leave it out, or give 0 to every call; then a new id with a name begins a new
        call. A new id without a name does not: some servers send another one with every fragment. Ids too are left
        out, or are the same for all: then another name begins a call, and so does a whole object after a whole one.
        """
        index, call_id = fragment.get("index"), fragment.get("id")
        same_id = next((known for known in reversed(self._calls) if call_id and known.get("id") == call_id), None)
        if isinstance(index, int):
            call = self._call_at.get(index)
            if call is not None and call_id and call.get("id") not in (None, "", call_id) and _begins_call(fragment):
                call = same_id
        elif same_id is not None:
            call = same_id
        else:
            call = None if _begins_call(fragment) else next(reversed(self._calls), None)
        if call is None or _is_another(call, fragment):
            call = {}
            self._calls.append(call)
        if isinstance(index, int):
            self._call_at[index] = call
        return call


def _begins_call(fragment: dict[str, Any]) -> bool:
    function = fragment.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


def _is_another(call: dict[str, Any], fragment: dict[str, Any]) -> bool:
    """Whether a fragment begins a call, although its index or its id is that of one whose arguments have come."""
    before, now = call.get("function"), fragment.get("function")
    if not (isinstance(before, dict) and isinstance(now, dict) and before.get("arguments") and now.get("name")):
        return False
    other = bool(before.get("name")) and before["name"] != now["name"]
    # The fragment first: it is short, and what has come so far may be long.
    return other or (_is_object(now.get("arguments")) and _is_object(before["arguments"]))


def _is_object(arguments: Any) -> bool:
    """Whether arguments are a whole JSON object."""
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    text = arguments.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _merge_function(into: dict[str, Any], place: str, fragment: Any) -> None:
    function = into.setdefault(place, {})
    if not isinstance(function, dict) or not isinstance(fragment, dict):
        if fragment is not None:
            _merge(into, place, fragment)
        return
    for name, value in fragment.items():
        # A name that comes again, whole or with later arguments, repeats the first: appended, it would be doubled.
        repeated = name == "name" and (function.get("arguments") or value == function.get("name"))
        if value is not None and not repeated:
            _merge(function, name, value)


def _merge(into: dict[str, Any], name: str, value: Any) -> None:
    old = into.get(name)
    if name in _KEPT_ONCE and old:
        return
    if isinstance(old, str) and isinstance(value, str):
        into[name] = old + value
    elif isinstance(old, list):
        _extend(old, value)
    elif isinstance(old, str) and isinstance(value, list):
        into[name] = [_text_part(old), *value] if old else value
    elif isinstance(old, dict) and isinstance(value, dict):
        for key, item in value.items():
            if item is not None:
                _merge(old, key, item)
    else:
        into[name] = value


def _extend(parts: list[Any], value: Any) -> None:
    if isinstance(value, list):
        parts.extend(value)
    elif parts and isinstance(parts[-1], dict) and parts[-1].get("type") == "text" and isinstance(value, str):
        parts[-1] = _text_part(str(parts[-1].get("text") or "") + value)
    else:
        parts.append(_text_part(value) if isinstance(value, str) else value)


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def completion_of(message: dict[str, Any]) -> Completion:
    """The completion that a message makes. Other fields go to ``extra``; nulls are left out."""
    rest = {name: value for name, value in message.items() if value is not None}
    role, refusal = _text(rest, "role"), _text(rest, "refusal")
    reasoning = _text(rest, "reasoning")
    if not reasoning or rest.get("reasoning_content") in ("", reasoning):
        # Gateways fill one of both names, or both, and the other with an empty text.
        reasoning = _text(rest, "reasoning_content") or reasoning
    calls = _tool_calls(rest)
    content = rest.pop("content", None)
    return completion_from(
        content if content is None or isinstance(content, (str, list)) else str(content),
        reasoning,
        refusal,
        role=role or "assistant",
        tool_calls=calls,
        extra=rest or None,
    )


def completion_from(
    content: str | list[Any] | None,
    reasoning: str | None,
    refusal: str | None,
    *,
    role: str = "assistant",
    tool_calls: tuple[ToolCall, ...] = (),
    extra: dict[str, Any] | None = None,
) -> Completion:
    """The completion of these parts. An empty text beside others is None, and so is one that is not content."""
    # Engines send "" or null here, and in a stream both look alike: either means that there is no text.
    if not content and (tool_calls or reasoning or refusal):
        content = None
    return new_completion(
        role=role,
        content=content,
        reasoning=reasoning or None,
        tool_calls=tool_calls,
        refusal=refusal or None,
        extra=extra,
    )


def _text(message: dict[str, Any], name: str) -> str | None:
    """Pops a string field; a value of another type stays, and None is returned."""
    return message.pop(name) if isinstance(message.get(name), str) else None


def _tool_calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return ()
    del message["tool_calls"]
    return tuple(_tool_call(call) for call in calls)


def _tool_call(call: dict[str, Any]) -> ToolCall:
    rest = {name: value for name, value in call.items() if value is not None and name != "index"}
    call_id, kind = _text(rest, "id"), _text(rest, "type")
    inner = rest.pop("function", None) if kind in (None, "function") else rest.pop("custom", None)
    inner = dict(inner) if isinstance(inner, dict) else {}
    name = _text(inner, "name")
    arguments = inner.pop("arguments", inner.pop("input", None))
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    leftover = {key: value for key, value in inner.items() if value is not None}
    return ToolCall(
        id=call_id, name=name, arguments=arguments, type=kind or "function", extra={**rest, **leftover} or None
    )
