"""Typed JSON decoding that drops fields of the wrong type instead of failing, and reports the first one."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that it cannot decode."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


class LenientDecoder(Generic[T]):
    """A JSON decoder for one type that drops object fields of the wrong type."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> tuple[T, str | None]:
        """The value, and msgspec's message about the first field that was dropped; None where none was.

        Raises:
            ValueError: the bytes are not JSON, or not an object.
        """
        try:
            return self._decoder.decode(data), None
        except DECODE_ERRORS:
            return self._repair(loads(data))

    def _repair(self, value: Any) -> tuple[T, str | None]:
        problem = None
        # msgspec reports one wrong field at a time.
        for repairs in count():
            try:
                return msgspec.convert(value, self._kind), problem
            except msgspec.ValidationError as error:
                problem = problem or str(error)
                if not _remove(value, str(error), everywhere=repairs >= _SINGLE_REPAIRS):
                    raise ValueError(str(error)) from None
        raise AssertionError("unreachable")


def loads(data: bytes) -> Any:
    """Any JSON value, decoded as tolerantly as in the SDKs: ``NaN`` and lone surrogates are accepted.

    Raises:
        ValueError: the bytes are not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except DECODE_ERRORS:
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def text_of(value: Any) -> str | None:
    """A name or an id as a text; of a number its digits, as some servers send ids as numbers."""
    return value if value is None or isinstance(value, str) else str(value)


_SINGLE_REPAIRS = 32
"""Fields dropped one at a time. Each costs another conversion of the whole value; later ones go with their siblings."""


def _remove(value: Any, message: str, *, everywhere: bool) -> bool:
    """Deletes the innermost object field on the path that ends a msgspec message; False where there is none.

    ``everywhere``: also from the objects beside it in the same list.
    """
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
