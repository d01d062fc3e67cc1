"""Typed JSON decoding that drops fields of the wrong type instead of failing, and reports the first one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw

T = TypeVar("T")

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that it cannot decode."""

NULL = Raw(b"null")
"""Default of fields that are ``Raw``, equal to a null that was sent: msgspec has no type for ``Raw`` or None."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


class LenientDecoder(Generic[T]):
    """A JSON decoder for one type that drops object fields of the wrong type. Fields of ``Raw`` take any value."""

    def __init__(self, kind: type[T], strict: type[T] | None = None) -> None:
        """``strict``: a subtype that forbids unknown fields. An object without any is decoded as one of these, which
        shows that nothing of it was left out; others as a ``kind``."""
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._first = self._decoder if strict is None else msgspec.json.Decoder(strict)
        self._raw = _raw_places(kind)

    def decode(self, data: bytes, *, strictly: bool = True) -> tuple[T, str | None]:
        """The value, and msgspec's message about the first field that was dropped; None where none was.

        Args:
            strictly: False for an object that is expected to have unknown fields.

        Raises:
            ValueError: the bytes are not JSON, or not an object.
        """
        if strictly and self._first is not self._decoder:
            try:
                return self._first.decode(data), None
            except DECODE_ERRORS:
                pass
        try:
            return self._decoder.decode(data), None
        except DECODE_ERRORS:
            return self._repair(loads(data))

    def has_unknown(self, value: T) -> bool:
        """Whether a decoded value may lack fields of its object: with ``strict`` only."""
        return self._first is not self._decoder and type(value) is self._kind

    def _repair(self, value: Any) -> tuple[T, str | None]:
        problem = None
        value = _with_raw(value, self._raw)
        # msgspec reports one wrong field at a time.
        for repairs in count():
            try:
                return msgspec.convert(value, self._kind), problem
            except msgspec.ValidationError as error:
                problem = problem or str(error)
                if not _remove(value, str(error), everywhere=repairs >= _SINGLE_REPAIRS):
                    raise ValueError(str(error)) from None
        raise AssertionError("unreachable")


class _Items:
    """Places inside the items of a list."""

    def __init__(self, places: Any) -> None:
        self.places = places


def _raw_places(kind: Any) -> Any:
    """Where a type has ``Raw``: the type itself, the items of a list, fields of a struct by name, or None: nowhere."""
    if kind is Raw:
        return Raw
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {one.encode_name: _raw_places(one.type) for one in msgspec.structs.fields(kind)}
        return {name: places for name, places in fields.items() if places is not None} or None
    found = next((places for one in get_args(kind) if (places := _raw_places(one)) is not None), None)
    return _Items(found) if found is not None and get_origin(kind) is list else found


def _with_raw(value: Any, places: Any) -> Any:
    """A plain value with ``Raw`` where the type has it: ``convert`` takes nothing else there."""
    if places is None:
        return value
    if places is Raw:
        return raw_of(value)
    if isinstance(places, _Items) and isinstance(value, list):
        return [_with_raw(item, places.places) for item in value]
    if isinstance(places, dict) and isinstance(value, dict):
        return {name: _with_raw(item, places.get(name)) for name, item in value.items()}
    return value


def raw_of(value: Any) -> Raw:
    """The JSON of a plain value; null where it is nested too deeply."""
    try:
        return Raw(json.dumps(value).encode())
    except RecursionError:
        return NULL


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


def compact(value: Any) -> str | None:
    """The JSON of a value without white space; None where it has none."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def last(values: Sequence[Any]) -> Any:
    """The last value of a stream that says something; see ``later``."""
    for value in reversed(values):
        if value is not None and value != "":
            return value
    return None


def joined(lists: list[list[T] | None]) -> list[T] | None:
    """The lists as one; None where there are none."""
    found = [one for one in lists if one is not None]
    return found[0] if len(found) == 1 else list(chain.from_iterable(found)) if found else None


def later(before: Any, value: Any) -> Any:
    """The later of two values of a stream. Null says nothing, and neither does an empty text, which gateways send."""
    return before if value is None or value == "" else value


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
