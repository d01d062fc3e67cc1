"""The columns of ``rollout-trace ls``: the fields of a ``Summary``, as short texts for a line, or whole."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace import credentials
from rollout_trace.guard import printable
from rollout_trace.train.check_codes import CODES
from rollout_trace.view import numbers as fmt
from rollout_trace.view.model import Summary
from rollout_trace.view.table import Column, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

FIELDS = tuple(Summary.__struct_fields__)
"""All columns that there are."""
DEFAULT = (
    "id",
    "name",
    "task",
    "status",
    "reward",
    "steps",
    "input_tokens",
    "output_tokens",
    "rows",
    "findings",
    "seconds",
    "excerpt",
)  # fmt: skip
"""The columns that are shown unless others are named."""
SAME = {
    "task_id": "task",
    "group_id": "group",
    "rollout_index": "index",
    "episode_id": "episode",
    "parent_id": "parent",
    "started_at": "started",
    "n_steps": "steps",
    "n_calls": "calls",
    "n_tool_runs": "tool_runs",
    "n_rows": "rows",
}
"""Names of fields in the expressions of ``filter``, or in ``query``, and the columns that have them."""
INSIDE = "└ "
"""Before the name of a trajectory that was opened inside another one."""
_HEX_ID = re.compile(r"[0-9a-f]{24}")
_SHORT_ID = 8
_LONG_TEXTS = {"excerpt": 100, "error": 60, "note": 60}


class Shown(NamedTuple):
    """How a field is shown."""

    column: Column
    text: Callable[[Any], str]
    """The short text of a value that is not None; not escaped."""


def _text(value: Any) -> str:
    return str(value)


def _id(value: str) -> str:
    # As `git` does: of ids that this library makes, the beginning is enough, and `show` takes it.
    return value[:_SHORT_ID] if _HEX_ID.fullmatch(value) else value


def _names(value: Sequence[str]) -> str:
    return ", ".join(value)


def _codes(value: Mapping[str, int]) -> str:
    """The fatal findings (with a ``!``), then the warnings; ``info`` where there are no others."""
    grades = {code: CODES[code][0] if code in CODES else "fatal" for code in value}
    texts = [f"!{code} {count}" for code, count in value.items() if grades[code] == "fatal"]
    texts += [f"{code} {count}" for code, count in value.items() if grades[code] == "warning"]
    return ", ".join(texts) or ("info" if value else "")


def _counts(value: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {fmt.number(number)}" for name, number in value.items())


def _right(title: str, text: Callable[[Any], str], weight: int) -> Shown:
    return Shown(Column(title=title, is_right=True, weight=weight), text)


def _left(title: str, text: Callable[[Any], str] = _text, *, weight: int = 1, least: int = 6, most: int = 24) -> Shown:
    return Shown(Column(title=title, weight=weight, least=least, most=most), text)


_SHOWN: dict[str, Shown] = {
    "id": _left("id", _id, weight=10, least=8),
    "name": _left("name", weight=8, least=12),
    "task": _left("task", weight=8, least=8),
    "group": _left("group", weight=5, least=8),
    "status": _left("status", weight=9, least=9, most=12),
    "reward": _right("reward", fmt.number, 9),
    "steps": _right("steps", fmt.count, 6),
    "input_tokens": _right("in", fmt.short, 5),
    "output_tokens": _right("out", fmt.short, 5),
    "rows": _right("rows", fmt.count, 3),
    "findings": Shown(Column(title="findings", weight=7, least=8, most=44, is_list=True), _codes),
    "seconds": _right("time", fmt.seconds, 4),
    "excerpt": _left("begins with", weight=1, least=16, most=100),
    "drift": _left("drift", _counts, weight=3),
    "started": _right("started", fmt.when, 3),
    "latency": _right("latency", fmt.seconds, 3),
    "first_token": _right("first token", fmt.seconds, 3),
    "cost": _right("cost", fmt.number, 4),
}
_KINDS: dict[type, Callable[[Any], str]] = {int: fmt.count, float: fmt.number}


def shown(name: str) -> Shown:
    """How a field is shown. Those without a form of their own by the type of their value.

    Raises:
        ValueError: there is no such field.
    """
    if name not in FIELDS:
        from difflib import get_close_matches

        near = get_close_matches(name, FIELDS, 1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"there is no column {name!r}{meant} There are {', '.join(FIELDS)}.")
    known = _SHOWN.get(name)
    if known is not None:
        return known
    return _left(name, _any, weight=2, most=_LONG_TEXTS.get(name, 24))


def _any(value: Any) -> str:
    if isinstance(value, dict):
        return _counts(value)
    return _names(value) if isinstance(value, list) else _KINDS.get(type(value), _text)(value)


def cells_of(one: Summary, names: Sequence[str]) -> list[str]:
    """The short texts of fields, escaped; ``-`` for what is not known, or empty."""
    cells = [_cell(shown(name).text, getattr(one, name)) for name in names]
    if one.parent is not None:
        # A sub-agent stands below the one that opened it.
        return [f"{INSIDE}{cell}" if name == "name" else cell for name, cell in zip(names, cells, strict=True)]
    return cells


def _cell(text: Callable[[Any], str], value: Any) -> str:
    return fmt.MISSING if value is None else escape(text(value)) or fmt.MISSING


def whole_of(one: Summary, names: Sequence[str]) -> list[str]:
    """The whole values of fields, escaped, for other programs: lists and mappings as JSON, nothing for None."""
    return [_whole(getattr(one, name)) for name in names]


def _whole(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else ""
        # Escapes of JSON: the text stays JSON, and half surrogate pairs can be printed.
        return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in credentials.cut(text))
    return printable(" ".join(value.split()), sys.maxsize) if isinstance(value, str) else repr(value)
