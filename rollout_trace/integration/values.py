"""Copies of the values that a framework passes to tools and gets from them."""

from __future__ import annotations

from datetime import date
from typing import Any

from rollout_trace.data.user_values import MAX_DEPTH, safe_repr, to_builtin, unique_key


def snapshot(value: Any) -> Any:
    """Copies an argument or a result as values that JSON can hold; later changes to the original do not affect it.

    Pydantic objects, dataclasses, mappings, paths and enums become the values they hold, sequences become lists, and
    numpy numbers become Python numbers. Anything else becomes its ``repr``, as do values that contain themselves or are
    nested more than 150 levels deep. It never raises: a value that cannot be converted becomes its ``repr``.
    """
    return _copied(value, ())


def _copied(value: Any, ancestors: tuple[int, ...]) -> Any:
    """``ancestors``: ``id`` of each object that contains it, since a value may contain itself."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if id(value) in ancestors or len(ancestors) > MAX_DEPTH:
        return safe_repr(value)
    ancestors, held = (*ancestors, id(value)), to_builtin(value)
    if isinstance(held, dict):
        items: dict[str, Any] = {}
        for key, item in held.items():
            items[unique_key(key, items)] = _copied(item, ancestors)
        return items
    if isinstance(held, (list, tuple, set, frozenset)):
        return [_copied(item, ancestors) for item in held]
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
