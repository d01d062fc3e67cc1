"""OpenAI's messages: merging the deltas of a stream, and the completion that a message makes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

from rollout_trace.data.model import Completion, ToolCall, new_completion

# Servers repeat these in every delta: concatenated, the role would become "assistantassistant".
_KEPT_ONCE = frozenset({"role", "id", "type", "index"})
_THOUGHTS = frozenset({"thinking", "reasoning"})
"""Types of the parts of a content that are reasoning: Mistral's and Cohere's, Databricks'."""
_IN_FRAGMENTS = frozenset({"content", "thinking", "summary", "reasoning_details", "thinking_blocks"})
"""Lists whose parts are streamed in fragments: of contents, and inside of their thoughts; OpenRouter's; LiteLLM's."""
_GROWING = frozenset({"text", "summary", "thinking"})
"""Fields of a part that its fragments continue; of the others the later value holds."""


def merged_deltas(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message of the unstreamed answer. Strings are concatenated, lists extended, objects merged; nulls ignored."""
    return _Merger(deltas).message()


class _Merger:
    def __init__(self, deltas: Iterable[dict[str, Any]]) -> None:
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._call_at: dict[int, dict[str, Any]] = {}
        texts = self._texts
        for name, value in chain.from_iterable([delta.items() for delta in deltas]):
            if value is None:
                continue
            if name in texts and isinstance(value, str):
                texts[name].append(value)
            elif name == "tool_calls" and isinstance(value, list):
                for at, fragment in enumerate(value):
                    # Several at once that have no index are told by their order.
                    self._add_call(fragment, at if len(value) > 1 else None)
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

    def _add_call(self, fragment: Any, place: int | None) -> None:
        if not isinstance(fragment, dict):
            return
        call = self._call_for(fragment, place)
        for name, value in fragment.items():
            if name == "function":
                _merge_function(call, name, value)
            elif value is not None:
                _merge(call, name, value)

    def _call_for(self, fragment: dict[str, Any], place: int | None) -> dict[str, Any]:
        """The call a fragment belongs to: by index or place, else by id, else the last one begun.

        Servers send the index as null, leave it out, or give 0 to every call; then a new id with a name begins a new
        call. A new id without a name does not: some servers send another one with every fragment. Ids too are left
        out, or are the same for all: then another name begins a call, and so does a whole object after a whole one.
        Or a call's first fragment has the index of the call before it: arguments alone, at an index of their own, are
        the rest of the last call.
        """
        index, call_id = fragment.get("index"), fragment.get("id")
        same_id = next((known for known in reversed(self._calls) if call_id and known.get("id") == call_id), None)
        if not isinstance(index, int) and same_id is None:
            index = place
        if isinstance(index, int):
            call = self._call_at.get(index)
            if call is not None and call_id and call.get("id") not in (None, "", call_id) and _begins_call(fragment):
                call = same_id
            if call is None and not call_id and not _begins_call(fragment):
                call = self._unfinished()
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

    def _unfinished(self) -> dict[str, Any] | None:
        """The last call, if its arguments are to come."""
        last = self._calls[-1] if self._calls else {}
        function = last.get("function")
        is_open = (
            isinstance(function, dict) and bool(function.get("name")) and not _is_object(function.get("arguments"))
        )
        return last if is_open else None


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
        said = function.get("name") if name == "name" else None
        repeated = said and (function.get("arguments") or value == said)
        if value is not None and not repeated:
            _merge(function, name, value)


def _merge(into: dict[str, Any], name: str, value: Any) -> None:
    old = into.get(name)
    if name in _KEPT_ONCE and old:
        return
    if isinstance(old, str) and isinstance(value, str):
        into[name] = old + value
    elif isinstance(old, list) and isinstance(value, list) and name in _IN_FRAGMENTS:
        _join(old, value, texts_go_on=name != "content")
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


def _join(parts: list[Any], fragments: list[Any], *, texts_go_on: bool) -> None:
    """Adds the parts of a delta. What has the index of a part before it, or goes on with the last one, is a fragment.

    Encrypted parts come whole.
    """
    for at, fragment in enumerate(fragments):
        kind = fragment.get("type") if isinstance(fragment, dict) else None
        index = fragment.get("index") if isinstance(fragment, dict) else None
        # Two parts of one delta without indexes are two; and so are two texts of which nothing says that they are one.
        is_next = at == 0 and (kind != "text" or texts_go_on or any(map(_is_thought, parts)))
        before = reversed(parts) if index is not None else parts[-1:] if is_next else ()
        part = next((one for one in before if isinstance(one, dict) and one.get("index") == index), None)
        if part is None or not isinstance(kind, str) or not _goes_on(part, fragment):
            parts.append(fragment)
            continue
        for name, value in fragment.items():
            if name in _GROWING and part.get(name):
                _merge(part, name, value)
            elif value not in (None, "") and (name not in _KEPT_ONCE or not part.get(name)):
                part[name] = value


def _goes_on(part: dict[str, Any], fragment: dict[str, Any]) -> bool:
    is_same = part.get("type") == fragment["type"] and part.get("id") in (None, fragment.get("id"))
    is_open = fragment.get("index") is not None or not (part.get("signature") or part.get("closed"))
    return is_same and is_open and any(part.get(name) or fragment.get(name) for name in _GROWING)


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


_TOKEN_FIELDS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
"""What NeMo-Gym's model server adds to a message: places.py names them, they become arrays of the step."""


def completion_of(message: dict[str, Any]) -> Completion:
    """The completion that a message makes. Other fields go to ``extra``; nulls are left out."""
    rest = {name: value for name, value in message.items() if value is not None}
    # Most messages are a text and nothing else.
    content = rest.get("content")
    if isinstance(content, str) and (len(rest) == 1 or (len(rest) == 2 and isinstance(rest.get("role"), str))):
        return new_completion(role=rest.get("role") or "assistant", content=content)
    role = _text(rest, "role")
    refusal = reasoning = None
    calls: tuple[ToolCall, ...] = ()
    if len(rest) > 1 or "content" not in rest:
        refusal, reasoning = _text(rest, "refusal"), _text(rest, "reasoning")
        if not reasoning or rest.get("reasoning_content") in ("", reasoning):
            # Gateways fill one of both names, or both, and the other with an empty text.
            reasoning = _text(rest, "reasoning_content") or reasoning
        calls = _tool_calls(rest)
    content = rest.pop("content", None)
    content = content if content is None or isinstance(content, (str, list)) else str(content)
    if isinstance(content, list) and any(_is_thought(part) for part in content):
        thoughts, said = _divided(content)
        reasoning = reasoning or thoughts
        if not _is_lossless(content):
            rest["content"] = content
        content = said
    # Engines send "" or null here, and in a stream both look alike: beside others either means that there is no text.
    if not content and (calls or reasoning or refusal):
        content = None
    return new_completion(
        role=role or "assistant",
        content=content,
        reasoning=reasoning or None,
        tool_calls=calls,
        refusal=refusal or None,
        extra={name: value for name, value in rest.items() if name not in _TOKEN_FIELDS} or None,
    )


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _THOUGHTS


def _divided(parts: list[Any]) -> tuple[str, str | list[Any] | None]:
    """The text of the thoughts in a content, and the rest of it: a text where it is of plain texts alone."""
    others = [part for part in parts if not _is_thought(part)]
    plain = [part["text"] for part in others if _is_plain(part)]
    thoughts = "".join(_text_inside(part) for part in parts if _is_thought(part))
    return thoughts, "".join(plain) if len(plain) == len(others) else others


def _text_inside(part: dict[str, Any]) -> str:
    """The text of a thought: as such, or in a list of texts."""
    value = next((part[name] for name in ("thinking", "text", "summary") if part.get(name)), None)
    texts = value if isinstance(value, list) else [{"text": value}]
    return "".join(one["text"] for one in texts if isinstance(one, dict) and isinstance(one.get("text"), str))


def _is_plain(part: Any) -> bool:
    """Whether a part is a text and nothing else."""
    return isinstance(part, dict) and part.keys() == {"type", "text"} and isinstance(part["text"], str)


def _is_lossless(parts: list[Any]) -> bool:
    """Whether a content is one plain thought and perhaps a plain text behind it."""
    first, *others = parts
    inner = first.get("thinking") if isinstance(first, dict) and first.keys() == {"type", "thinking"} else None
    is_plain = isinstance(inner, str) or (isinstance(inner, list) and all(map(_is_plain, inner)))
    return is_plain and len(others) < 2 and all(map(_is_plain, others))


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
