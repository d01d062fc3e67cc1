"""Changes the texts in JSON values and in the parts of records. What does not change stays the same object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeAlias

from rollout_trace.data.extras import ExtraIssue, PolicySpan
from rollout_trace.data.model import Attempt, Completion, Cost, ErrorInfo, Task, TokenIssue, ToolCall, ToolRun, Usage
from rollout_trace.data.user_values import MAX_DEPTH, json_key, safe_repr, to_builtin

Change: TypeAlias = Callable[[str, str], str]
"""From a text and its place (``messages[2].content``) to the text that is to stand there."""


def change_value(value: Any, place: str, change: Change, *, numbers: bool = False, depth: int = 0) -> Any:
    """The value with every text in it changed, keys of objects included; the value itself where none does.

    What JSON has no form for (Pydantic objects, dataclasses, paths, ...) is taken as what a file would hold: its
    fields, or its ``repr``.

    Args:
        value: any value.
        place: where it stands; the places of its parts begin with it. That of a key ends with `` (key)``.
        change: called for each text.
        numbers: whole numbers are changed too, where their digits as a text would be.
        depth: levels of nesting that contain it.
    """
    if isinstance(value, str):
        return _text(value, place, change)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return _number(value, place, change) if numbers else value
    if depth > MAX_DEPTH:
        # Also a value that contains itself. A file holds its repr.
        return _as_repr(value, place, change)
    if isinstance(value, Mapping):
        return _object(value, place, change, numbers, depth + 1)
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview, range)):
        return _list(value, place, change, numbers, depth + 1)
    return _foreign(value, place, change, numbers, depth + 1)


def _text(value: str, place: str, change: Change) -> str:
    # Without its subclass: an enum's member is written as its text, too.
    text = value if type(value) is str else str.__str__(value)
    changed = change(text, place)
    return value if changed == text else changed


def _number(value: int, place: str, change: Change) -> Any:
    try:
        text = str(int(value))
    except ValueError:  # More digits than Python converts (sys.set_int_max_str_digits). A file holds them in hex.
        text = hex(value)
    changed = change(text, place)
    return value if changed == text else changed


def _object(value: Mapping[Any, Any], place: str, change: Change, numbers: bool, depth: int) -> Any:
    items: dict[Any, Any] = {}
    is_same = True
    for key, item in value.items():
        text = json_key(key)
        changed_key = _text(text, f"{place}.{text} (key)", change)
        changed = change_value(item, f"{place}.{text}", change, numbers=numbers, depth=depth)
        if changed_key is not text:
            is_same, key = False, _free_key(changed_key, items)
        is_same = is_same and changed is item
        items[key] = changed
    return value if is_same else items


def _free_key(key: str, taken: Mapping[Any, Any]) -> str:
    """The key, numbered where another item has it: two that become one text must not cost an item."""
    found, number = key, 2
    while found in taken:
        found, number = f"{key} ({number})", number + 1
    return found


def _list(value: Any, place: str, change: Change, numbers: bool, depth: int) -> Any:
    changed = [
        change_value(item, f"{place}[{at}]", change, numbers=numbers, depth=depth) for at, item in enumerate(value)
    ]
    return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed


def _foreign(value: Any, place: str, change: Change, numbers: bool, depth: int) -> Any:
    inside = to_builtin(value)
    if inside is value and (tolist := getattr(value, "tolist", None)) is not None:
        if getattr(getattr(value, "dtype", None), "kind", "O") in "biufc":
            return value
        inside = tolist()
    if inside is value:
        return _as_repr(value, place, change)
    changed = change_value(inside, place, change, numbers=numbers, depth=depth)
    return value if changed is inside else changed


def _as_repr(value: Any, place: str, change: Change) -> Any:
    text = safe_repr(value)
    changed = change(text, place)
    return value if changed == text else changed


RULED: Mapping[type, frozenset[str]] = {
    Completion: frozenset({"content", "reasoning", "refusal", "extra", "tool_calls"}),
    ToolCall: frozenset({"name", "arguments", "extra"}),
    ErrorInfo: frozenset({"type", "message", "code"}),
    TokenIssue: frozenset({"message"}),
    ExtraIssue: frozenset({"message"}),
    Attempt: frozenset({"error", "request_id"}),
    Usage: frozenset({"extra"}),
    Cost: frozenset(),
    Task: frozenset({"data"}),
    ToolRun: frozenset({"arguments", "result", "error"}),
}
"""By record: the fields that a user's rules change. Others join records: ids, roles, codes. Keys are cut there, too."""

_IN_TUPLES = {*RULED, PolicySpan}


def change_record(value: Any, place: str, change: Change, *, everywhere: bool = False, numbers: bool = False) -> Any:
    """``change_value`` of a field of a record: also of records in it, and tuples of them, which stay such.

    Args:
        value: any value.
        place: where it stands.
        change: called for each text.
        everywhere: every field of a record is changed, not only those of ``RULED``.
        numbers: as for ``change_value``; not those of errors.
    """
    if isinstance(value, tuple) and value and type(value[0]) in _IN_TUPLES:
        parts = [
            change_record(one, f"{place}[{at}]", change, everywhere=everywhere, numbers=numbers)
            for at, one in enumerate(value)
        ]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else tuple(parts)
    if type(value) is PolicySpan:
        version = change_value(value.version, f"{place}.version", change)
        return value if version is value.version else value._replace(version=version)
    ruled = RULED.get(type(value))
    if ruled is None:
        return change_value(value, place, change, numbers=numbers)
    numbers = numbers and not isinstance(value, ErrorInfo)
    changed = {}
    for name in (item.name for item in fields(value)) if everywhere else ruled:
        old = getattr(value, name)
        if everywhere and isinstance(old, datetime):
            continue
        new = change_record(old, f"{place}.{name}", change, everywhere=everywhere, numbers=numbers)
        if new is not old:
            changed[name] = new
    return replace(value, **changed) if changed else value
