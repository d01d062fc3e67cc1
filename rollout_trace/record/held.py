"""How many bytes the values of users and frameworks keep in memory: what waits to be written is bounded by them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

_PLAIN = frozenset({type(None), bool, int, float})
"""Types of values that take no memory worth counting."""
_SMALL = 256
"""Bytes of a text below which it is counted wherever it stands: to remember it would take as much."""


def held_bytes(values: Iterable[Any], seen: set[int]) -> int:
    """Roughly, the bytes that values occupy with what is in them: dicts, lists, texts, arrays, records.

    Of other objects only what the object itself takes: what it refers to (a client, a simulation) is seldom its own.

    Args:
        values: any values. Each must live as long as ``seen`` is used.
        seen: ``id`` of what was counted before, which is not counted again.
    """
    total, parts = 0, list(values)
    while parts:
        part = parts.pop()
        kind = type(part)
        if kind in _PLAIN:
            continue
        if kind is str and len(part) < _SMALL:
            total += sys.getsizeof(part)
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        total += _own_bytes(part)
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            parts += part
        elif not isinstance(part, (str, bytes)):
            parts += _fields_of(part)
    return total


def _own_bytes(value: Any) -> int:
    try:
        size = sys.getsizeof(value)
        # Of an array that another one holds, and of tensors, the object alone is counted by Python.
        return max(size, int(value.nbytes)) if hasattr(type(value), "nbytes") else size
    except Exception:  # Code of a user's.
        return 0


def _fields_of(value: Any) -> list[Any]:
    """What a dataclass or a Pydantic object holds; of others nothing."""
    try:
        if is_dataclass(value) and not isinstance(value, type):
            return [getattr(value, item.name) for item in fields(value)]
        return list(vars(value).values()) if callable(getattr(type(value), "model_dump", None)) else []
    except Exception:  # Code of a user's: properties, `__getattribute__`.
        return []
