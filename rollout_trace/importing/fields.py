"""Typed access to the JSON objects of a source. A field of another type is reported with its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, TypeGuard

from rollout_trace.data.counts import Path, Shape, counts_from, is_count
from rollout_trace.data.model import Usage
from rollout_trace.errors import FormatError

OnError: TypeAlias = Literal["raise", "skip"]
_YEARS = range(1900, 10000)
_ADVICE = 'on_error="skip" leaves out what cannot be read and keeps the rest'


class Problems:
    """Collects the errors in an import's files: raises them at once, or keeps them in ``skipped``."""

    def __init__(self, on_error: OnError) -> None:
        self.skipped: list[FormatError] = []
        self._on_error = on_error

    def add(self, error: FormatError) -> None:
        """Raises the error, or keeps it."""
        if self._on_error == "raise":
            raise error
        self.skipped.append(error)


class Place(NamedTuple):
    """The place of a value."""

    name: str
    """Of the file, as in messages."""
    line: int | None
    """From 1; None in a file that is one document."""
    problems: Problems

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}, line {self.line}"

    def error(self, path: str, expected: str, found: str) -> FormatError:
        """The error about one value: file, line, path, what was expected and what was found."""
        return FormatError(f"{self}, {path}: expected {expected}, got {found}; {_ADVICE}.")


def kind_of(value: Any) -> str:
    """A value for an error message. Texts are not repeated: transcripts hold secrets."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, (int, float)):
        try:
            text = str(value)
        except ValueError:  # More digits than Python converts to decimal.
            return "a number with very many digits"
        return text if len(text) <= 40 else f"{text[:37]}..."
    kinds = ((str, "a text of {} characters"), (list, "a list of {} items"), (dict, "an object with {} fields"))
    return next((text.format(len(value)) for kind, text in kinds if isinstance(value, kind)), type(value).__name__)


_NOTHING: dict[str, Any] = {}


class Fields:
    """An object of a source, read field by field. A field that is null is a missing one: each method gives None.

    A missing object is one without fields, and false, so that its fields can be asked for, too. A field of another
    type than asked for is reported to the place's ``problems``: it raises ``FormatError``, or the error is kept and
    the field counts as missing.
    """

    __slots__ = ("path", "place", "values")

    def __init__(self, values: dict[str, Any], place: Place, path: str = "$") -> None:
        self.values = values
        self.place = place
        self.path = path

    def __bool__(self) -> bool:
        return self.values is not _NOTHING

    def get(self, name: str) -> Any:
        """The value of a field, of any type."""
        return self.values.get(name)

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}"

    def wrong(self, name: str, expected: str) -> None:
        """Reports the value of a field."""
        self.place.problems.add(self.place.error(self.at(name), expected, kind_of(self.get(name))))

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raises FormatError about a field without which the object cannot be used."""
        value = self.get(name)
        found = "nothing" if name not in self.values else kind_of(value)
        raise self.place.error(self.at(name), expected, found)

    def _typed(self, name: str, expected: str, test: Callable[[Any], bool]) -> Any:
        value = self.values.get(name)
        if value is None or test(value):
            return value
        self.wrong(name, expected)
        return None

    def text(self, name: str) -> str | None:
        """A text."""
        found: str | None = self._typed(name, "a text", lambda value: isinstance(value, str))
        return found

    def name(self, name: str) -> str | None:
        """A text that is not empty, or the digits of a whole number: an id."""
        value = self._typed(name, "an id as a text", lambda value: isinstance(value, str) or is_whole(value))
        return None if value in (None, "") else str(value)

    def require_name(self, name: str) -> str:
        """An id without which the object cannot be used; raises FormatError where there is none."""
        value = self.get(name)
        if not (isinstance(value, str) and value) and not is_whole(value):
            self.refuse(name, "an id as a text")
        return str(value)

    def require_text(self, name: str) -> str:
        """A text without which the object cannot be used; raises FormatError where there is none."""
        value = self.get(name)
        if not isinstance(value, str):
            self.refuse(name, "a text")
        return value

    def require_object(self, name: str) -> Fields:
        """An object without which this one cannot be used; raises FormatError where there is none."""
        value = self.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(value, self.place, self.at(name))

    def flag(self, name: str) -> bool | None:
        """A truth value."""
        found: bool | None = self._typed(name, "true or false", lambda value: isinstance(value, bool))
        return found

    def count(self, name: str) -> int | None:
        """A whole number of 0 or more."""
        value = self._typed(name, "a whole number of 0 or more", is_count)
        return None if value is None else int(value)

    def usage(self, shape: Shape) -> Usage | None:
        """The counts of this object, from the places of a shape; None where it has none."""
        inner: dict[str, Fields] = {}

        def get(path: Path) -> int | None:
            *way, name = path
            for key in way:
                inner[key] = inner[key] if key in inner else self.object(key)
            return (inner[way[0]] if way else self).count(name)

        return usage_from(shape, get)

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self._typed(name, "a finite number", is_finite)
        # As the engine's: a whole reward stays the number that was written.
        return None if value is None else float(value)

    def milliseconds(self, name: str) -> float | None:
        """A number of milliseconds, in seconds."""
        value = self.number(name)
        return None if value is None else value / 1e3

    def object(self, name: str) -> Fields:
        """An object; one that is false where there is none."""
        value = self._typed(name, "an object", lambda value: isinstance(value, dict))
        return Fields(_NOTHING if value is None else value, self.place, self.at(name))

    def mapping(self, name: str) -> dict[str, Any]:
        """An object as a dict of its own; empty where there is none."""
        return self.object(name).values or {}

    def items(self, name: str) -> list[Any] | None:
        """The items of a list."""
        found: list[Any] | None = self._typed(name, "a list", lambda value: isinstance(value, list))
        return found

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of a list; items that are none are reported."""
        for at, value in enumerate(self.items(name) or ()):
            if isinstance(value, dict):
                yield Fields(value, self.place, f"{self.at(name)}[{at}]")
            else:
                self._wrong_item(name, at, value, "an object")

    def ids(self, name: str) -> list[int] | None:
        """A list of token ids: whole numbers, whatever their range."""
        values = self.items(name)
        return values if values is None or self._all(name, values, "a token id", is_whole) else None

    def numbers(self, name: str) -> list[float | None] | None:
        """A list of numbers and nulls. A number that no float holds becomes an infinity, which no logprob may be."""
        values = self.items(name)
        if values is None or not self._all(name, values, "a number", lambda one: one is None or is_number(one)):
            return None
        return [None if one is None else as_float(one) for one in values]

    def named_numbers(self, name: str) -> dict[str, float]:
        """The finite numbers of an object by their names; null is a missing one."""
        found = self.object(name)
        numbers = {key: found.number(key) for key in found.values}
        return {key: value for key, value in numbers.items() if value is not None}

    def _all(self, name: str, values: list[Any], expected: str, test: Callable[[Any], bool]) -> bool:
        at = next((at for at, value in enumerate(values) if not test(value)), None)
        if at is not None:
            self._wrong_item(name, at, values[at], expected)
        return at is None

    def _wrong_item(self, name: str, at: int, value: Any, expected: str) -> None:
        self.place.problems.add(self.place.error(f"{self.at(name)}[{at}]", expected, kind_of(value)))

    def time(self, name: str) -> datetime | None:
        """A time: a text as in ISO 8601 (without a zone: UTC), or seconds since 1970."""
        value = self.get(name)
        if value is None:
            return None
        found = time_of(value)
        if found is None:
            self.wrong(name, "a time as in ISO 8601, or seconds since 1970")
        return found


def nothing(place: Place) -> Fields:
    """An object that is missing."""
    return Fields(_NOTHING, place)


def usage_from(shape: Shape, get: Callable[[Path], int | None]) -> Usage | None:
    """The counts at the places of a shape; None where there is none."""
    found = Usage(**counts_from(shape, get)[0])
    return None if found == Usage() else found


def time_of(value: Any) -> datetime | None:
    """A time of a text as in ISO 8601 (without a zone: UTC) or of seconds since 1970; None for anything else."""
    try:
        if isinstance(value, str):
            # Python 3.10 knows neither the Z nor fractions of other lengths than 3 and 6 digits.
            text = value.strip().replace("Z", "+00:00").replace("z", "+00:00")
            head, dot, rest = text.partition(".")
            if dot:
                digits = len(rest) - len(rest.lstrip("0123456789"))
                text = f"{head}.{rest[:digits][:6]:0<6}{rest[digits:]}"
            found = datetime.fromisoformat(text)
            found = found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found.astimezone(timezone.utc)
        elif is_finite(value):
            found = datetime.fromtimestamp(value, timezone.utc)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return found if found.year in _YEARS else None


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that a float holds."""
    return is_number(value) and math.isfinite(as_float(value))


def as_float(value: float) -> float:
    """The number as a float; an infinity for one that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_number(value: Any) -> bool:
    """Whether a value is a number, whatever its size; ``True`` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; ``True`` is none."""
    return isinstance(value, int) and not isinstance(value, bool)
