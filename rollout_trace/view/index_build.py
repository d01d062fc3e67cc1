"""Builds an index: reads what is new in files, and applies notes that are new."""

from __future__ import annotations

import hashlib
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rollout_trace import guard
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import open_binary, shown
from rollout_trace.file.decode import decode
from rollout_trace.file.line_format import BadLine, at_any_depth
from rollout_trace.file.lines import FAR, Damaged, LineStore, NumberedLines, Place, SplitLine, line_at
from rollout_trace.file.media import MissingMedia, name_of_folder, restore
from rollout_trace.file.notes import Notes, load_notes
from rollout_trace.view.index_store import (
    FileState,
    IndexedFile,
    Row,
    Store,
    add_problem,
    add_row,
    changed,
    clean,
    continues,
    delete_from,
    digests,
    file_state,
    forget_file,
    is_up_to_date,
    notes_state,
    os_path,
    rows_of_trajectory,
    update_row,
)
from rollout_trace.view.model import Summary
from rollout_trace.view.summary import summarize

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.records import NoteRecord

_MOST_PROBLEMS = 1000
"""Of one file, that are kept."""
_PAUSE = 0.5
"""Seconds between two commits."""


class Stopped(Exception):
    """It was asked to stop."""


class Builder:
    """Brings an index up to date, as often as it is asked to. For one thread.

    Args:
        store: the database.
        is_wanted: asked often; False: stop.
    """

    def __init__(self, store: Store, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._store = store
        self._is_wanted = is_wanted
        self._notes: dict[str, tuple[str, Notes | None, list[str]]] = {}
        """By path: state of the notes, the notes, and what is wrong with them."""

    def run(self, paths: Iterable[str]) -> None:
        """Reads what is new of the files ``paths``, and forgets others.

        Raises:
            Stopped: it was asked to.
            OSError: the index cannot be written.
        """
        wanted = list(paths)
        with self._store.connection() as database:
            gone = [file for file in self._store.files() if file.path not in set(wanted)]
            for file in gone:
                forget_file(database, file.id)
                self._notes.pop(file.path, None)
            if gone:
                changed(database)
        for path in wanted:
            try:
                self._update(path)
            except (OSError, ImportError) as error:
                self._could_not_be_read(path, error)

    def _update(self, path: str) -> None:
        now, notes_now = file_state(path), notes_state(path)
        known = next((file for file in self._store.files() if file.path == path), None)
        if known is not None and is_up_to_date(known, now, notes_now):
            return
        if known is not None and not continues(known, now):
            with self._store.connection() as database:
                forget_file(database, known.id)
            known = None
        if known is None:
            known = self._new_file(path, now)
        if known.notes != notes_now:
            self._apply_notes(known, notes_now)
        if known.state != now.state or known.done < known.size:
            self._read(known, now)

    def _new_file(self, path: str, now: FileState) -> IndexedFile:
        head, tail = digests(path, now.size, Place(), is_packed=False)
        with self._store.connection() as database:
            cursor = database.execute(
                "INSERT INTO files VALUES (NULL, ?, ?, '', ?, -1, 0, 0, 1, ?, ?)",
                (os_path(path), now.state, now.size, head, tail),
            )
            changed(database)
            assert cursor.lastrowid is not None
            return IndexedFile(cursor.lastrowid, path, now.state, "", now.size, -1, Place(), head, tail)

    def _could_not_be_read(self, path: str, error: Exception) -> None:
        text = f"{shown(path)} could not be read: {guard.describe(error)}"
        with self._store.connection() as database:
            values = (os_path(path),)
            database.execute("INSERT OR IGNORE INTO files VALUES (NULL, ?, '', '', 0, 0, 0, 0, 1, x'', x'')", values)
            file = database.execute("SELECT id FROM files WHERE path = ?", values).fetchone()[0]
            if not database.execute("SELECT 1 FROM problems WHERE text = ?", (clean(text),)).fetchone():
                add_problem(database, file, 0, text)
                changed(database)

    # The lines of a file

    def _read(self, file: IndexedFile, now: FileState) -> None:
        _, notes, _ = self._notes_of(file)
        with ExitStack() as stack:
            database = stack.enter_context(self._store.connection())
            handle = stack.enter_context(open_binary(file.path))
            delete_from(database, file.id, file.rest.number)
            lines = NumberedLines(handle, file.path, start=file.rest)
            reading = _Reading(database, self._store, file, notes, stack)
            committed, pause = time.monotonic(), _PAUSE / 5
            for number, line in lines:
                reading.add(number, line, lines)
                if time.monotonic() - committed > pause:
                    if not self._is_wanted():
                        raise Stopped
                    self._commit(database, file, now, lines, min(handle.tell(), now.size - 1))
                    committed, pause = time.monotonic(), _PAUSE
            self._commit(database, file, now, lines, now.size)

    def _commit(
        self, database: sqlite3.Connection, file: IndexedFile, now: FileState, lines: NumberedLines, done: int
    ) -> None:
        rest = lines.rest
        head, tail = digests(file.path, now.size, rest, is_packed=lines.is_packed)
        database.execute(
            "UPDATE files SET state = ?, size = ?, done = ?, member = ?, begin = ?, number = ?, head = ?, tail = ? "
            "WHERE id = ?",
            (now.state, now.size, done, *rest, head, tail, file.id),
        )
        changed(database)
        database.commit()

    # Notes

    def _notes_of(self, file: IndexedFile) -> tuple[str, Notes | None, list[str]]:
        now = notes_state(file.path)
        known = self._notes.get(file.path)
        if known is None or known[0] != now:
            problems: list[str] = []
            known = (now, load_notes(file.path, lambda error: problems.append(str(error))), problems)
            self._notes[file.path] = known
        return known

    def _apply_notes(self, file: IndexedFile, now: str) -> None:
        """Sums up again what is noted otherwise than when it was summed up."""
        _, notes, problems = self._notes_of(file)
        digests_now = {clean(name): _digest(note) for name, note in (() if notes is None else notes.items())}
        with self._store.connection() as database:
            before = dict(database.execute("SELECT trajectory, digest FROM noted WHERE file = ?", (file.id,)))
            for name in [one for one in {**before, **digests_now} if before.get(one) != digests_now.get(one)]:
                self._sum_up_again(database, file, name, notes)
            database.execute("DELETE FROM noted WHERE file = ?", (file.id,))
            database.executemany("INSERT INTO noted VALUES (?, ?, ?)", [(file.id, *one) for one in digests_now.items()])
            database.execute("UPDATE files SET notes = ? WHERE id = ?", (now, file.id))
            database.execute("DELETE FROM problems WHERE file = ? AND line = 0", (file.id,))
            for problem in problems[:_MOST_PROBLEMS]:
                add_problem(database, file.id, 0, problem)
            changed(database)

    def _sum_up_again(
        self, database: sqlite3.Connection, file: IndexedFile, trajectory_id: str, notes: Notes | None
    ) -> None:
        for row in rows_of_trajectory(database, file.id, trajectory_id):
            try:
                line = line_at(file.path, row.place, row.length, lambda: self._store.lines_path.open("rb"))
                trajectory = trajectory_of(file.path, row.place.number, line, with_media=False)
            except (OSError, EOFError, FormatError):
                # The file was changed since: it will be read anew.
                continue
            update_row(database, row.id, _summary(trajectory, notes))


class _Reading:
    """The lines of one file, as they are added to the database."""

    def __init__(
        self, database: sqlite3.Connection, store: Store, file: IndexedFile, notes: Notes | None, stack: ExitStack
    ) -> None:
        self._database = database
        self._store = store
        self._file = file
        self._notes = notes
        self._lines = stack.enter_context(closing(LineStore(lambda: store.lines_path.open("ab"))))
        count = database.execute("SELECT count(*) FROM problems WHERE file = ?", (file.id,)).fetchone()
        self._problems = int(count[0])

    def add(self, number: int, line: bytes | Damaged, lines: NumberedLines) -> None:
        """Adds what a line holds: a trajectory, or a problem."""
        path = self._file.path
        if isinstance(line, Damaged):
            self._problem(number, f"{path}, line {number}: {line}")
            return
        place = lines.place
        try:
            trajectory = trajectory_of(path, number, line, with_media=False)
        except FormatError as error:
            self._problem(number, str(error))
            if isinstance(line, SplitLine):
                self._add_last_member(number, line, lines)
            return
        self._add(trajectory, place, bytes(line), lines, 0)

    def _add_last_member(self, number: int, line: SplitLine, lines: NumberedLines) -> None:
        """The member before it may be damaged without its newline: what follows is a line of its own."""
        data = line.last_member()
        try:
            trajectory = trajectory_of(self._file.path, number, data, with_media=False)
        except FormatError:
            return
        place = lines.place
        self._add(trajectory, place._replace(begin=place.begin + line.last_member_offset), data, lines, 1)

    def _add(self, trajectory: Trajectory, place: Place, line: bytes, lines: NumberedLines, part: int) -> None:
        if lines.is_packed and place.begin > FAR:
            place = self._lines.keep(line, place.number)
        row = Row(0, self._file.id, place, len(line), part)
        add_row(self._database, row, _summary(trajectory, self._notes))

    def _problem(self, number: int, text: str) -> None:
        self._problems += 1
        if self._problems < _MOST_PROBLEMS:
            add_problem(self._database, self._file.id, number, text)
        elif self._problems == _MOST_PROBLEMS:
            more = f"{self._file.path}: further lines could not be read; rollout-trace check --format lists them all."
            add_problem(self._database, self._file.id, number, more)


def _summary(trajectory: Trajectory, notes: Notes | None) -> Summary:
    try:
        if notes is not None:
            notes.apply(trajectory)
        return summarize(trajectory)
    except Exception as error:
        # It must still be in the list, to be looked at.
        return Summary(id=trajectory.id, error=f"it could not be summed up: {guard.describe(error)}")


def _digest(note: NoteRecord) -> bytes:
    try:
        data = msgspec.json.encode(note)
    except UnicodeEncodeError:
        data = repr(note).encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=16).digest()


def trajectory_of(path: str, number: int, line: bytes, *, with_media: bool) -> Trajectory:
    """The trajectory of a line, without its notes.

    Args:
        path: of the file.
        number: of the line.
        line: its bytes.
        with_media: False: references to media stay in their places. So they do where the media are missing.

    Raises:
        FormatError: the line is none.
    """
    if with_media:
        try:
            line = restore(line, name_of_folder(path))
        except (MissingMedia, OSError):
            pass
    try:
        return at_any_depth(decode, line)
    except BadLine as error:
        raise error.at(f"{path}, line {number}") from error


# In a process of its own, so that the one that serves the page has its time for the page

_stop: Event | None = None


def prepare(stop: Event) -> None:
    """Prepares a process: it ends when ``stop`` is set, or its parent is gone. Ctrl-C is its parent's."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def build(database: Path, paths: list[str]) -> None:
    """Brings an index up to date.

    Raises:
        Stopped: it was asked to.
        OSError: the index cannot be written.
    """
    parent = parent_process()
    store = Store(database)
    try:
        Builder(store, lambda: not (_stop and _stop.is_set()) and (parent is None or parent.is_alive())).run(paths)
    finally:
        store.close()
