"""Typed decoding that leaves out what has the wrong type instead of failing, and says what it left out."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it does not take."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


class Typed(Generic[T]):
    """A decoder for one type."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> tuple[T, str | None]:
        """The value, and a sentence about the first field that was left out because of its type.

        Raises:
            ValueError: the bytes are not JSON, or not an object.
        """
        try:
            return self._decoder.decode(data), None
        except UNREADABLE:
            return self._repair(loads(data))

    def _repair(self, value: Any) -> tuple[T, str | None]:
        problem = None
        for repairs in count():
            try:
                return msgspec.convert(value, self._kind), problem
            except msgspec.ValidationError as error:
                problem = problem or str(error)
                if not _remove(value, str(error), everywhere=repairs >= _FEW):
                    raise ValueError(str(error)) from None
        raise AssertionError("unreachable")


def loads(data: bytes) -> Any:
    """Any JSON value, as tolerant as the SDKs' own reading: ``NaN`` and lone surrogates are let through.

    Raises:
        ValueError: the bytes are not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except UNREADABLE:
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def text_of(value: Any) -> str | None:
    """A name or an id: a server that sends a number means its digits."""
    return value if value is None or isinstance(value, str) else str(value)


_FEW = 32
"""Fields that are repaired one by one. Each costs a reading of the whole value."""


def _remove(value: Any, message: str, *, everywhere: bool) -> bool:
    """Deletes the innermost object field on the path at the end of a msgspec message, if told from its siblings too."""
    _, _, path = message.rpartition("`$")
    holder, key = None, ""
    siblings: list[Any] = []
    listed: list[Any] = []
    for name, position in _STEP.findall(path.rstrip("`")):
        if name:
            if not isinstance(value, dict) or name not in value:
                break
            holder, key, siblings, listed = value, name, listed, []
            value = value[name]
        elif isinstance(value, list) and int(position) < len(value):
            listed, value = value, value[int(position)]
        else:
            break
    if holder is None:
        return False
    del holder[key]
    for sibling in siblings if everywhere else ():
        if isinstance(sibling, dict):
            sibling.pop(key, None)
    return True
