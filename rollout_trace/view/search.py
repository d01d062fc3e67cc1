"""Searches whole trajectories with an expression, for what summaries do not tell: in the background, line by line."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from rollout_trace.errors import FormatError
from rollout_trace.view.expression import Expression
from rollout_trace.view.expression_values import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view.index_store import IndexedFile, Row, Store

WAIT = 1.5
"""Seconds that an answer waits for the end of a search."""


class Found(NamedTuple):
    """Results of a search so far."""

    keys: list[str]
    share: float
    """Of the rows, that were searched: 1 at its end."""
    problem: str | None
    """Why the expression could not be evaluated for a trajectory: the first of these."""


class Search:
    """A search that continues when files have grown.

    Args:
        store: the database of an index.
        read: gives the trajectory of a row, whose file is given too.
        found_more: called when a search that takes long has found something, or has ended.
        expression: in Python's syntax.

    Raises:
        ExpressionError: it is no expression.
    """

    def __init__(
        self,
        store: Store,
        read: Callable[[IndexedFile, Row], Trajectory],
        found_more: Callable[[], None],
        expression: str,
    ) -> None:
        self._store = store
        self._read = read
        self._found_more = found_more
        self._expression = Expression(expression)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = True
        self._searched = (0, 0)
        """Generation and epoch up to which everything was searched."""
        self._keys: dict[str, None] = {}
        self._share = 0.0
        self._problem: str | None = None

    def close(self) -> None:
        """Ends it."""
        self._is_wanted = False

    def found(self) -> Found:
        """Returns the results. Starts searching if anything is new, and waits briefly for the end."""
        with self._lock:
            store, thread = self._store, self._thread
            state = (store.generation, store.epoch)
            if state != self._searched and (thread is None or not thread.is_alive()):
                self._thread = thread = threading.Thread(target=self._run, args=state, daemon=True)
                thread.start()
        if thread is not None:
            thread.join(WAIT)
        return Found(list(self._keys), self._share, self._problem)

    def _run(self, generation: int, epoch: int) -> None:
        store, files = self._store, {file.id: file for file in self._store.files()}
        since, known = self._searched
        if known != epoch:
            since, self._keys = 0, {}
        total = max(1, store.read("SELECT count(*) FROM rows WHERE generation > ?", (since,))[0][0])
        told, self._share, self._problem = time.monotonic(), 0.0, None
        for number, (row, _) in enumerate(store.rows("generation > ? ORDER BY file, line, part", (since,))):
            if not self._is_wanted:
                return
            self._keys.pop(row.key, None)
            try:
                if self._expression(self._read(files[row.file], row)):
                    self._keys[row.key] = None
            except ExpressionError as error:
                self._problem = self._problem or str(error)
            except (OSError, EOFError, FormatError, KeyError):
                # The file was changed since, and the index will say so.
                continue
            if time.monotonic() - told > 1:
                self._share, told = number / total, time.monotonic()
                self._found_more()
        self._searched, self._share = (generation, epoch), 1.0
        self._found_more()
