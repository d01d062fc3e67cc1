"""Copies of the values that a framework passes to tools and gets from them."""

from __future__ import annotations

from datetime import date
from typing import Any

from rollout_trace.data.user_values import MAX_DEPTH, json_key, safe_repr, to_builtin


def snapshot(value: Any) -> Any:
    """A copy of an argument or a result that later changes of the value do not reach, of what JSON can hold.

    Pydantic objects, dataclasses, mappings, paths and enums become the values they hold; sequences become lists;
    numbers of numpy become Python's. Anything else, and what is nested more than 150 levels deep, becomes its ``repr``.
    Nothing is raised: a value whose conversion raises is its ``repr``, too.
    """
    return _copied(value, 0)


def _copied(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if depth > MAX_DEPTH:
        return safe_repr(value)
    held = to_builtin(value)
    if isinstance(held, dict):
        return {json_key(key): _copied(item, depth + 1) for key, item in held.items()}
    if isinstance(held, (list, tuple, set, frozenset)):
        return [_copied(item, depth + 1) for item in held]
    return _plain(held)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, date):
        return value.isoformat()
    try:
        # Scalars and arrays of numpy and torch.
        return value.tolist() if callable(getattr(type(value), "tolist", None)) else safe_repr(value)
    except Exception:  # Code of the value's class runs here.
        return safe_repr(value)
