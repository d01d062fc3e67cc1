"""Defines when messages count as the same (``message_key``, and ``unpadded`` for answers), and what they hold.

Frameworks send an answer back in a shape of their own: without its reasoning, with ``null`` for no text, with the keys
of its arguments in another order, without white space around its text.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

_REASONING_FIELDS = ("reasoning", "reasoning_content")
_UNREAD = frozenset({"role", "content", "name", "tool_calls", *_REASONING_FIELDS, "reasoning_details", "annotations",
                     "cache_control", "item_id", "status", "signature", "index", "id",
                     "provider_specific_fields"})  # fmt: skip
"""Fields of a message that are compared by themselves, or that no prompt holds."""
_REASONING = ("thinking", "redacted_thinking", "reasoning")
_TEXTS = ("text", "input_text", "output_text", "refusal", *_REASONING)
_ITEMS = ("message", "reasoning", "function_call", "custom_tool_call", "function_call_output",
          "custom_tool_call_output", "tool_use", "tool_result")  # fmt: skip
_sorted = msgspec.json.Encoder(order="sorted", enc_hook=str).encode
_ROLES = {role: f'"{role}"'.encode() for role in ("system", "developer", "user", "assistant", "tool")}

Message = Mapping[str, Any]
AnswerKey = tuple[bytes, Hashable, bytes | None, bytes | None]
"""Role, text, calls, and all other fields that are set."""


def message_key(message: Any) -> Hashable:
    """Returns a key that two messages share if they say the same.

    Compared are role, text, reasoning, tool calls (kind, name and arguments, these by their values) and all other
    fields that are set. No text is ``None``, ``""`` or a list without parts; a text is the list of that one part. Not
    compared are the ids of an answer's calls, and what no prompt holds: annotations, signatures, marks of caches.

    An answer that was sampled may come back without its reasoning, its name and the white space around its text:
    ``answer_key`` and ``unpadded``. In all other messages, and inside of it, white space counts.
    """
    if type(message) is not dict and not isinstance(message, Mapping):
        return plain(message)
    said, role = message.get("content"), message.get("role")
    if len(message) == 2 and type(said) is str and type(role) is str and (who := _ROLES.get(role)) is not None:
        # What most are, and a key is made of each message that is new.
        return None, None, (who, said or None, None, None)
    name = message.get("name")
    return reasoning_key(message), plain(name) if name else None, answer_key(message)


def answer_key(message: Message) -> AnswerKey:
    """The key without reasoning, which frameworks may leave out, and name, which LangGraph adds to answers."""
    calls = [(_kind_of(call), name, _arguments(text)) for call, (name, text, _) in _named(message)]
    rest = {name: value for name, value in message.items() if name not in _UNREAD and _is_set(value)}
    role, said = message.get("role"), content_key(message.get("content"))
    who = (_ROLES.get(role) if type(role) is str else None) or plain(role)
    return who, said, plain(calls) if calls else None, plain(rest) if rest else None


def unpadded(key: AnswerKey) -> AnswerKey:
    """An answer's key without the white space around its text: smolagents strips answers, many do beside calls."""
    who, said, calls, rest = key
    return (who, said.strip() or None, calls, rest) if isinstance(said, str) else key


def reasoning_key(message: Message) -> Hashable:
    """The reasoning that a message holds; None for none."""
    found = next((message[name] for name in _REASONING_FIELDS if _is_set(message.get(name))), None)
    content = message.get("content")
    parts = [part for part in content if _kind_of(part) in _REASONING] if isinstance(content, (list, tuple)) else []
    return None if found is None and not parts else plain((found, parts))


def _kind_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, Mapping) else None


def _named(message: Message) -> list[tuple[Any, tuple[Any, Any, Any]]]:
    calls = message.get("tool_calls")
    return list(zip(calls, calls_in(message), strict=True)) if isinstance(calls, (list, tuple)) else []


def calls_in(message: Message) -> list[tuple[Any, Any, Any]]:
    """The tool calls of a chat message: name, arguments, id."""
    found, calls = [], message.get("tool_calls")
    for call in calls if isinstance(calls, (list, tuple)) else ():
        function = (call.get("function") or call.get("custom")) if isinstance(call, Mapping) else None
        function = function if isinstance(function, Mapping) else {}
        arguments = function.get("arguments", function.get("input"))
        found.append((function.get("name"), arguments, call.get("id") if isinstance(call, Mapping) else None))
    return found


def _is_set(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def content_key(content: Any) -> Hashable:
    """The texts of a content, or what it holds; None for none."""
    if content is None or isinstance(content, str):
        return content or None
    if not isinstance(content, (list, tuple)):
        return plain(content)
    parts = [part for part in content if _kind_of(part) not in _REASONING]
    said = tuple([plain(part) if (text := _text(part)) is None else text for part in parts])
    if len(said) == 1 and isinstance(said[0], str):
        return said[0] or None
    return said or None


def _text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    is_text = isinstance(part, Mapping) and part.get("type", "text") in ("text", "input_text", "output_text")
    return text if is_text and isinstance(text, str) else None


def has_media(items: Sequence[Any]) -> bool:
    """Whether messages or items, as they were sent, hold more than text: they, or a result in them."""
    # Nearly all are a role and a text.
    others = [one for one in items if not (
        type(one) is dict and len(one) == 2 and "role" in one and type(one.get("content")) is str)]  # fmt: skip
    return bool(others) and any(map(_is_media, others))


def _is_media(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    if type(item.get("content")) is str and "role" in item and "output" not in item:
        return False
    if "role" not in item and item.get("type", "message") not in _ITEMS:
        return True
    held = [item.get("content"), item.get("output")]
    parts = [part for one in held if isinstance(one, (list, tuple)) for part in one]
    return any((isinstance(part, Mapping) and part.get("type", "text") not in (*_TEXTS, *_ITEMS)) or _is_nested(part)
               for part in parts)  # fmt: skip


def _is_nested(part: Any) -> bool:
    """Whether a part that is a result of a tool holds more than text."""
    return isinstance(part, Mapping) and part.get("type") == "tool_result" and _is_media({**part, "type": "message"})


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return [msgspec.json.decode(value)]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return value


def plain(value: Any) -> bytes:
    """Returns bytes that are equal for equal values; for what has no JSON, those of its ``repr``. Never raises."""
    try:
        return _sorted(value)
    except Exception:  # Half a surrogate pair, a hundred thousand brackets, a class of the user's.
        try:
            return repr(value).encode("utf-8", "surrogatepass")
        except Exception:
            return f"{type(value)} {id(value)}".encode()


__all__ = ["AnswerKey", "Message", "answer_key", "calls_in", "content_key", "has_media", "message_key", "plain",
           "reasoning_key", "unpadded"]  # fmt: skip
