"""Places in the body of a request, as users write them: ``seed``, ``metadata.run_id``, ``messages.*.name``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def without(body: Any, paths: Iterable[str]) -> Any:
    """Takes the fields at the paths out of a parsed body, which is changed; returns it."""
    for path in paths:
        _visit(body, path.split("."), _delete)
    return body


def changed(body: Any, path: str, change: Callable[[Any], Any]) -> Any:
    """Puts ``change(value)`` in the place of each value at the path. The body is changed and returned."""

    def replace(container: Any, key: Any) -> None:
        container[key] = change(container[key])

    _visit(body, path.split("."), replace)
    return body


def _delete(container: Any, key: Any) -> None:
    del container[key]


def _visit(value: Any, parts: list[str], act: Callable[[Any, Any], None]) -> None:
    # From the last: an item that is taken out moves those behind it.
    for key in reversed(_keys(value, parts[0])):
        if len(parts) == 1:
            act(value, key)
        else:
            _visit(value[key], parts[1:], act)


def _keys(value: Any, part: str) -> list[Any]:
    if isinstance(value, dict):
        return list(value) if part == "*" else [part] if part in value else []
    if isinstance(value, list):
        if part == "*":
            return list(range(len(value)))
        return [int(part)] if part.isascii() and part.isdigit() and int(part) < len(value) else []
    return []
