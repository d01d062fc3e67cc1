"""Adds the docstrings below the fields of a class to the docstring of the class, so that ``help()`` shows them.

Editors read the text below a field; Python discards it. It is parsed from the source when ``__doc__`` is read.
"""

from __future__ import annotations

import ast
import inspect
import sys
from textwrap import indent
from typing import TypeVar

C = TypeVar("C")


def document_fields(kind: type[C]) -> type[C]:
    """Class decorator, placed above ``dataclass``: adds a section ``Attributes`` to the docstring."""
    kind.__doc__ = _Docstring(kind.__doc__ or "")  # type: ignore[assignment]
    return kind


class _Docstring:
    """The docstring of a class, built when it is read: parsing the source at import would slow every start."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        entries = [_entry(*field) for field in _fields(owner)]
        return "\n".join([inspect.cleandoc(self._text), "", "Attributes:", *entries]) if entries else self._text


def _entry(name: str, kind: str, text: str) -> str:
    # The first line is indented by 4 columns, the others by 8.
    return indent(f"{name} ({kind})" + (f": {text}" if text else ""), " " * 8)[4:]


def _fields(kind: type) -> list[tuple[str, str, str]]:
    """Name, type and documentation of the public fields; empty where the source is not available."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return []
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__), [])
    documented = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            documented.append((node.target.id, ast.unparse(node.annotation), _text(following)))
    return documented


def _text(statement: ast.stmt | None) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return inspect.cleandoc(str(value.value)) if isinstance(value, ast.Constant) else ""
