"""``help()`` shows the fields of a class with their documentation, which the source has in one place: below each field.

Editors read it there; Python itself throws it away. It is read from the source again when somebody asks for it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from textwrap import indent
from typing import TypeVar

C = TypeVar("C")


def document_fields(kind: type[C]) -> type[C]:
    """Adds the section ``Attributes`` to a class's docstring; a decorator, to stand above ``dataclass``."""
    kind.__doc__ = _Docstring(kind.__doc__ or "")  # type: ignore[assignment]
    return kind


class _Docstring:
    """The docstring of a class, made when it is read: importing the class costs nothing."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        entries = [_entry(*field) for field in _fields(owner)]
        return "\n".join([inspect.cleandoc(self._text), "", "Attributes:", *entries]) if entries else self._text


def _entry(name: str, kind: str, text: str) -> str:
    # The lines after the first stand further in.
    return indent(f"{name} ({kind})" + (f": {text}" if text else ""), " " * 8)[4:]


def _fields(kind: type) -> list[tuple[str, str, str]]:
    """Name, type and documentation of the public fields; none where there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return []
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__), [])
    found = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            found.append((node.target.id, ast.unparse(node.annotation), _text(following)))
    return found


def _text(statement: ast.stmt | None) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return inspect.cleandoc(str(value.value)) if isinstance(value, ast.Constant) else ""
