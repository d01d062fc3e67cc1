"""An index of files of trajectories: where each line is, and its summary. Kept in a cache, built in the background.

Nothing is written beside the files.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rollout_trace import guard
from rollout_trace.file.addresses import absolute, is_address
from rollout_trace.file.lines import line_at
from rollout_trace.file.notes import Notes, load_notes
from rollout_trace.file.reader import expand_paths
from rollout_trace.view.index_build import Builder, Stopped, build, prepare, trajectory_of
from rollout_trace.view.index_cache import KeptStore
from rollout_trace.view.index_store import FileState, IndexedFile, Row, file_state, is_up_to_date, notes_state
from rollout_trace.view.search import Found, Search

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from rollout_trace.data.trajectory import Trajectory

_LARGE = 8 << 20
"""Bytes to be read for which a process of its own is started."""
_CHECKED_EVERY, _ADDRESSES_EVERY = 0.5, 30.0
"""Seconds between two looks at whether files have changed."""
_SEARCHES = 8
"""Searches that are kept."""


class Progress(NamedTuple):
    """Progress of reading the files, in bytes."""

    done: int
    of: int


class Index:
    """The index of what paths name: files, folders, patterns, addresses. Folders and patterns may get more files.

    Args:
        paths: as ``rt.read`` takes them.
        cache: folder to keep the index in. None: it is not kept.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: a path is no file of lines, or an address cannot be read.
    """

    def __init__(self, paths: Iterable[str], cache: Path | None = None) -> None:
        self._wanted = [absolute(path) for path in paths]
        self.paths = expand_paths(self._wanted)
        self._kept = KeptStore(self._wanted, cache)
        self.store = self._kept.store
        self._searches: OrderedDict[str, Search] = OrderedDict()
        self._more = 0
        """Counts what changes beside the database."""
        self._builder: Builder | None = None
        self._stop: Event | None = None
        """Ends the process that builds."""
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._is_closed = False
        self._checked: dict[str, float] = {}
        """By path: when it was looked at."""
        self._states: dict[str, tuple[FileState, str]] = {}
        """By path: the file and its notes, as they were then."""
        self._tried: dict[str, tuple[FileState, str]] = {}
        """The same, when the index was brought up to date last: what it could not do is not tried again."""
        self._notes: dict[str, tuple[str, Notes | None]] = {}
        """By path: the notes that were read last, and their state."""
        self._problem: str | None = None
        """Why the index could not be built."""
        self.refresh()

    def close(self) -> None:
        """Stops the work in progress. A stored index continues from there next time."""
        self._is_closed = True
        if self._stop is not None:
            self._stop.set()
        for search in self._searches.values():
            search.close()
        if self._thread is not None:
            self._thread.join(10)
        self._kept.close()

    # Bringing it up to date

    def refresh(self, *, now: bool = False) -> None:
        """Looks whether files have changed, and if so brings the index up to date in the background.

        Args:
            now: also where it was looked a moment ago.
        """
        with self._guard:
            if now:
                self._checked.clear()
            if self._is_closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._look()
            pending = self._pending()
            if not pending:
                return
            self._tried = dict(self._states)
            self._thread = threading.Thread(target=self._build, args=(list(self.paths), pending), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Waits until the index has what was in the files when this was called."""
        while True:
            thread = self._thread
            if thread is not None:
                thread.join()
            self.refresh(now=True)
            if self._thread is thread:
                return

    def _look(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            # A folder may be empty for a moment. What was there is shown until there is something else.
            if any(not is_address(path) for path in self._wanted):
                self.paths = expand_paths(self._wanted) if self._is_due("", is_far=False) else self.paths
        for path in self.paths:
            if self._is_due(path, is_far=is_address(path)):
                try:
                    self._states[path] = (file_state(path), notes_state(path))
                except OSError:
                    self._states.pop(path, None)

    def _is_due(self, path: str, *, is_far: bool) -> bool:
        now = time.monotonic()
        due = now - self._checked.get(path, float("-inf")) > (_ADDRESSES_EVERY if is_far else _CHECKED_EVERY)
        if due:
            self._checked[path] = now
        return due

    def _pending(self) -> int:
        """Bytes that are to be read; 1 where there is only something else to be done."""
        known = {file.path: file for file in self.store.files()}
        total = int(any(path not in self.paths for path in known))
        for path in self.paths:
            now, file = self._states.get(path), known.get(path)
            if now is None or now == self._tried.get(path):
                continue
            if file is None or not is_up_to_date(file, *now):
                read = file.done if file is not None and file.done <= now[0].size else 0
                total += max(1, now[0].size - max(0, read))
        return total

    def _build(self, paths: list[str], pending: int) -> None:
        self._problem = None
        try:
            if pending > _LARGE:
                context = multiprocessing.get_context("spawn")
                self._stop = context.Event()
                if self._is_closed:
                    raise Stopped
                with ProcessPoolExecutor(1, context, prepare, (self._stop,)) as pool:
                    pool.submit(build, self.store.path, paths).result()
            else:
                self._builder = self._builder or Builder(self.store, lambda: not self._is_closed)
                self._builder.run(paths)
        except Stopped:
            pass
        except Exception as error:
            if not self._is_closed:
                self._problem = f"the index could not be built: {guard.describe(error)}"
                self._found_more()

    def _found_more(self) -> None:
        self._more += 1

    def _read(self, file: IndexedFile, row: Row) -> Trajectory:
        return self.trajectory(file, row, with_media=False)

    # What it has

    @property
    def generation(self) -> int:
        """A number that grows with every change."""
        return self.store.generation + self._more

    @property
    def total(self) -> int:
        """Number of trajectories."""
        return int(self.store.read("SELECT count(*) FROM rows")[0][0])

    @property
    def progress(self) -> Progress | None:
        """Progress of reading; None while nothing is read."""
        if self._thread is None or not self._thread.is_alive():
            return None
        known = {file.path: file for file in self.store.files()}
        sizes = {path: now[0].size for path, now in self._states.items()}
        done = sum(min(max(0, known[path].done), size) for path, size in sizes.items() if path in known)
        return Progress(done, sum(sizes.values()))

    def problems(self, most: int = 20) -> list[str]:
        """Returns the first sentences on what could not be read."""
        found = self.store.read("SELECT text FROM problems ORDER BY file, line LIMIT ?", (most + 1,))
        texts = [str(text) for (text,) in found]
        if len(texts) > most:
            count = self.store.read("SELECT count(*) FROM problems")[0][0]
            texts[most:] = [f"and {count - most} more; rollout-trace check --format lists them all."]
        return [*([self._problem] if self._problem else []), *texts]

    def rows(self, since: int, after: int, limit: int) -> list[tuple[Row, bytes]]:
        """Rows that changed after a generation, with the JSON of their summaries, by their ids.

        Args:
            since: a generation.
            after: id of the last row that is known already.
            limit: number of rows, at most.
        """
        return list(self.store.rows("generation > ? AND id > ? ORDER BY id LIMIT ?", (since, after, limit)))

    def search(self, expression: str) -> Found:
        """The keys of the rows for whose trajectories an expression is true, as far as they were searched.

        Raises:
            ExpressionError: it is no expression.
        """
        with self._guard:
            search = self._searches.get(expression)
            if search is None:
                search = self._searches[expression] = Search(self.store, self._read, self._found_more, expression)
                while len(self._searches) > _SEARCHES:
                    self._searches.popitem(last=False)[1].close()
            self._searches.move_to_end(expression)
        return search.found()

    def files(self) -> dict[int, IndexedFile]:
        """The files by their numbers."""
        return {file.id: file for file in self.store.files()}

    def row(self, key: str) -> tuple[IndexedFile, Row]:
        """The file and the place of a key.

        Raises:
            KeyError: there is none.
        """
        row = self.store.row(key)
        file = None if row is None else self.files().get(row.file)
        if row is None or file is None:
            raise KeyError(
                f"There is no trajectory {key}: its file was replaced, or the address belongs to another page."
            )
        return file, row

    def line(self, file: IndexedFile, row: Row) -> bytes:
        """The line of a row.

        Raises:
            OSError, EOFError: it cannot be read.
        """
        return line_at(file.path, row.place, row.length, lambda: self.store.lines_path.open("rb"))

    def trajectory(self, file: IndexedFile, row: Row, *, with_media: bool = True) -> Trajectory:
        """The trajectory of a row, with its notes.

        Raises:
            OSError, EOFError, FormatError: it cannot be read any more.
        """
        trajectory = trajectory_of(file.path, row.place.number, self.line(file, row), with_media=with_media)
        notes = self._notes_of(file.path)
        if notes is not None:
            notes.apply(trajectory)
        return trajectory

    def _notes_of(self, path: str) -> Notes | None:
        state = notes_state(path)
        known = self._notes.get(path)
        if known is None or known[0] != state:
            # What is wrong with notes is among the problems of the index.
            known = self._notes[path] = (state, load_notes(path, lambda error: None))
        return known[1]
