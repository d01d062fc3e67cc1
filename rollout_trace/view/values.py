"""Values as JSON holds them, and the JSON of what is shown."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec

from rollout_trace.file.plain import dumps

_MOST_INDENTED = 2_000_000
"""Bytes."""


def plain(value: Any) -> Any:
    """A value as JSON can hold it: texts, numbers, lists and objects. What JSON cannot hold is its ``repr``."""
    if value is None:
        return None
    data = dumps(value)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # Half a surrogate pair, which JSON can hold and msgspec refuses; or lists in lists, deeper than it reads.
        return json.loads(data)


def text_of(value: Any) -> str:
    """A text as it is, another value as JSON; None as an empty text."""
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def json_text(value: Any) -> str:
    """JSON of any value."""
    return dumps(value).decode()


def encode(shown: Any) -> bytes:
    """JSON of what is shown: Structs of ``view.model``, and lists and dicts of them."""
    try:
        return msgspec.json.encode(shown)
    except UnicodeEncodeError:
        return dumps(builtins(shown))


def ascii_json(shown: Any) -> str:
    """Gives the same as one line of ASCII that can be printed.

    Control characters, marks of writing direction and half surrogate pairs, which models do produce, are escapes.
    """
    return json.dumps(builtins(shown))


def builtins(shown: Any) -> Any:
    """Converts what is shown to dicts and lists, without fields that have their default."""
    return msgspec.to_builtins(shown)


def indented(data: bytes | None) -> str | None:
    """Bytes as text: JSON with a line for each value, every value written as it was, anything else as it is."""
    if data is None:
        return None
    if len(data) <= _MOST_INDENTED:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            data = msgspec.json.format(data, indent=2)
    return data.decode("utf-8", "replace")
