"""Which part each trajectory of a ``split`` goes to: groups and episodes stay together."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

By: TypeAlias = Literal["group", "task", "name", "status"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = 80
"""Characters of a file's name that come from a value."""


class Entry(NamedTuple):
    """What the plan has of a trajectory."""

    file: int
    """Index of its file."""
    number: int
    """Of its line, from 1."""
    size: int
    """Bytes of its line."""
    id: str
    episode: str | None
    group: str | None
    value: str | None
    """What is split by; None where it is missing, or nothing is."""


@dataclass(slots=True)
class Part:
    """A file of the output."""

    name: str
    """Without its suffix."""
    entries: list[Entry]


class Units:
    """Trajectories in sets that stay together: those of one episode, and, with ``groups``, of one group."""

    def __init__(self, entries: Sequence[Entry], *, groups: bool) -> None:
        self._parents = list(range(len(entries)))
        first: dict[tuple[str, str], int] = {}
        for at, entry in enumerate(entries):
            for kind, value in (("episode", entry.episode), ("group", entry.group if groups else None)):
                if value is not None:
                    self._join(first.setdefault((kind, value), at), at)
        found: dict[int, list[Entry]] = {}
        for at, entry in enumerate(entries):
            found.setdefault(self._root(at), []).append(entry)
        self.units = list(found.values())
        """In the order of their first trajectories."""

    def _root(self, at: int) -> int:
        while self._parents[at] != at:
            self._parents[at] = self._parents[self._parents[at]]
            at = self._parents[at]
        return at

    def _join(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        self._parents[max(one, other)] = min(one, other)


def by_value(entries: Sequence[Entry], by: By) -> list[Part]:
    """A part for each value. An episode goes where its outermost trajectory goes."""
    parts: dict[str | None, Part] = {}
    names = _Names()
    for unit in Units(entries, groups=by == "group").units:
        value = _outermost(unit).value
        if value not in parts:
            parts[value] = Part(names.of(value), [])
        parts[value].entries += unit
    return list(parts.values())


def _outermost(unit: Sequence[Entry]) -> Entry:
    return next((entry for entry in unit if entry.id == entry.episode), unit[0])


def by_number(entries: Sequence[Entry], count: int) -> list[Part]:
    """At most ``count`` parts of about the same size: each unit goes to the smallest so far."""
    units = Units(entries, groups=True).units
    parts: list[list[Entry]] = [[] for _ in range(min(count, len(units)))]
    sizes = [0] * len(parts)
    for unit in units:
        at = sizes.index(min(sizes))
        parts[at] += unit
        sizes[at] += _size(unit)
    return _numbered(parts)


def by_size(entries: Sequence[Entry], limit: int) -> list[Part]:
    """Parts of at most ``limit`` bytes of lines; a unit that is larger is a part of its own."""
    parts: list[list[Entry]] = []
    size = 0
    for unit in Units(entries, groups=True).units:
        own = _size(unit)
        if not parts or size + own > limit:
            parts.append([])
            size = 0
        parts[-1] += unit
        size += own
    return _numbered(parts)


def by_fractions(entries: Sequence[Entry], fractions: Sequence[tuple[str | None, float]], seed: int) -> list[Part]:
    """A part for each fraction (its name, and its share of the trajectories), of units in a random order."""
    units = Units(entries, groups=True).units
    random.Random(seed).shuffle(units)
    parts: list[list[Entry]] = [[] for _ in fractions]
    for unit in units:
        lack = [share * len(entries) - len(part) for (_, share), part in zip(fractions, parts, strict=True)]
        parts[lack.index(max(lack))] += unit
    names = _numbered(parts)
    return [
        Part(part.name if name is None else name, part.entries)
        for (name, _), part in zip(fractions, names, strict=True)
    ]


def torn(parts: Iterable[Part]) -> int:
    """The number of groups that are in several parts."""
    seen = Counter(group for part in parts for group in {entry.group for entry in part.entries if entry.group})
    return sum(count > 1 for count in seen.values())


def _size(unit: Iterable[Entry]) -> int:
    return sum(entry.size + 1 for entry in unit)


def _numbered(parts: Sequence[list[Entry]]) -> list[Part]:
    width = max(2, len(str(len(parts) - 1)))
    return [Part(f"part-{at:0{width}}", entries) for at, entries in enumerate(parts)]


class _Names:
    """Names of files for values: each another one, on file systems without case too."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def of(self, value: str | None) -> str:
        # "." first: a name must not be hidden, nor `..`.
        name = "none" if value is None else _UNSAFE.sub("_", value)[:_NAME].strip(".") or "empty"
        # `name.notes.jsonl` would be taken for notes, `history.jsonl` for a history.
        is_special = name.lower().endswith(".notes") or name.lower() in ("history", "none" if value else "")
        if is_special or name.lower() in self._used:
            name = f"{name}-{hashlib.sha256(repr(value).encode()).hexdigest()[:8]}"
        self._used.add(name.lower())
        return name
