"""The database of an index: where each line of the files is, and its summary, in columns to search and as JSON."""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollout_trace.file.lines import Place
from rollout_trace.view.model import Summary
from rollout_trace.view.query_sql import COLUMNS, clean, column_values
from rollout_trace.view.values import encode

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, state TEXT, notes TEXT, size INTEGER, done INTEGER,
    member INTEGER, begin INTEGER, number INTEGER, head BLOB, tail BLOB);
CREATE TABLE IF NOT EXISTS rows (
    id INTEGER PRIMARY KEY, file INTEGER, line INTEGER, part INTEGER, member INTEGER, begin INTEGER, length INTEGER,
    trajectory TEXT, {", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())});
CREATE UNIQUE INDEX IF NOT EXISTS rows_line ON rows (file, line, part);
CREATE INDEX IF NOT EXISTS rows_episode ON rows (f_episode) WHERE f_episode IS NOT NULL;
CREATE INDEX IF NOT EXISTS rows_trajectory ON rows (trajectory);
CREATE TABLE IF NOT EXISTS summaries (row INTEGER PRIMARY KEY, json BLOB);
CREATE TABLE IF NOT EXISTS problems (file INTEGER, line INTEGER, text TEXT);
CREATE INDEX IF NOT EXISTS problems_line ON problems (file, line);
CREATE TABLE IF NOT EXISTS noted (file INTEGER, trajectory TEXT, digest BLOB, PRIMARY KEY (file, trajectory));
INSERT OR IGNORE INTO meta VALUES ('generation', 1);
"""
_INSERT = f"INSERT INTO rows VALUES ({', '.join('?' * (8 + len(COLUMNS)))})"
_UPDATE = f"UPDATE rows SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE id = ?"


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
            database.executescript(_SCHEMA)

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
        return int(self.read("SELECT value FROM meta WHERE name = 'generation'")[0][0])

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
            "SELECT id, file, member, begin, line, length, part FROM rows WHERE file = ? AND line = ? AND part = ?",
            (int(file), int(line), part),
        )
        return row_of(found[0]) if found else None

    def summaries(self, rows: Iterable[tuple[int, str]]) -> list[bytes]:
        """The JSON of summaries with their keys.

        Args:
            rows: ids and keys.
        """
        with self.connection() as database:
            found = []
            for row, key in rows:
                one = database.execute("SELECT json FROM summaries WHERE row = ?", (row,)).fetchone()
                if one is not None:
                    found.append(with_key(one[0], key))
            return found


def os_path(path: str) -> bytes:
    """A path as it is stored: its name need not be UTF-8."""
    return os.fsencode(path)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def with_key(summary: bytes, key: str) -> bytes:
    """The JSON of an object with one more field, ``key``."""
    return b'{"key":"%s",%s' % (key.encode(), summary[1:])


def row_of(found: Sequence[Any]) -> Row:
    """The row of what ``id, file, member, begin, line, length, part`` are."""
    id, file, member, begin, line, length, part = found
    return Row(id, file, Place(member, begin, line), length, part)


def changed(database: sqlite3.Connection) -> None:
    """Counts a change."""
    database.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")


def add_row(database: sqlite3.Connection, row: Row, summary: Summary) -> None:
    """Adds a row; its id is not used."""
    cursor = database.execute(
        _INSERT,
        [None, row.file, row.place.number, row.part, row.place.member, row.place.begin, row.length, clean(summary.id),
         *column_values(summary)],
    )  # fmt: skip
    database.execute("INSERT INTO summaries VALUES (?, ?)", (cursor.lastrowid, encode(summary)))


def update_row(database: sqlite3.Connection, row: int, summary: Summary) -> None:
    """Replaces the summary of a row."""
    database.execute(_UPDATE, [*column_values(summary), row])
    database.execute("UPDATE summaries SET json = ? WHERE row = ?", (encode(summary), row))


def add_problem(database: sqlite3.Connection, file: int, line: int, text: str) -> None:
    """Adds a sentence on what could not be read. Line 0: of the whole file, or of its notes."""
    database.execute("INSERT INTO problems VALUES (?, ?, ?)", (file, line, clean(text)))


def delete_from(database: sqlite3.Connection, file: int, line: int) -> None:
    """Deletes what is known of the lines of a file from this number on."""
    chosen = "SELECT id FROM rows WHERE file = ? AND line >= ?"
    database.execute(f"DELETE FROM summaries WHERE row IN ({chosen})", (file, line))
    database.execute("DELETE FROM rows WHERE file = ? AND line >= ?", (file, line))
    database.execute("DELETE FROM problems WHERE file = ? AND line >= ?", (file, line))


def forget_file(database: sqlite3.Connection, file: int) -> None:
    """Deletes all that is known of a file. The keys of its rows are never used again."""
    delete_from(database, file, 0)
    database.execute("DELETE FROM noted WHERE file = ?", (file,))
    database.execute("DELETE FROM files WHERE id = ?", (file,))
