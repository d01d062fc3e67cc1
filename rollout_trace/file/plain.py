"""Any value of a user's as JSON: what JSON cannot hold is written as text, so that no trajectory is lost for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import Any

import orjson

from rollout_trace import guard
from rollout_trace.data.user_values import DEEPEST, held, json_key, safe_repr

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z


def dumps(value: Any, options: int = 0) -> bytes:
    """JSON of a value. The first that JSON cannot hold is warned of; it is written as its ``repr``."""
    try:
        return orjson.dumps(value, option=OPTIONS | options)
    except TypeError:
        return orjson.dumps(plain(value), option=OPTIONS | options)


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """The value with everything replaced that the encoder refuses. ``above``: the ids of the objects it lies in."""
    if value is None or isinstance(value, (bool, float, orjson.Fragment)):
        return value
    if isinstance(value, str):
        return value if _is_utf8(value) else orjson.Fragment(_quoted(value))
    if isinstance(value, int):
        return _whole(value)
    if id(value) in above or len(above) > DEEPEST:
        return _as_text(value)
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return _object(value, above)
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview, range)):
        return [plain(item, above) for item in value]
    return _other(value, above)


def _object(value: Mapping[Any, Any], above: tuple[int, ...]) -> Any:
    items: dict[str, Any] = {}
    for key, item in value.items():
        items[_free(json_key(key), key, items)] = plain(item, above)
    if all(map(_is_utf8, items)):
        return items
    parts = (_quoted(key) + b":" + orjson.dumps(item, option=OPTIONS) for key, item in items.items())
    return orjson.Fragment(b"{" + b",".join(parts) + b"}")


def _free(text: str, key: Any, taken: Mapping[str, Any]) -> str:
    """The key's text; where another key has it, one that says the type too: nothing is lost."""
    if text not in taken:
        return text
    guard.warn_once(
        "same-keys", f"two keys of a mapping are both {text!r} in a file: the second is written with its type."
    )
    marked = f"{text} ({type(key).__name__})"
    while marked in taken:
        marked += "'"
    return marked


def _whole(value: int) -> Any:
    if -(2**63) <= value < 2**63:
        return value
    try:
        return orjson.Fragment(str(int(value)).encode())
    except ValueError:  # More digits than Python turns into text.
        return hex(value)


def _other(value: Any, above: tuple[int, ...]) -> Any:
    """Arrays and numbers of numpy or torch give themselves as lists, objects what they hold; the rest is text."""
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        if getattr(value, "dtype", None) in ("int32", "float32") and value.flags.c_contiguous:
            return value
        return plain(tolist(), above)
    try:
        return orjson.Fragment(orjson.dumps(value, option=OPTIONS))
    except TypeError:
        inside = held(value)
        return _as_text(value) if inside is value else plain(inside, above)


def _as_text(value: Any) -> Any:
    guard.warn_once(
        "not-json",
        f"a value of type {type(value).__name__} has no form in JSON: it is written to the file as its repr(). Give "
        "metadata, task data and tool results as dicts, lists, strings and numbers.",
    )
    return plain(safe_repr(value))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quoted(text: str) -> bytes:
    """A JSON string with lone surrogates escaped (a model can be cut off inside a character), which orjson refuses."""
    return json.dumps(text).encode()
