"""Answers to the page's requests, as JSON."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rollout_trace import guard
from rollout_trace._version import __version__
from rollout_trace.errors import FormatError, WriteError
from rollout_trace.file.addresses import is_address, shown
from rollout_trace.file.annotate import append_notes, checked_note
from rollout_trace.file.plain import dumps
from rollout_trace.train.check_codes import CODES
from rollout_trace.view.expression_values import ExpressionError
from rollout_trace.view.index_store import IndexedFile, Row, notes_state, with_key
from rollout_trace.view.model import Summary
from rollout_trace.view.trajectory_view import TrajectoryView
from rollout_trace.view.values import encode, indented, plain

if TYPE_CHECKING:
    from rollout_trace.view.index import Index
    from rollout_trace.view.tokens import TokenTexts

MOST_STEPS = 50
"""Steps that one answer has, at most."""
MOST_ROWS = 10_000
"""Rows that one answer has, at most."""
_MOST_RAW = 2_000_000
"""Bytes of a line up to which it is shown raw."""
_KEPT_VIEWS = 16
_KEPT_BYTES = 128 << 20
"""Bytes of lines of which trajectories are kept in memory."""


class PageError(Exception):
    """The requested data is not available.

    Args:
        status: of HTTP.
        message: a sentence.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NoteValues(msgspec.Struct, forbid_unknown_fields=True):
    """Values that can be noted on the page for a trajectory."""

    reward: float | None = None
    rewards: dict[str, float] | None = None
    metrics: dict[str, float] | None = None
    metadata: dict[str, Any] | None = None


class NoteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A note for a trajectory."""

    key: str
    values: NoteValues


# Of all threads that answer, which would look at the types: file/fields.py.
_note_request = msgspec.json.Decoder(NoteRequest)
_summary = msgspec.json.Decoder(Summary)


class _Opened(NamedTuple):
    """A trajectory that is being looked at."""

    stamp: object
    """Changes with its notes and its family."""
    size: int
    view: TrajectoryView
    lock: threading.Lock


class PageData:
    """The answers. For any number of threads.

    Args:
        index: of the files.
        title: of the page.
        writable: whether notes may be written.
        decode: a tokenizer, for texts of tokens that the engine sent without any.
        tokenizer: its name.
    """

    def __init__(
        self,
        index: Index,
        *,
        title: str = "rollouts",
        writable: bool = False,
        decode: TokenTexts | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self._index = index
        self._title = title
        self._writable = writable
        self._decode = decode
        self._tokenizer = tokenizer
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._lock = threading.Lock()

    def info(self) -> bytes:
        """Returns what the page shows, and the index's progress. Checks the files for changes."""
        index = self._index
        index.refresh()
        # Before the counts: what changes in between is asked for once more.
        generation = index.generation
        progress = index.progress
        return encode(
            {
                **about(self._title, map(shown, index.paths), self._tokenizer),
                "total": index.total,
                "writable": self._writable and not all(map(is_address, index.paths)),
                "static": False,
                "indexing": None if progress is None else progress._asdict(),
                "generation": generation,
                "problems": index.problems(),
            }
        )

    def rows(self, since: int, after: int) -> bytes:
        """Rows of the list that changed after a generation, some at a time.

        Args:
            since: the generation of the answer that the page had last; 0: it had none.
            after: id of the last row of the answer before, which was not the last one; 0: this is the first.
        """
        store = self._index.store
        # Before the rows: what changes in between is asked for once more.
        epoch, generation = store.epoch, store.generation
        rows = self._index.rows(since, after, MOST_ROWS)
        last = rows[-1][0].id if len(rows) == MOST_ROWS else None
        head = encode({"generation": generation, "epoch": epoch, "after": last})
        return head[:-1] + b',"rows":[' + b",".join(with_key(json, row.key) for row, json in rows) + b"]}"

    def search(self, expression: str) -> bytes:
        """The keys of trajectories for which an expression is true, as far as they were searched."""
        try:
            found = self._index.search(expression)
        except ExpressionError as error:
            raise PageError(400, str(error)) from error
        return encode(found._asdict())

    def trajectory(self, key: str) -> bytes:
        """The outline of a trajectory. Its family stands in the list."""
        _, _, opened = self._open(key)
        with opened.lock:
            return encode(msgspec.structs.replace(opened.view.outline, family=[]))

    def steps(self, key: str, first: int, end: int) -> bytes:
        """Steps of a trajectory, at most 50."""
        _, _, opened = self._open(key)
        with opened.lock:
            return encode(opened.view.steps(first, min(end, first + MOST_STEPS)))

    def raw(self, key: str, step: int | None) -> bytes:
        """The bytes of a step's request and answer as text, where they were kept, and the line where it is not long."""
        file, row, opened = self._open(key)
        steps = opened.view.trajectory.steps
        if step is not None and not 0 <= step < len(steps):
            raise PageError(404, f"The trajectory has {len(steps)} steps, from 0 on: there is no step {step}.")
        one = None if step is None else steps[step]
        line = self._index.line(file, row) if row.length <= _MOST_RAW else None
        return encode(
            {
                "request": None if one is None else indented(one.request_bytes),
                "response": None if one is None else indented(one.response_bytes),
                "line": indented(line),
            }
        )

    def annotate(self, body: bytes) -> bytes:
        """Notes values of a trajectory; the new summary.

        Raises:
            PageError: the page may not write, or the values cannot be noted.
        """
        if not self._writable:
            raise PageError(403, "The page was opened with --read-only. To write notes, start it without that option.")
        try:
            wanted = _note_request.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise PageError(400, f"The note cannot be read: {guard.describe(error)}") from error
        file, row, _ = self._open(wanted.key)
        trajectory = self._index.trajectory(file, row)
        try:
            note = checked_note(trajectory.id, msgspec.structs.asdict(wanted.values))
            append_notes(file.path, [note])
        except (TypeError, ValueError) as error:
            raise PageError(400, str(error)) from error
        except (WriteError, OSError) as error:
            raise PageError(500, f"The note was not written: {error}") from error
        self._index.refresh(now=True)
        _, _, opened = self._open(wanted.key)
        with opened.lock:
            return with_key(encode(opened.view.summary), wanted.key)

    def _open(self, key: str) -> tuple[IndexedFile, Row, _Opened]:
        try:
            file, row = self._index.row(key)
        except KeyError as error:
            raise PageError(404, str(error.args[0])) from error
        try:
            return file, row, self._opened_view(key, file, row)
        except (OSError, EOFError, FormatError) as error:
            raise PageError(409, f"The trajectory cannot be read any more: {error}") from error

    def _opened_view(self, key: str, file: IndexedFile, row: Row) -> _Opened:
        episode = self._index.store.read("SELECT episode FROM rows WHERE id = ?", (row.id,))[0][0]
        store = self._index.store
        family = [] if episode is None else [json for _, json in store.rows("episode = ? LIMIT 1000", (episode,))]
        stamp = (row, notes_state(file.path), hash(tuple(family)))
        with self._lock:
            opened = self._opened.get(key)
            if opened is not None and opened.stamp == stamp:
                self._opened.move_to_end(key)
                return opened
        trajectory = self._index.trajectory(file, row)
        view = TrajectoryView(trajectory, decode=self._decode, family=_summaries(family))
        opened = _Opened(stamp, row.length, view, threading.Lock())
        with self._lock:
            self._opened[key] = opened
            self._opened.move_to_end(key)
            while len(self._opened) > 1 and (
                len(self._opened) > _KEPT_VIEWS or sum(one.size for one in self._opened.values()) > _KEPT_BYTES
            ):
                self._opened.popitem(last=False)
        return opened


def about(title: str, paths: Iterable[str], tokenizer: str | None) -> dict[str, Any]:
    """Returns what the page says of its files and of itself, and the grade of each code of a finding."""
    files = [{"path": path, "name": os.path.basename(path) or path} for path in paths]
    grades = {code: grade for code, (grade, _) in CODES.items()}
    return {"version": __version__, "title": title, "files": files, "tokenizer": tokenizer, "grades": grades}


def _summaries(found: Sequence[bytes]) -> list[Summary]:
    summaries = []
    for json in found:
        try:
            summaries.append(_summary.decode(json))
        except (msgspec.DecodeError, UnicodeError):
            # Half a surrogate pair, which JSON can hold and msgspec refuses.
            summaries.append(msgspec.convert(plain(_parsed(json)), Summary, strict=False))
    return sorted(summaries, key=lambda one: math.inf if one.started is None else one.started)


def _parsed(data: bytes) -> Any:
    import json

    return json.loads(data)


def error_json(message: str) -> bytes:
    """An error, as the page takes it."""
    return dumps({"error": message})
