"""Ready-made functions for ``normalize=``: what differs from run to run becomes one text.

    from rollout_trace.testing import normalize

    @pytest.mark.replay("weather.jsonl", normalize=normalize.chain(normalize.dates, normalize.uuids))

Each takes the parsed body of a request and returns what is compared in its place. What is sent to the model stays as it
is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Normalize: TypeAlias = Callable[[Any], Any]

__all__ = ["chain", "dates", "numbers_in", "texts", "uuids"]

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY_OF_WEEK = r"(?:(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,?\s+)?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp](?:[Mm]\b|\.[Mm]\.))?(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})\b)?"
_DATES = re.compile(
    rf"{_DAY_OF_WEEK}\b(?:"
    rf"\d{{4}}[-/]\d{{2}}[-/]\d{{2}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?\s+(?:of\s+)?{_MONTH}\.?,?\s+\d{{4}}"
    rf"|{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}"
    rf"|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}})"
    rf"(?:(?:T|,?\s+(?:at\s+)?){_TIME})?(?!\d)"
)
_TIMES = re.compile(rf"(?<![\d:]){_TIME}(?![\d:])")
_UUIDS = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_NUMBERS = re.compile(r"-?\d+(?:[.,]\d+)*")


def dates(body: Any) -> Any:
    """Dates in texts become ``<date>``, times of the day ``<time>``: 2026-11-23T16:44:27Z, November 23, 2026, 16:44."""

    def change(text: str) -> str:
        return _TIMES.sub("<time>", _DATES.sub("<date>", text))

    return _change_texts(body, change)


def uuids(body: Any) -> Any:
    """UUIDs in texts become ``<uuid 1>``, ``<uuid 2>``, numbered by where they first appear in the request."""
    known: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return known.setdefault(found[0].lower(), f"<uuid {len(known) + 1}>")

    return _change_texts(body, lambda text: _UUIDS.sub(number, text))


def numbers_in(*paths: str) -> Normalize:
    """Numbers at these paths (``messages.*.content``) become ``<number>``, alone and in texts.

    Raises:
        ValueError: no path was given.
    """
    if not paths:
        raise ValueError("numbers_in() needs the paths of fields, such as numbers_in('messages.*.content').")

    def normalize(body: Any) -> Any:
        for path in paths:
            body = _changed(body, path, _without_numbers)
        return body

    return normalize


def texts(pattern: str, replacement: str) -> Normalize:
    """Replaces the matches of a regular expression in texts: ``texts(r"run-\\d+", "run-N")``.

    Raises:
        re.error: the pattern is wrong.
    """
    compiled = re.compile(pattern)
    return lambda body: _change_texts(body, lambda text: compiled.sub(replacement, text))


def chain(*functions: Normalize) -> Normalize:
    """One function that calls several, each with what the one before it returned."""

    def normalize(body: Any) -> Any:
        for function in functions:
            body = function(body)
        return body

    return normalize


def _without_numbers(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "<number>"
    return _change_texts(value, lambda text: _NUMBERS.sub("<number>", text))


def _change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with each text in it changed; keys of objects stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_change_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _change_texts(item, change) for key, item in value.items()}
    return value


def without(body: Any, paths: Iterable[str]) -> Any:
    """Takes the fields at the paths out of a parsed body, which is changed; returns it."""
    for path in paths:
        _visit(body, path.split("."), operator.delitem)
    return body


def _changed(body: Any, path: str, change: Callable[[Any], Any]) -> Any:
    """Puts ``change(value)`` in the place of each value at the path. The body is changed and returned."""

    def replace(container: Any, key: Any) -> None:
        container[key] = change(container[key])

    _visit(body, path.split("."), replace)
    return body


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
