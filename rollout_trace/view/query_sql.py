"""A query of the search box as SQL over the columns of an index; ``query.predicate`` is the same over summaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from rollout_trace.view.model import Summary
from rollout_trace.view.query import ALIASES, FIELDS, Query, Term, searched_text
from rollout_trace.view.summary import GRADES
from rollout_trace.view.values import json_text

Condition: TypeAlias = "tuple[str, list[Any]]"
"""SQL with question marks, and the values for them."""

_SUMS = ("findings", "drift", "left_out")
COLUMNS = {
    **{f"f_{name}": "TEXT" if field.kind == "text" else "REAL" for name, field in FIELDS.items()},
    **{f"n_{name}": "INTEGER" for name in (*_SUMS, "grade")},
    "searched": "TEXT",
    "grouped": "TEXT",
    "status": "TEXT",
    "codes": "TEXT",
}
"""Name and type of the columns that are filled from a summary. Texts are in lower case, save for the last three:
``grouped``, the group or else the task; ``status``; and ``codes``, the findings as JSON."""
_COMPARED = {"above": ">", "below": "<", "at_least": ">=", "at_most": "<="}


def column_values(summary: Summary) -> list[Any]:
    """The values of ``COLUMNS``."""
    values: list[Any] = [
        clean(value.lower()) if isinstance(value, str) else value
        for value in (field.value(summary) for field in FIELDS.values())
    ]
    values += [sum(getattr(summary, name).values()) for name in _SUMS]
    grouped = summary.task if summary.group is None else summary.group
    return [
        *values,
        grade_number(summary),
        clean(searched_text(summary)),
        None if grouped is None else clean(grouped),
        clean(summary.status),
        clean(json_text(summary.findings)) if summary.findings else None,
    ]


def grade_number(summary: Summary) -> int:
    """The grade as a number: 0 without findings, the higher the worse."""
    return 0 if summary.grade is None else len(GRADES) - GRADES.index(summary.grade)


def clean(text: str) -> str:
    """A text that UTF-8 can hold: halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode()


def where(query: Query, in_line: Callable[[str], Iterable[int]]) -> Condition:
    """The condition that a row meets all terms.

    Args:
        query: that was read.
        in_line: ids of the rows whose lines hold a text.
    """
    parts, values = [], []
    for term in query.terms:
        sql, found = _condition(term, in_line)
        # NULL where a value is not known: no comparison is true of it.
        parts.append(f"{'NOT ' if term.is_negated else ''}coalesce({sql}, 0)")
        values += found
    return " AND ".join(parts) or "1", values


def _condition(term: Term, in_line: Callable[[str], Iterable[int]]) -> Condition:
    if term.operator == "in_line":
        return "rows.id IN (SELECT value FROM json_each(?))", [json.dumps(list(in_line(term.text)))]
    if term.field == "words":
        return "instr(searched, ?) > 0", [clean(term.text)]
    group, dot, name = term.field.partition(".")
    column, values = f"f_{term.field}", []
    if dot:
        column = "(SELECT json_extract(json, ?) FROM summaries WHERE summaries.row = rows.id)"
        values = [f'$.{group}."{name}"']
    if term.operator == "none":
        return f"{column} IS NULL", values
    if term.operator == "has":
        return f"instr({column}, ?) > 0", [*values, clean(term.text)]
    if term.operator == "is" and term.text:
        return f"instr(char(10) || {column} || char(10), char(10) || ? || char(10)) > 0", [*values, clean(term.text)]
    if term.operator in _COMPARED:
        return f"{column} {_COMPARED[term.operator]} ?", [*values, term.low]
    return f"{column} BETWEEN ? AND ?", [*values, term.low, term.high]


def order(field: str, *, reverse: bool) -> str:
    """The order by a field of ``Summary``: equal ones as in the files, those without a value last.

    Raises:
        ValueError: nothing can be ordered by it.
    """
    direction = "DESC" if reverse else "ASC"
    if not field:
        return f"rows.file {direction}, rows.line {direction}, rows.part {direction}"
    name = ALIASES.get(field, field)
    column = f"n_{field}" if f"n_{field}" in COLUMNS else f"f_{name}"
    if column not in COLUMNS:
        raise ValueError(f"Nothing can be sorted by {field}. Fields: {', '.join(sorted(FIELDS))}.")
    return f"{column} IS NULL, {column} {direction}, rows.file, rows.line, rows.part"
