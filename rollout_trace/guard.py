"""What goes wrong in the recorder stays inside: logged once, counted, put on the step; under pytest it is raised."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

from rollout_trace._field_docs import document_fields

logger = logging.getLogger("rollout_trace")


@document_fields
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


class HoldsFaults(Protocol):
    """Whatever a failure of the recorder is noted on: a call, or one attempt of it."""

    @property
    def faults(self) -> list[str]:
        """What failed, a text for each failure."""


def failed(hook: str, call: HoldsFaults | None, error: Exception, message: str | None = None) -> None:
    """Takes note of a failure of the recorder.

    The log gets one line for all of a kind, or each ``message``; tracebacks only at the level DEBUG.

    Raises:
        Exception: the failure itself, under pytest only.
    """
    if "PYTEST_CURRENT_TEST" in os.environ:
        raise error
    count("recorder_errors")
    if call is not None:
        call.faults.append(f"{hook}: {described(error)}")
    if message is None and not first(f"{hook}:{type(error).__name__}"):
        return
    on = "the agent goes on" if call is None else "the call itself goes on, its step says so"
    logger.error("%s", printable(message or f"recording failed in {hook}{_place(error)}: {described(error)}; {on}"))
    if logger.isEnabledFor(logging.DEBUG):
        lines = "".join(traceback.format_exception(error)).splitlines()
        # Indented: no line of somebody else's text begins like one of the log.
        logger.debug("the traceback:\n%s", "\n".join(f"    {printable(line)}" for line in lines))


def described(error: BaseException) -> str:
    """An exception's class and message on one line."""
    try:
        return printable(f"{type(error).__name__}: {error}", 500)
    except Exception as failure:
        return f"{type(error).__name__} (its __str__ raised {type(failure).__name__})"


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__, -1)
    return f" ({os.path.basename(frames[0].filename)}, line {frames[0].lineno})" if frames else ""


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
    """Logs a warning, the first time that this process gives one with this key."""
    if first(key):
        warn(message)


def warn(message: str) -> None:
    """Logs a warning."""
    logger.warning("%s", printable(message))


def printable(text: str, limit: int = 2000) -> str:
    """A text on one line, at most ``limit`` characters, with what a terminal would act on escaped.

    For what a model, a server or a user wrote: control characters, line ends, marks that change the direction.
    """
    text = text if len(text) <= limit else f"{text[: limit - 3]}..."
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
