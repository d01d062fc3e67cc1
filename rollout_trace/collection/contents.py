"""Digests of tasks: of equal contents equal, in every process and on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

from rollout_trace.data.user_values import MAX_DEPTH, brief, json_key, to_builtin

DIGITS = 12
"""Hexadecimal digits of a digest."""


class NoForm(TypeError):
    """A value, or something in it, has no form in JSON. The text names its place and class."""


def digest(value: Any, *, lenient: bool = False) -> str:
    """12 hexadecimal digits of the SHA-256 of a value's canonical JSON: keys sorted, no spaces, ASCII.

    Args:
        value: texts, numbers, lists, mappings, dataclasses, Pydantic objects, arrays, dates, bytes, and such in them.
        lenient: whether the class stands for what has no form in JSON.

    Raises:
        NoForm: it has no form in JSON, and ``lenient`` is False.
    """
    text = json.dumps(_canonical(value, "$", 0, lenient), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _canonical(value: Any, path: str, depth: int, lenient: bool) -> Any:
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        # As text from 4300 digits on, Python refuses to write them.
        return value if -(2**63) <= value < 2**64 else hex(value)
    if depth > MAX_DEPTH:
        if lenient:
            return {"class": type(value).__qualname__}
        raise NoForm(f"{path} is nested deeper than {MAX_DEPTH} levels, or contains itself")
    # Most are built-in, and `to_builtin` takes long to see it.
    inside, depth = value if type(value) in (dict, list) else to_builtin(value), depth + 1
    if inside is None or isinstance(inside, (bool, float, str, int)):
        return _canonical(inside, path, depth, lenient)
    value = inside
    if isinstance(value, Mapping):
        return {json_key(key): _canonical(one, f"{path}.{key}", depth, lenient) for key, one in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Set):
        items = [_canonical(one, f"{path}[...]", depth, lenient) for one in value]
        return sorted(items, key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(value, Sequence):
        return [_canonical(one, f"{path}[{at}]", depth, lenient) for at, one in enumerate(value)]
    return _scalar(value, path, depth, lenient)


def _scalar(value: Any, path: str, depth: int, lenient: bool) -> Any:
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal, Fraction, timedelta, complex)):
        return str(value)
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        # Arrays and tensors, and numbers of numpy.
        return _canonical(value.tolist(), path, depth, lenient)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if lenient:
        return {"class": kind}
    where = "it is" if path == "$" else f"its {path[2:] if path.startswith('$.') else path[1:]} is"
    raise NoForm(f"{where} {brief(value)} ({kind}), which has no form in JSON")
