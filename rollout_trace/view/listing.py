"""Summaries as lines, for ``rollout-trace ls``: in columns that fit a terminal, or with tabs for other programs."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from rollout_trace import credentials
from rollout_trace._wrong_use import did_you_mean
from rollout_trace.guard import printable
from rollout_trace.view import numbers as fmt
from rollout_trace.view.model import Summary
from rollout_trace.view.summary import grade_of
from rollout_trace.view.table import Column, Layout, escape

FIELDS = tuple(Summary.__struct_fields__)
"""All columns that there are."""
DEFAULT = ("id", "name", "task", "status", "reward", "steps", "input_tokens", "output_tokens", "rows", "findings",
           "seconds", "excerpt")  # fmt: skip
"""The columns that are shown unless others are named."""
SAME = {"task_id": "task", "group_id": "group", "rollout_index": "index", "episode_id": "episode",
        "parent_id": "parent", "started_at": "started", "n_steps": "steps", "n_calls": "calls",
        "n_tool_runs": "tool_runs", "n_rows": "rows"}  # fmt: skip
"""Names of fields in the expressions of ``filter``, or in ``query``, and the columns that have them."""
_INSIDE = "└ "
"""Before the name of a trajectory that was opened inside another one."""
_HEX_ID = re.compile(r"[0-9a-f]{24}")
_SHORT_ID = 8
_LONG_TEXTS = {"excerpt": 100, "error": 60, "note": 60}
_FIRST = 40
"""Lines from which the widths of columns are taken."""
_WAIT = 0.05
"""Seconds after which fewer lines do."""
_USUAL = {"name": 12, "task": 16, "group": 16, "status": 9, "reward": 6, "input_tokens": 5, "output_tokens": 5,
          "steps": 3, "findings": 30, "seconds": 6, "excerpt": 60}  # fmt: skip
"""Widths of columns where the lines that will come are not known."""


class _Shown(NamedTuple):
    """How a field is shown."""

    column: Column
    text: Callable[[Any], str]
    """The short text of a value that is not None; not escaped."""


def _id(value: str) -> str:
    # As `git` does: of ids that this library makes, the beginning is enough, and `show` takes it.
    return value[:_SHORT_ID] if _HEX_ID.fullmatch(value) else value


def _codes(value: Mapping[str, int]) -> str:
    """The fatal findings (with a ``!``), then the warnings; ``info`` where there are no others."""
    texts = [f"!{code} {count}" for code, count in value.items() if grade_of(code) == "fatal"]
    texts += [f"{code} {count}" for code, count in value.items() if grade_of(code) == "warning"]
    return ", ".join(texts) or ("info" if value else "")


def _any(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {fmt.number(number)}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return fmt.number(value) if isinstance(value, float) else fmt.count(value) if type(value) is int else str(value)


def _right(title: str, text: Callable[[Any], str], weight: int) -> _Shown:
    return _Shown(Column(title=title, is_right=True, weight=weight), text)


def _left(title: str, text: Callable[[Any], str] = _any, *, weight: int = 1, least: int = 6, most: int = 24) -> _Shown:
    return _Shown(Column(title=title, weight=weight, least=least, most=most), text)


_SHOWN: dict[str, _Shown] = {
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
    "findings": _Shown(Column(title="findings", weight=7, least=8, most=44, is_list=True), _codes),
    "seconds": _right("time", fmt.seconds, 4),
    "excerpt": _left("begins with", weight=1, least=16, most=100),
    "drift": _left("drift", weight=3),
    "started": _right("started", fmt.when, 3),
    "latency": _right("latency", fmt.seconds, 3),
    "first_token": _right("first token", fmt.seconds, 3),
    "cost": _right("cost", fmt.number, 4),
}
for _name in FIELDS:
    _SHOWN.setdefault(_name, _left(_name, weight=2, most=_LONG_TEXTS.get(_name, 24)))


def field_of(name: str) -> str:
    """The name of a field of ``Summary``; those of ``filter`` and ``query`` do, too. Raises ValueError."""
    name = SAME.get(name, name)
    if name not in FIELDS:
        raise ValueError(f"there is no column {name!r}. {did_you_mean(name, FIELDS)}")
    return name


class Listing:
    """Lines of fields of summaries: short ones in columns that fit a width, or (None) whole values between tabs.

    ``is_open``: lines will come that are like none of the first ones, so columns get their usual widths.
    """

    def __init__(self, names: Sequence[str], width: int | None = None, *, is_open: bool = False) -> None:
        self._names = names
        self._width = width
        self._is_open = is_open
        self._layout: Layout | None = None
        self._has_titles = False

    def lines(self, summaries: Iterable[Summary]) -> Iterator[str]:
        """The lines of some summaries, as they come; a line of titles before the first of all."""
        rest = iter(summaries)
        if self._width is None:
            if not self._has_titles:
                self._has_titles = True
                yield "\t".join(self._names)
            yield from ("\t".join(_whole(getattr(one, name)) for name in self._names) for one in rest)
            return
        if self._layout is None:
            first = self._first(rest)
            if not first:
                return
            usual = [["x" * _USUAL.get(name, 0) for name in self._names]] if self._is_open else []
            self._layout = Layout([_SHOWN[name].column for name in self._names], [*first, *usual], self._width)
            yield self._layout.head()
            yield from map(self._layout.line, first)
        for one in rest:
            yield self._layout.line(self._cells(one))

    def _first(self, rest: Iterator[Summary]) -> list[list[str]]:
        first, ends = [], math.inf
        for one in rest:
            first.append(self._cells(one))
            ends = min(ends, monotonic() + _WAIT)
            if len(first) >= _FIRST or monotonic() > ends:
                # Few lines that came slowly: those that follow may be wider.
                self._is_open |= len(first) < _FIRST
                break
        return first

    def _cells(self, one: Summary) -> list[str]:
        """The short texts of its fields, escaped; ``-`` for what is not known, or empty."""
        # A sub-agent stands below the one that opened it.
        return [
            ("" if name != "name" or one.parent is None else _INSIDE) + _cell(name, getattr(one, name))
            for name in self._names
        ]


def _cell(name: str, value: Any) -> str:
    return fmt.MISSING if value is None else escape(_SHOWN[name].text(value)) or fmt.MISSING


def _whole(value: Any) -> str:
    """A whole value, escaped, for other programs: lists and mappings as JSON, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else ""
        # Escapes of JSON: the text stays JSON, and half surrogate pairs can be printed.
        return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in credentials.cut(text))
    return printable(" ".join(value.split()), sys.maxsize) if isinstance(value, str) else repr(value)


def in_order(summaries: Iterable[Summary], field: str, *, reverse: bool) -> list[Summary]:
    """The summaries by a field, from the least on; those that lack it are last in both directions."""
    every = list(summaries)
    having = [one for one in every if getattr(one, field) is not None]
    having.sort(key=lambda one: _sort_key(getattr(one, field)), reverse=reverse)
    return having + [one for one in every if getattr(one, field) is None]


def _sort_key(value: Any) -> Any:
    """What a value is ordered by: findings and the like by their number, agents and the like by their names."""
    if isinstance(value, dict):
        return sum(value.values())
    return [one.casefold() for one in value] if isinstance(value, list) else value
