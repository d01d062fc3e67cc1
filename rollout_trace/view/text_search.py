"""Looks for texts in the lines of indexed files: in the bytes, with what JSON makes of the text."""

from __future__ import annotations

import bisect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import orjson

from rollout_trace.file.addresses import open_binary
from rollout_trace.file.lines import Damaged, NumberedLines
from rollout_trace.view.index_store import IndexedFile, Row, Store, row_of

_WINDOW = 8 << 20
"""Bytes that are read at once."""
_KEPT = 8
"""Texts whose results are kept."""


def forms(text: str) -> list[bytes]:
    """What a text can be in a line of JSON, in lower case as far as it is ASCII."""
    found = [_ascii_form(text)]
    try:
        found.insert(0, orjson.dumps(text)[1:-1])
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        # Half of a surrogate pair: a line can hold it as an escape alone.
        pass
    return list(dict.fromkeys(form.lower() for form in found))


def _ascii_form(text: str) -> bytes:
    import json

    return json.dumps(text)[1:-1].encode()


class TextSearch:
    """What was found of a few texts. A search goes on in the background, and goes on again when files have grown.

    Args:
        store: the database.
        found_more: called when a search that took long has found something, or has ended.
    """

    def __init__(self, store: Store, found_more: Callable[[], None]) -> None:
        self._store = store
        self._found_more = found_more
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, text: str, wait: float) -> tuple[list[int], float]:
        """Ids of the rows whose lines hold a text, as far as they were searched, and the share that was searched.

        Args:
            text: to look for; letters of ASCII match in both cases.
            wait: seconds that a result is waited for.
        """
        with self._lock:
            search = self._searches.get(text)
            if search is None:
                search = self._searches[text] = _Search(self._store, text, self._found_more)
                while len(self._searches) > _KEPT:
                    self._searches.popitem(last=False)[1].is_wanted = False
            self._searches.move_to_end(text)
        search.go_on(wait)
        return list(search.rows), search.share

    def close(self) -> None:
        """Ends the searches."""
        with self._lock:
            for search in self._searches.values():
                search.is_wanted = False


class _Search:
    """The search for one text."""

    def __init__(self, store: Store, text: str, found_more: Callable[[], None]) -> None:
        self._store = store
        self._forms = forms(text)
        self._found_more = found_more
        self._lock = threading.Lock()
        self._searched = ""
        """The state of the files up to which everything was searched."""
        self.is_wanted = True
        self.rows: list[int] = []
        self.share = 0.0
        self._thread: threading.Thread | None = None

    def go_on(self, wait: float) -> None:
        """Starts to search, unless nothing is new, or it is being done. Waits at most so many seconds for the end."""
        with self._lock:
            state, thread = self._state(), self._thread
            if state != self._searched and (thread is None or not thread.is_alive()):
                self._thread = thread = threading.Thread(target=self._run, args=(state,), daemon=True)
                thread.start()
        if thread is not None:
            thread.join(wait)

    def _state(self) -> str:
        return "|".join(f"{file.id}:{file.state}:{file.done}" for file in self._store.files())

    def _run(self, state: str) -> None:
        files = self._store.files()
        total, done = sum(max(1, file.size) for file in files), 0
        told = time.monotonic()
        found: list[int] = []
        for file in files:
            for row in self._file(file):
                if not self.is_wanted:
                    return
                if row is not None:
                    found.append(row)
                if time.monotonic() - told > 1:
                    self._tell(found, done / total)
                    told = time.monotonic()
            done += max(1, file.size)
        self._searched = state
        self.rows, self.share = found, 1.0
        self._found_more()

    def _tell(self, found: list[int], share: float) -> None:
        # With what an earlier search has found, before files grew.
        self.rows, self.share = list({**dict.fromkeys(self.rows), **dict.fromkeys(found)}), share
        self._found_more()

    def _file(self, file: IndexedFile) -> Iterator[int | None]:
        """Ids of the rows of a file that hold the text; None now and then."""
        try:
            with open_binary(file.path) as handle:
                is_packed = NumberedLines(handle, file.path).is_packed
            yield from (self._packed if is_packed else self._plain)(file.path, self._rows(file, "member != -1"))
            if is_packed:
                yield from self._plain(str(self._store.lines_path), self._rows(file, "member = -1"))
        except (OSError, ImportError):
            # The file is gone; the index will say so.
            return

    def _rows(self, file: IndexedFile, condition: str) -> Iterator[Row]:
        sql = "SELECT id, file, member, begin, line, length, part FROM rows WHERE file = ? AND "
        return map(row_of, self._store.each(f"{sql} {condition} ORDER BY line, part", (file.id,)))

    def _plain(self, path: str, rows: Iterator[Row]) -> Iterator[int | None]:
        following = next(rows, None)
        if following is None:
            return
        with open_binary(path) as handle:
            while following is not None:
                window, begin = [following], following.place.begin
                following = next(rows, None)
                while following is not None and following.place.begin + following.length - begin <= _WINDOW:
                    window.append(following)
                    following = next(rows, None)
                handle.seek(begin)
                data = handle.read(window[-1].place.begin + window[-1].length - begin).lower()
                yield None
                yield from self._in_window(data, begin, window)

    def _in_window(self, data: bytes, base: int, rows: Sequence[Row]) -> list[int]:
        """Ids of the rows in a window that hold one of the forms."""
        begins = [row.place.begin - base for row in rows]
        found = set()
        for form in self._forms:
            at = data.find(form)
            while at >= 0:
                index = bisect.bisect_right(begins, at) - 1
                end = begins[index] + rows[index].length
                if at + len(form) <= end:
                    found.add(rows[index].id)
                # The rest of that line need not be looked at. Behind its end there may be lines that are no rows.
                at = data.find(form, max(end, at + 1))
        return sorted(found)

    def _packed(self, path: str, rows: Iterator[Row]) -> Iterator[int | None]:
        row = next(rows, None)
        with open_binary(path) as handle:
            for number, line in NumberedLines(handle, path):
                while row is not None and row.place.number < number:
                    row = next(rows, None)
                if row is None:
                    return
                yield None
                if row.place.number == number and not isinstance(line, Damaged):
                    data = line.lower()
                    if any(form in data for form in self._forms):
                        yield row.id
