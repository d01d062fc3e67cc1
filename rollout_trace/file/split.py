"""Splits files: which part each trajectory goes to, and the parts written with their media and notes."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeAlias

from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import replacing_in
from rollout_trace.file.compression import compressor
from rollout_trace.file.copies import CarriedMedia
from rollout_trace.file.lines import SplitLine, lines
from rollout_trace.file.notes import note_lines_by_id, notes_beside, notes_path
from rollout_trace.file.shards import lines_among

By: TypeAlias = Literal["group", "task", "name", "status"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = 80
"""Characters of a file's name that come from a value."""


class Entry(NamedTuple):
    """A trajectory, as the plan has it."""

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
        value = next((entry for entry in unit if entry.id == entry.episode), unit[0]).value
        if value not in parts:
            parts[value] = Part(names.of(value), [])
        parts[value].entries += unit
    return list(parts.values())


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


_OPEN = 100
"""Files that are open at once."""


def check_folder(folder: Path, names: Iterable[str], *, overwrite: bool) -> None:
    """Checks that files can be written to a folder, and are then the only ones of trajectories in it.

    Raises:
        FileExistsError: there are others.
        NotADirectoryError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give the path of a folder.")
    there = set(lines_among(os.listdir(folder))) if folder.exists() else set()
    ours = {*names, *map(notes_path, names)}
    if there and not overwrite:
        raise FileExistsError(
            f"{folder} has files of trajectories already: give a new folder, or overwrite=True to replace them."
        )
    if others := sorted(there - ours):
        raise FileExistsError(
            f"{folder} has other files of trajectories, such as {others[0]}: they would be read as parts of the "
            "split. Give a new folder, or move them away."
        )


def write_parts(folder: Path, suffix: str, files: Sequence[str], parts: Sequence[Part], mode: int) -> list[str]:
    """Writes parts that are not empty to a folder; returns the paths of their files. They appear when all are written.

    Args:
        suffix: of their names, which chooses the compression.

    Raises:
        FormatError: a file has changed since the plan was made, or media are missing.
        OSError: a file cannot be read or written.
    """
    names = [f"{part.name}{suffix}" for part in parts]
    with replacing_in(folder) as aside:
        with _Outputs([aside / name for name in names], mode) as outputs:
            _copy_lines(files, parts, outputs)
        _copy_notes(files, parts, [aside / name for name in names])
        for name in names:
            # Notes of an earlier split that was overwritten would be applied to this one.
            Path(notes_path(folder / name)).unlink(missing_ok=True)
    return [str(folder / name) for name in names]


def _copy_lines(files: Sequence[str], parts: Sequence[Part], outputs: _Outputs) -> None:
    places: list[dict[int, tuple[int, int]]] = [{} for _ in files]
    for at, part in enumerate(parts):
        for entry in part.entries:
            places[entry.file][entry.number] = at, entry.size
    for path, wanted in zip(files, places, strict=True):
        copied = 0
        for number, line in lines(path):
            if number not in wanted or not isinstance(line, bytes):
                continue
            at, size = wanted[number]
            if len(line) > size and isinstance(line, SplitLine):
                line = line.last_member()
            if len(line) != size:
                break
            outputs.write(at, line, path)
            copied += 1
        if copied != len(wanted):
            raise FormatError(f"{path} was changed while it was read: nothing was written. Split again.")


class _Outputs:
    """The files that are written. Not all are open at once."""

    def __init__(self, paths: Sequence[Path], mode: int) -> None:
        self._paths = paths
        self._mode = mode
        self._compress: Callable[[bytes], bytes] | None = compressor(paths[0]) if paths else None
        self._media: dict[int, CarriedMedia] = {}
        self._files: dict[int, BinaryIO] = {}

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, at: int, line: bytes, source: str) -> None:
        """Writes a line of the file ``source``."""
        path = self._paths[at]
        if at not in self._media:
            self._media[at] = CarriedMedia(path)
        try:
            self._media[at].carry(line, source)
        except FileNotFoundError as error:
            raise FormatError(f"{source}: media of a line are missing: {error.filename}.") from error
        data = bytes(line) + b"\n"
        self._file(at).write(data if self._compress is None else self._compress(data))

    def _file(self, at: int) -> BinaryIO:
        file = self._files.pop(at, None)
        if file is None:
            if len(self._files) >= _OPEN:
                self._files.pop(next(iter(self._files))).close()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            file = open(os.open(self._paths[at], flags, self._mode | 0o600), "ab")  # noqa: SIM115 - kept open
        # Last, as the one that was used last.
        self._files[at] = file
        return file


def _copy_notes(files: Sequence[str], parts: Sequence[Part], paths: Sequence[Path]) -> None:
    """Writes the notes of each part beside it, line by line as they are."""
    for notes in dict.fromkeys(map(notes_beside, files)):
        if notes is None:
            continue
        # An id can be in several parts, where lines have it twice.
        homes: dict[str, set[int]] = {}
        sources = {at for at, path in enumerate(files) if notes_path(path) == notes}
        for at, part in enumerate(parts):
            for entry in part.entries:
                if entry.file in sources:
                    homes.setdefault(entry.id, set()).add(at)
        for one, line in note_lines_by_id(notes):
            for at in sorted(homes.get(one, ())):
                with open(notes_path(paths[at]), "ab") as file:
                    file.write(bytes(line) + b"\n")
