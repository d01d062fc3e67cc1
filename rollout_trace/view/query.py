"""The query of the page's search box: ``status:failed reward:>0.5 -task:gsm8k "division by zero"``.

Terms are separated by blanks, and all of them must hold.

- ``field:value``: of a text, that it holds the value (letters of both cases are one); of a number, that it is equal.
- ``field:>0.5``, ``field:>=``, ``field:<``, ``field:<=``, ``field:=``, ``field:1..5``: numbers, both
  ends included. ``started`` takes days and times as well (``started:>2026-11-20``, ``2026-11-20T12:30``, UTC).
  ``field:=value`` of a text: that it is the value.
- ``field:none``: it is not known, or empty. ``field:"none"``: it holds that word.
- ``-term``: the term does not hold.
- ``word``, ``"several words"``: in the id, name, task, group, excerpt, note or error.
- ``text:"several words"``: in the line of the file; only where there are files.

A term that cannot be understood is a problem in words, and is left out. ``page/query.js`` is the same for the page
without a server; ``tests/data/page_queries.json`` has the cases that both are tested with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from rollout_trace.view.model import Summary

Kind: TypeAlias = Literal["text", "number"]
Operator: TypeAlias = Literal["has", "is", "none", "between", "below", "above", "at_most", "at_least", "in_line"]
Value: TypeAlias = "str | float | None"

_BLANKS = " \t\r\n"
_TERM = re.compile(r'(-?)(?:([A-Za-z_][A-Za-z0-9_.\-]*):)?(?:"([^"]*)"?|([^ \t\r\n]*))')
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d))?Z?)?")
_SIGNS: dict[str, Operator] = {">=": "at_least", "<=": "at_most", ">": "above", "<": "below", "=": "is"}
_NAMED = re.compile(r"(rewards?|metrics?)\.(.+)")


class Term(NamedTuple):
    """One condition."""

    field: str
    """A key of ``FIELDS``; ``rewards.NAME``, ``metrics.NAME``; ``words``, searched in several; ``line``."""
    operator: Operator
    text: str = ""
    """In lower case, save for ``in_line``."""
    low: float = 0.0
    high: float = 0.0
    is_negated: bool = False


class Query(NamedTuple):
    """A query that was read."""

    terms: list[Term]
    problems: list[str]
    """A sentence for each term that was left out."""


class Field(Struct, frozen=True):
    """A field that can be asked for."""

    kind: Kind
    value: Callable[[Summary], Value]


def _field(name: str, kind: Kind) -> Field:
    def value(summary: Summary) -> Value:
        found = getattr(summary, name)
        if isinstance(found, (list, dict)):
            return "\n".join(found) or None
        return _float(found) if isinstance(found, (int, float)) else found or None

    return Field(kind, value)


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # A whole number of more than 300 digits.
        return float("inf") if number > 0 else float("-inf")


_TEXTS = {"agents": "agent", "models": "model", "findings": "finding"}
FIELDS: dict[str, Field] = {
    **{
        _TEXTS.get(name, name): _field(name, "text")
        for name in (
            "id", "name", "task", "group", "episode", "parent", "status", "stop_reason", "error", "agents", "models",
            "currency", "left_out", "findings", "grade", "drift", "excerpt", "note",
        )
    },
    **{
        name: _field(name, "number")
        for name in (
            "reward", "index", "attempt", "started", "seconds", "steps", "calls", "input_tokens", "output_tokens",
            "cost", "latency", "first_token", "tool_runs", "tool_errors", "rows", "tokens", "trained",
        )
    },
}  # fmt: skip
"""Fields by the name that a query has for them. Of lists and of counts by name, the names, a line each."""

ALIASES = {"agents": "agent", "models": "model", "findings": "finding", "task_id": "task", "group_id": "group"}
SEARCHED = ("id", "name", "task", "group", "excerpt", "note", "error")
"""What words without a field are searched in."""


def read_query(text: str, *, has_lines: bool = True) -> Query:
    """Reads a query.

    Args:
        text: of the search box.
        has_lines: whether ``text:`` can be answered.
    """
    query = Query([], [])
    at = 0
    while at < len(text):
        if text[at] in _BLANKS:
            at += 1
            continue
        match = _TERM.match(text, at)
        assert match is not None  # Each of its parts may be empty.
        at = max(match.end(), at + 1)
        try:
            term = _term(match, has_lines)
        except ValueError as error:
            query.problems.append(str(error))
        else:
            query.terms.extend([] if term is None else [term])
    return query


def _term(match: re.Match[str], has_lines: bool) -> Term | None:
    minus, name, quoted, bare = match.groups()
    value = bare if quoted is None else quoted
    negated = bool(minus)
    # Empty: it is still being typed.
    if not value:
        return None
    if name is None:
        return Term("words", "has", value.lower(), is_negated=negated)
    field = name.lower()
    if field == "text":
        if not has_lines:
            raise ValueError("text: searches the lines of files, which a page without a server has not.")
        return Term("line", "in_line", value, is_negated=negated)
    field, kind = _known(name)
    if quoted is None and value.lower() == "none":
        return Term(field, "none", is_negated=negated)
    term = Term(field, "has", value.lower()) if quoted is not None and kind == "text" else _compared(field, kind, value)
    return None if term is None else term._replace(is_negated=negated)


def _known(name: str) -> tuple[str, Kind]:
    """The field of a name, and its kind."""
    named = _NAMED.fullmatch(name)
    if named is not None:
        return f"{named[1].rstrip('s')}s.{named[2]}", "number"
    field = ALIASES.get(name.lower(), name.lower())
    if field not in FIELDS:
        fields = ", ".join(sorted([*FIELDS, "text", "rewards.NAME", "metrics.NAME"]))
        raise ValueError(
            f'There is no field {name}. Fields: {fields}. To search for these words, put them in "quotes".'
        )
    return field, FIELDS[field].kind


def _compared(field: str, kind: Kind, value: str) -> Term | None:
    sign = next((one for one in _SIGNS if value.startswith(one)), "")
    rest = value[len(sign) :]
    if not rest:
        return None
    if kind == "text":
        if sign in ("", "="):
            return Term(field, "is" if sign else "has", rest.lower())
        raise ValueError(f"{field} is a text: {field}:{value} compares it like a number. Write {field}:{rest}.")
    first, dots, last = rest.partition("..")
    if dots and not sign:
        low = _number(field, first) if first else float("-inf")
        high = _number(field, last) if last else float("inf")
        return Term(field, "between", low=low, high=high)
    number = _number(field, rest)
    return Term(field, _SIGNS.get(sign, "is"), low=number, high=number)


def _number(field: str, text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    day = _DAY.fullmatch(text) if field == "started" else None
    if day is not None:
        try:
            return datetime(*[int(part or 0) for part in day.groups()], tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type, misc]
        except ValueError:
            pass
    form = "a number, or a day such as 2026-11-20" if field == "started" else "a number, such as 0.5, >0.5 or 1..5"
    raise ValueError(f"{field} is compared with {form}; {text} is none.")


def value_of(summary: Summary, field: str) -> Value:
    """What a summary has under the name of a query."""
    group, dot, name = field.partition(".")
    if dot:
        return (getattr(summary, group) or {}).get(name)
    return FIELDS[field].value(summary)


def searched_text(summary: Summary) -> str:
    """What words are searched in, in lower case."""
    return "\n".join(str(value) for name in SEARCHED if (value := FIELDS[name].value(summary))).lower()


def predicate(query: Query, in_line: Callable[[str], bool] | None = None) -> Callable[[Summary], bool]:
    """Whether all terms hold of a summary.

    Args:
        query: that was read.
        in_line: whether the line of the summary holds a text; None: such terms do not count.
    """

    def matches(summary: Summary) -> bool:
        return all(_holds(term, summary, in_line) != term.is_negated for term in query.terms)

    return matches


def _holds(term: Term, summary: Summary, in_line: Callable[[str], bool] | None) -> bool:
    if term.operator == "in_line":
        return not term.is_negated if in_line is None else in_line(term.text)
    if term.field == "words":
        return term.text in searched_text(summary)
    value = value_of(summary, term.field)
    if term.operator == "none":
        return value is None
    if value is None:
        return False
    if isinstance(value, str):
        value = value.lower()
        return term.text in value if term.operator == "has" else term.text in value.split("\n")
    return _compares(term, value)


def _compares(term: Term, value: float) -> bool:
    if term.operator == "above":
        return value > term.low
    if term.operator == "below":
        return value < term.low
    if term.operator == "at_least":
        return value >= term.low
    if term.operator == "at_most":
        return value <= term.low
    return term.low <= value <= term.high
