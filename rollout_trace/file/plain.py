"""Values as a line has them: any value as JSON, times, durations, bytes.

What JSON cannot hold is written as text, so that no value prevents a trajectory from being written.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timezone
from typing import Any

import msgspec
import orjson

from rollout_trace import guard
from rollout_trace.data.user_values import MAX_DEPTH, safe_repr, to_builtin, unique_key

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z


def dumps(value: Any, options: int = 0) -> bytes:
    """JSON of a value. Values without a form in JSON are written as their ``repr``, with one warning per process."""
    try:
        # Most values need no more, and `plain` is much slower.
        return orjson.dumps(value, option=OPTIONS | options)
    except TypeError:
        return orjson.dumps(plain(value), option=OPTIONS | options)


def loads(data: Any) -> Any:
    """Any value of JSON, with the lone surrogates that models, tools and errors do have. Raises ValueError: none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return json.loads(bytes(data))


def plain(value: Any, ancestors: tuple[int, ...] = ()) -> Any:
    """The value with every part replaced that orjson refuses. ``ancestors``: ``id`` of each object that contains it."""
    if value is None or isinstance(value, (bool, float, orjson.Fragment)):
        return value
    if isinstance(value, str):
        return value if _is_utf8(value) else orjson.Fragment(_json_string(value))
    if isinstance(value, int):
        return _integer(value)
    if id(value) in ancestors or len(ancestors) > MAX_DEPTH:
        return _as_text(value)
    ancestors = (*ancestors, id(value))
    if isinstance(value, Mapping):
        return _object(value, ancestors)
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview, range)):
        return [plain(item, ancestors) for item in value]
    return _foreign(value, ancestors)


def _object(value: Mapping[Any, Any], ancestors: tuple[int, ...]) -> Any:
    items: dict[str, Any] = {}
    for key, item in value.items():
        items[unique_key(key, items)] = plain(item, ancestors)
    if all(map(_is_utf8, items)):
        return items
    parts = (_json_string(key) + b":" + orjson.dumps(item, option=OPTIONS) for key, item in items.items())
    return orjson.Fragment(b"{" + b",".join(parts) + b"}")


def _integer(value: int) -> Any:
    if -(2**63) <= value < 2**63:
        return value
    try:
        return orjson.Fragment(str(int(value)).encode())
    except ValueError:  # More digits than Python converts to decimal (sys.set_int_max_str_digits).
        return hex(value)


def _foreign(value: Any, ancestors: tuple[int, ...]) -> Any:
    """Arrays and scalars of numpy or torch as lists and numbers, objects by ``to_builtin``, the rest as text."""
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        if getattr(value, "dtype", None) in ("int32", "float32") and value.flags.c_contiguous:
            return value  # Written by orjson itself.
        return plain(tolist(), ancestors)
    try:
        return orjson.Fragment(orjson.dumps(value, option=OPTIONS))
    except TypeError:
        inside = to_builtin(value)
        return _as_text(value) if inside is value else plain(inside, ancestors)


def _as_text(value: Any) -> Any:
    guard.warn_once(
        "not-json",
        f"a value of type {type(value).__name__} cannot be written as JSON. The file gets its repr(). Give "
        "metadata, task data and tool results as dicts, lists, strings and numbers.",
    )
    return plain(safe_repr(value))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_string(text: str) -> bytes:
    """A JSON string with lone surrogates escaped, which orjson refuses: a completion may be cut inside one."""
    return json.dumps(text).encode()


# Times


def time_text(value: datetime) -> str | datetime:
    """RFC 3339 in UTC with microseconds; or the time itself, where orjson writes it so."""
    if value.tzinfo is None:
        guard.warn_once("naive-time", f"a time has no time zone ({value}); it is read as UTC.")
        value = value.replace(tzinfo=timezone.utc)
    if value.tzinfo is timezone.utc and value.microsecond:
        return value  # orjson writes this case in the same form, ten times as fast.
    return value.astimezone(timezone.utc).isoformat(timespec="microseconds")[:-6] + "Z"


def milliseconds(seconds: float) -> float:
    """A duration as it is written, to the nanosecond."""
    return round(seconds * 1e3, 6)


def from_milliseconds(value: float | None) -> float | None:
    """Seconds of a duration that was read."""
    return None if value is None else round(value / 1e3, 9)


# Bytes


def body_record(data: bytes) -> dict[str, str]:
    """The record of some bytes."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
