"""The database of an index: what it has of files, where each line is, and the JSON of its summary."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollout_trace.file.addresses import is_address, open_binary, size_of
from rollout_trace.file.lines import Place
from rollout_trace.file.notes import notes_path
from rollout_trace.view.model import Summary
from rollout_trace.view.values import encode

_HEAD, _TAIL = 1024, 256
"""Bytes at the beginning, and before the place where reading went to, that are compared."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, state TEXT, notes TEXT, size INTEGER, done INTEGER,
    member INTEGER, begin INTEGER, number INTEGER, head BLOB, tail BLOB);
CREATE TABLE IF NOT EXISTS rows (
    id INTEGER PRIMARY KEY, file INTEGER, line INTEGER, part INTEGER, member INTEGER, begin INTEGER, length INTEGER,
    trajectory TEXT, episode TEXT, generation INTEGER, json BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS rows_line ON rows (file, line, part);
CREATE INDEX IF NOT EXISTS rows_episode ON rows (episode) WHERE episode IS NOT NULL;
CREATE INDEX IF NOT EXISTS rows_trajectory ON rows (trajectory);
CREATE INDEX IF NOT EXISTS rows_generation ON rows (generation);
CREATE TABLE IF NOT EXISTS problems (file INTEGER, line INTEGER, text TEXT);
CREATE INDEX IF NOT EXISTS problems_line ON problems (file, line);
CREATE TABLE IF NOT EXISTS noted (file INTEGER, trajectory TEXT, digest BLOB, PRIMARY KEY (file, trajectory));
INSERT OR IGNORE INTO meta VALUES ('generation', 1), ('epoch', 1);
"""
_PLACE = "id, file, member, begin, line, length, part"
"""The columns that ``row_of`` takes."""
_NEXT = "(SELECT value + 1 FROM meta WHERE name = 'generation')"
"""The generation of a row that is being written: that of the next ``changed``, in the same transaction."""


class FileState(NamedTuple):
    """A file, as it is now."""

    state: str
    """Changes when the file does."""
    identity: str
    """Stays while the file is the same one, and grows."""
    size: int


class IndexedFile(NamedTuple):
    """What an index has of a file."""

    id: int
    path: str
    state: str
    """Of the file when it was read: its identity, size and time of its last change."""
    notes: str
    """The same of its notes; an empty text without any."""
    size: int
    done: int
    """Bytes of the file that were read. Less than ``size``: it was not read to its end."""
    rest: Place
    head: bytes
    """A digest of its beginning."""
    tail: bytes
    """A digest of what is before ``rest``."""


class Row(NamedTuple):
    """Where the line of a trajectory is."""

    id: int
    file: int
    place: Place
    length: int
    part: int = 0
    """1: it is the last member of a line, see ``SplitLine``."""

    @property
    def key(self) -> str:
        """The name of the row on the page."""
        return key_of(self.file, self.place.number, self.part)


def key_of(file: int, line: int, part: int = 0) -> str:
    """The name of a row on the page: stable while files only grow."""
    return f"{file}-{line}" + ("s" if part else "")


class Store:
    """The database, for any number of threads. One process at a time should write to it.

    Raises:
        sqlite3.DatabaseError: the file is no database, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        with self.connection() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(SCHEMA)

    @property
    def lines_path(self) -> Path:
        """Of the file with lines that are kept unpacked."""
        return self.path.with_suffix(".lines")

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection, which is given back; what it did is kept, unless an exception is raised."""
        try:
            database = self._idle.get_nowait()
        except queue.Empty:
            database = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA mmap_size = 268435456")
            database.execute("PRAGMA temp_store = MEMORY")
        try:
            with database:
                yield database
        finally:
            self._idle.put(database)

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a statement finds."""
        with self.connection() as database:
            return database.execute(sql, values).fetchall()

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows that a statement finds, one after the other: those of a large file need not be in memory at once."""
        with self.connection() as database:
            cursor = database.execute(sql, values)
            try:
                yield from cursor
            finally:
                cursor.close()

    @property
    def generation(self) -> int:
        """A number that grows with every change."""
        return self._number("generation")

    @property
    def epoch(self) -> int:
        """A number that grows when rows are deleted."""
        return self._number("epoch")

    def _number(self, name: str) -> int:
        return int(self.read("SELECT value FROM meta WHERE name = ?", (name,))[0][0])

    def files(self) -> list[IndexedFile]:
        """All files, in the order in which they came."""
        columns = "id, path, state, notes, size, done, member, begin, number, head, tail"
        found = self.read(f"SELECT {columns} FROM files ORDER BY id")
        return [
            IndexedFile(id, os.fsdecode(path), state, notes, size, done, Place(member, begin, number), head, tail)
            for id, path, state, notes, size, done, member, begin, number, head, tail in found
        ]

    def row(self, key: str) -> Row | None:
        """The row of a key."""
        file, _, line = key.partition("-")
        part = int(line.endswith("s"))
        line = line.removesuffix("s")
        if not (_is_number(file) and _is_number(line)):
            return None
        found = self.read(
            f"SELECT {_PLACE} FROM rows WHERE file = ? AND line = ? AND part = ?", (int(file), int(line), part)
        )
        return row_of(found[0]) if found else None

    def rows(self, condition: str, values: Sequence[Any]) -> Iterator[tuple[Row, bytes]]:
        """The rows that meet a condition, and the JSON of their summaries."""
        for *place, json in self.each(f"SELECT {_PLACE}, json FROM rows WHERE {condition}", values):
            yield row_of(place), json


def os_path(path: str) -> bytes:
    """A path as it is stored: its name need not be UTF-8."""
    return os.fsencode(path)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def with_key(summary: bytes, key: str) -> bytes:
    """The JSON of an object with one more field, ``key``."""
    return b'{"key":"%s",%s' % (key.encode(), summary[1:])


def row_of(found: Sequence[Any]) -> Row:
    """The row of what the columns ``_PLACE`` are."""
    id, file, member, begin, line, length, part = found
    return Row(id, file, Place(member, begin, line), length, part)


def changed(database: sqlite3.Connection) -> None:
    """Counts a change."""
    database.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")


def add_row(database: sqlite3.Connection, row: Row, summary: Summary) -> None:
    """Adds a row; its id is not used."""
    place = (row.file, row.place.number, row.part, row.place.member, row.place.begin, row.length)
    episode = None if summary.episode is None else clean(summary.episode)
    database.execute(
        f"INSERT INTO rows VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, {_NEXT}, ?)",
        [*place, clean(summary.id), episode, encode(summary)],
    )


def update_row(database: sqlite3.Connection, row: int, summary: Summary) -> None:
    """Replaces the summary of a row."""
    database.execute(f"UPDATE rows SET generation = {_NEXT}, json = ? WHERE id = ?", (encode(summary), row))


def rows_of_trajectory(database: sqlite3.Connection, file: int, trajectory_id: str) -> list[Row]:
    """The rows of a file that have an id."""
    sql = f"SELECT {_PLACE} FROM rows WHERE file = ? AND trajectory = ?"
    return list(map(row_of, database.execute(sql, (file, trajectory_id)).fetchall()))


def clean(text: str) -> str:
    """A text that UTF-8 can hold: halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode()


def add_problem(database: sqlite3.Connection, file: int, line: int, text: str) -> None:
    """Adds a sentence on what could not be read. Line 0: of the whole file, or of its notes."""
    database.execute("INSERT INTO problems VALUES (?, ?, ?)", (file, line, clean(text)))


def delete_from(database: sqlite3.Connection, file: int, line: int) -> None:
    """Deletes what is known of the lines of a file from this number on."""
    if database.execute("DELETE FROM rows WHERE file = ? AND line >= ?", (file, line)).rowcount:
        database.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    database.execute("DELETE FROM problems WHERE file = ? AND line >= ?", (file, line))


def forget_file(database: sqlite3.Connection, file: int) -> None:
    """Deletes all that is known of a file. The keys of its rows are never used again."""
    delete_from(database, file, 0)
    database.execute("DELETE FROM noted WHERE file = ?", (file,))
    database.execute("DELETE FROM files WHERE id = ?", (file,))


# Files as they are now


def file_state(path: str) -> FileState:
    """The state of a file; of an address, its size.

    Raises:
        OSError: it is not there.
    """
    if is_address(path):
        # What is at an address is replaced, never appended to.
        size = size_of(path)
        return FileState(f"{size}", f"{size}", size)
    facts = os.stat(path)
    identity = f"{facts.st_dev}:{facts.st_ino}"
    return FileState(f"{identity}:{facts.st_size}:{facts.st_mtime_ns}", identity, facts.st_size)


def notes_state(path: str) -> str:
    """The state of the notes of a file; an empty text without any."""
    beside = notes_path(path)
    if is_address(path) or beside == path:
        return ""
    try:
        return file_state(beside).state
    except OSError:
        return ""


def digest_of(path: str, end: int, length: int) -> bytes:
    """A digest of at most ``length`` bytes of a file before ``end``, with where they are."""
    begin = max(0, end - length)
    with open_binary(path) as file:
        file.seek(begin)
        data = file.read(end - begin)
    return begin.to_bytes(8, "big") + end.to_bytes(8, "big") + hashlib.blake2b(data, digest_size=16).digest()


def digests(path: str, size: int, rest: Place, *, is_packed: bool) -> tuple[bytes, bytes]:
    """The digests of a file's beginning and of what is before ``rest``."""
    end = rest.member if is_packed else rest.begin
    return digest_of(path, min(size, _HEAD), _HEAD), digest_of(path, end, _TAIL)


def is_up_to_date(known: IndexedFile, now: FileState, notes: str) -> bool:
    """Whether an index has all of a file, and of its notes, in these states."""
    return known.state == now.state and known.done >= known.size and known.notes == notes


def continues(known: IndexedFile, now: FileState) -> bool:
    """Whether a file is the one that was read, with more at its end; else it is another one, or was rewritten."""
    if not known.state.startswith(f"{now.identity}:") and known.state != now.identity:
        return False
    was_read = known.done >= known.size
    if now.state != known.state and (now.size <= known.size if was_read else now.size < known.size):
        return False
    return all(_is_same(known.path, digest) for digest in (known.head, known.tail))


def _is_same(path: str, digest: bytes) -> bool:
    begin, end = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
    return digest_of(path, end, end - begin) == digest
