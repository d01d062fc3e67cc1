"""Whether an object of a line has a name twice, which decoders pass over: found by counting, without a second parse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_KEY = b'":'
_NUMBERS = frozenset(("segments", "arrays"))


def has_distinct_keys(line: bytes) -> bool:
    """True where no object has a name twice. False: there may be one; only a full parse with all names can say.

    A name ends with ``":``. A decoder that keeps one value of a name leaves fewer of these than the line has. Objects of
    alternatives (``top_logprobs``), as engines send them, are not looked at.
    """
    if b"\\u0022" in line:
        return False
    try:
        top = _objects.decode(line)
        return line.count(_KEY) == len(top) + sum(_keys(name, bytes(value)) for name, value in top.items())
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return False


def _keys(name: str, value: bytes) -> int:
    """The ``":`` of a field of a line, as far as its objects keep them."""
    if name in _NUMBERS:
        return sum(_members(one, ()) for one in _lists.decode(value))
    if name == "steps":
        return sum(_members(one, ("tokens",)) for one in _lists.decode(value))
    return _kept(value)


def _members(value: dict[str, msgspec.Raw], objects: Iterable[str]) -> int:
    found = len(value)
    for name, item in value.items():
        data = bytes(item)
        if name in objects and data[:1] == b"{":
            tokens = _objects.decode(data)
            found += len(tokens) + sum(bytes(one).count(_KEY) for one in tokens.values())
        else:
            found += _kept(data)
    return found


def _kept(value: bytes) -> int:
    if _KEY not in value:
        return 0
    decoded: Any = orjson.loads(value)
    return orjson.dumps(decoded).count(_KEY)
