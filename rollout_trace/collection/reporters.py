"""Reporters of the progress of a run of ``collect``: a bar, lines, a user's function, and ``status.json``."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace import guard
from rollout_trace.collection.progress import Progress, Reporter
from rollout_trace.collection.progress_lines import Lines
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import replacing

if TYPE_CHECKING:
    from rollout_trace.collection.summary import CollectSummary
    from rollout_trace.train.groups import Group

SCHEMA = "rollout-trace-status/1"
EVERY = 1.0
"""Seconds between two writes."""
_PATIENCE = 5.0
"""Seconds to wait at the end for the last write."""


class Reporters(Reporter):
    """Several as one. What fails in one of them is logged, and stops neither the others nor the run."""

    def __init__(self, *every: Reporter) -> None:
        self._every = every

    def begin(self, progress: Progress) -> None:
        self._tell("begin", progress)

    def update(self, progress: Progress) -> None:
        self._tell("update", progress)

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        self._tell("end", progress, summary)

    def note(self, text: str) -> None:
        self._tell("note", text)

    def _tell(self, what: str, *arguments: Any) -> None:
        guard.run_all("progress", *(partial(getattr(one, what), *arguments) for one in self._every))


class Told:
    """Calls a function of the user's, given as the argument ``name``, until it raises once. None is not called."""

    def __init__(self, function: Callable[[Any], object] | None, name: str) -> None:
        self._function = function
        self._name = name

    def tell(self, what: Callable[[], Any]) -> None:
        """Calls it with what a function returns."""
        try:
            if self._function is not None:
                self._function(what())
        except Exception as error:
            self._function = None
            guard.warn(f"the function given as {self._name}= raised {guard.describe(error)}; it is not called again")


def figures_of(progress: Progress, group: Group) -> dict[str, float]:
    """The figures of a stream when a group was handed over; what is not known is not among them."""
    figures = {
        "groups": progress.taken,
        "ready": progress.ready,
        "in_flight": progress.running,
        "stale": progress.stale,
        "dropped": progress.dropped,
        "reward": group.mean,
        "tokens_per_second": progress.tokens_per_second,
        "exact_turns": progress.exact_turns,
    }
    return {name: value for name, value in figures.items() if value is not None}


class Callback(Reporter):
    """Calls a function of the user's with each progress. Once it has raised it is not called again."""

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._told = Told(function, "progress")

    def begin(self, progress: Progress) -> None:
        self._told.tell(lambda: progress)

    update = begin

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        self.begin(progress)


def reporter_for(progress: bool | Callable[[Progress], object] | None) -> Reporter:
    """The reporter for ``progress``: a bar or lines (None, True), nobody (False), or a function. Raises TypeError."""
    if progress is False:
        return Reporter()
    if progress is None or progress is True:
        if not _has_bar():
            return Lines()
        from rollout_trace.collection.progress_bar import Bar

        return Bar()
    if not callable(progress) or iscoroutinefunction(progress):
        raise TypeError(f"progress is {brief(progress)}; give None, True, False, or a function that is not async.")
    return Callback(progress)


def _has_bar() -> bool:
    """Whether a bar can be shown: stderr is a terminal that moves its cursor, no CI's log, and rich is installed."""
    stderr = sys.stderr
    try:
        is_terminal = stderr is not None and stderr.isatty()
    except ValueError:  # It is closed.
        return False
    if not is_terminal or os.environ.get("TERM", "").lower() in ("dumb", "unknown") or os.environ.get("CI"):
        return False
    return find_spec("rich") is not None


def write_status(path: str | os.PathLike[str], progress: Progress, *, started_at: datetime | None = None) -> None:
    """Writes the progress, and ``schema``, ``pid``, ``host`` and times, to a file: readers never see a part of it."""
    now = datetime.now(timezone.utc)
    status: dict[str, Any] = {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": started_at or now,
        "updated_at": now,
        **asdict(progress),
        "done": progress.done,
    }
    data = orjson.dumps(_sound(status), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    with replacing(path, fsync=False) as file:
        file.write(data)


def _sound(value: Any) -> Any:
    """Escapes invalid Unicode in a text, as in some file names, because JSON cannot hold it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_sound(name): _sound(one) for name, one in value.items()}
    return value


class StatusFile(Reporter):
    """Keeps the file of a run up to date, at most once a second, on its own thread: a slow disk holds up nobody."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._written = float("-inf")
        self._started_at = datetime.now(timezone.utc)
        self._waiting: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, progress: Progress) -> None:
        self._started_at = datetime.now(timezone.utc)
        self._thread = threading.Thread(target=self._write_all, name="rollout_trace status", daemon=True)
        self._thread.start()
        self.update(progress)

    def update(self, progress: Progress) -> None:
        """Writes the file, unless it was written within the last second or a write is still in progress."""
        now = self._clock()
        if now - self._written >= EVERY and self._waiting.empty():
            self._written = now
            self._waiting.put(progress)

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        """Writes it a last time, and waits for that."""
        self._waiting.put(progress)
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                guard.warn(f"{self._path} is not up to date: writing it takes longer than {_PATIENCE:g} seconds")

    def _write_all(self) -> None:
        while (progress := self._waiting.get()) is not None:
            try:
                write_status(self._path, progress, started_at=self._started_at)
            except Exception as error:
                guard.warn_once(
                    f"status:{self._path}",
                    f"{self._path} cannot be written ({guard.describe(error)}); the run goes on without it",
                )
