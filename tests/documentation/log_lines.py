"""The lines that the library logs, and its warnings, as they stand in its source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("rollout_trace/**/*.py"), *ROOT.glob("integrations/*/rollout_trace_*/**/*.py")])
CALLS = {
    "guard.warn": 0,
    "guard.warn_once": 1,
    "warn_once": 1,
    "guard.failed": 3,
    "logger.warning": 0,
    "logger.error": 0,
    "logger.info": 0,
    "warnings.warn": 0,
}
"""What logs, or warns, and which of its arguments is the message."""


class Line(NamedTuple):
    """One call that logs."""

    place: str
    """Its file and function."""
    template: str
    """The message, with `…` for what is put into it; for a message made elsewhere, `…` alone."""


def lines() -> list[Line]:
    """All of the sources."""
    return [line for path in SOURCES for line in _of(path)]


@functools.lru_cache
def texts() -> list[str]:
    """Every text of the sources, with `…` for what is put into it."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES)
    return [template(one) for tree in trees for one in ast.walk(tree) if isinstance(one, ast.JoinedStr | ast.Constant)]


def _of(path: Path) -> Iterator[Line]:
    source = path.read_text(encoding="utf-8")
    if not any(call in source for call in CALLS):
        return
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            at = CALLS.get(called(node.func)) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and at is not None and len(node.args) > at:
                yield Line(f"{path.relative_to(ROOT).as_posix()}:{function.name}", template(node.args[at]))


def called(node: ast.expr) -> str:
    """``name`` or ``module.name``; several times as fast as `ast.unparse`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def template(node: ast.expr) -> str:
    """A text, with `…` for each part that is not fixed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = ["…" if isinstance(one, ast.FormattedValue) else template(one) for one in node.values]
        return re.sub("…(…)+", "…", "".join(parts))
    return "…"
