"""Rows with arrays as plain data, to compare them and to write them as JSON."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """The value with each array as its type, shape and list, and bytes as text."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return [str(value.dtype), list(value.shape), value.tolist()]
    return value.hex() if isinstance(value, bytes) else value
