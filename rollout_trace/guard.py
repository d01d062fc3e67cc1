"""What goes wrong in the recorder stays inside: logged once, counted, put on the step; under pytest it is raised."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.call import Call

logger = logging.getLogger("rollout_trace")


@dataclass(slots=True)
class Stats:
    """What this process has recorded since it began."""

    calls: int = 0
    """Calls begun on wrapped clients, orphans included."""
    attempts: int = 0
    """HTTP exchanges of those calls."""
    orphans: int = 0
    """Calls made outside every open trajectory."""
    orphans_dropped: int = 0
    """Orphans pushed out of the bounded list."""
    recorder_errors: int = 0
    """Failures of the recorder itself; the caller's calls went on."""


_stats = Stats()
# Reentrant: a failure may be counted while the garbage collector interrupts a count.
_lock = threading.RLock()
_said: set[str] = set()


def reset() -> None:
    """Starts counting anew; what has been said once may be said again."""
    global _stats, _lock
    _stats, _lock = Stats(), threading.RLock()
    _said.clear()


def stats() -> Stats:
    """A copy of the counters of this process."""
    with _lock:
        return Stats(**{item.name: getattr(_stats, item.name) for item in fields(Stats)})


def count(name: str, by: int = 1) -> None:
    """Adds to a counter of ``Stats``."""
    with _lock:
        setattr(_stats, name, getattr(_stats, name) + by)


def call_began() -> None:
    """Counts a call. Its own function: it runs on the path of every call."""
    with _lock:
        _stats.calls += 1


def attempt_began() -> None:
    """Counts an attempt."""
    with _lock:
        _stats.attempts += 1


def failed(hook: str, call: Call | None, error: Exception) -> None:
    """Takes note of a failure of the recorder.

    Raises:
        Exception: the failure itself, under pytest only.
    """
    if "PYTEST_CURRENT_TEST" in os.environ:
        raise error
    count("recorder_errors")
    if call is not None:
        call.faults.append(f"{hook}: {type(error).__name__}: {error}")
    if first(f"{hook}:{type(error).__name__}"):
        logger.error("recording failed in %s; the call itself goes on, its step says so", hook, exc_info=error)


def each(hook: str, *parts: Callable[[], object]) -> None:
    """Runs all parts, whatever fails in some of them; takes note of the failures when all have run."""
    failures = []
    for part in parts:
        try:
            part()
        except Exception as error:
            failures.append(error)
    for failure in failures:
        failed(hook, None, failure)


def first(key: str) -> bool:
    """True the first time a key is seen in this process: for messages that are worth one line, not thousands."""
    with _lock:
        if key in _said:
            return False
        _said.add(key)
        return True


def warn_once(key: str, message: str) -> None:
    """Logs a warning once per process."""
    if first(key):
        logger.warning("%s", message)
