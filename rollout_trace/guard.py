"""Failures of the recorder never reach the caller: they are logged once, counted and put on the step.

Under pytest they are raised instead.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Protocol

from rollout_trace import credentials
from rollout_trace._field_docs import document_fields

logger = logging.getLogger("rollout_trace")
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@document_fields
@dataclass(slots=True)
class Stats:
    """Counters of this process since its start."""

    calls: int = 0
    """Number of calls begun on wrapped clients, including orphans."""
    attempts: int = 0
    """Number of HTTP exchanges of these calls."""
    orphans: int = 0
    """Number of calls made outside any open trajectory."""
    orphans_dropped: int = 0
    """Number of orphans dropped because the list of orphans was full."""
    not_model_calls: int = 0
    """Number of requests left out because their answers showed that they were not model calls."""
    trajectories_written: int = 0
    """Number of trajectories written by recordings."""
    trajectories_lost: int = 0
    """Number of trajectories that a recording could not write, or that closed after their recording had ended."""
    recorder_errors: int = 0
    """Number of failures of the recorder itself. They did not affect the caller's calls."""
    redaction_failures: int = 0
    """Number of texts for which the ``redact=`` function failed: ``[redaction failed]`` was written instead."""


_stats = Stats()
# Reentrant: a failure may be counted while the garbage collector interrupts a count.
_lock = threading.RLock()
_logged_keys: set[str] = set()


def reset() -> None:
    """Sets all counters to zero and clears the record of messages logged once."""
    global _stats, _lock
    # Called in a forked process too, where a lock that another thread held would never be released.
    _stats, _lock = Stats(), threading.RLock()
    _logged_keys.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset)


def stats() -> Stats:
    """Returns a copy of this process's counters."""
    with _lock:
        return Stats(**{item.name: getattr(_stats, item.name) for item in fields(Stats)})


def count(name: str, by: int = 1) -> None:
    """Adds to a counter of ``Stats``."""
    with _lock:
        setattr(_stats, name, getattr(_stats, name) + by)


def call_began() -> None:
    """Counts a call. Separate from ``count`` because it runs for every call: no attribute lookup by name."""
    with _lock:
        _stats.calls += 1


def attempt_began() -> None:
    """Counts an attempt."""
    with _lock:
        _stats.attempts += 1


class HoldsFaults(Protocol):
    """A call, or one attempt of it, that keeps the recorder's failures."""

    @property
    def faults(self) -> list[str]:
        """The failures, one text each."""


def failed(hook: str, call: HoldsFaults | None, error: Exception, message: str | None = None) -> None:
    """Counts and logs a failure of the recorder, and adds it to ``call.faults``.

    Failures with the same ``hook`` and exception class are logged once; with a ``message``, each is logged. Tracebacks
    are logged only at the level DEBUG.

    Raises:
        Exception: the failure itself, under pytest only.
    """
    if "PYTEST_CURRENT_TEST" in os.environ:
        raise error
    count("recorder_errors")
    if call is not None:
        call.faults.append(f"{hook}: {describe(error)}")
    if message is None and not first(f"{hook}:{type(error).__name__}"):
        return
    on = "the agent goes on" if call is None else "the call itself goes on, its step says so"
    log(logging.ERROR, printable(message or f"recording failed in {hook}{_place(error)}: {describe(error)}; {on}"))
    if logger.isEnabledFor(logging.DEBUG):
        lines = "".join(traceback.format_exception(error)).splitlines()
        # Indented, so that text from outside cannot imitate a line of the log.
        logger.debug("the traceback:\n%s", "\n".join(f"    {printable(line)}" for line in lines))


def describe(error: BaseException) -> str:
    """Class and message of an exception on one line, at most 500 characters."""
    try:
        return printable(f"{type(error).__name__}: {error}", 500)
    except Exception as failure:
        return f"{type(error).__name__} (its __str__ raised {type(failure).__name__})"


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__, -1)
    return f" ({os.path.basename(frames[0].filename)}, line {frames[0].lineno})" if frames else ""


def place_of_caller() -> str | None:
    """``file:line`` of the innermost caller in user code, else in a library; None where there is no caller outside.

    The standard library and installed packages count as libraries.
    """
    frame, in_library = sys._getframe(1), None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "rollout_trace":
            file = frame.f_code.co_filename
            place = f"{file}:{frame.f_lineno}"
            is_library = file.startswith((_STANDARD_LIBRARY, "<frozen")) or any(part in file for part in _INSTALLED)
            # By name as well as by path: an integration under development is installed from its own folder.
            if not package.startswith("rollout_trace_") and not is_library:
                return place
            in_library = in_library or place
        frame = frame.f_back  # type: ignore[assignment]
    return in_library


def run_all(hook: str, *parts: Callable[[], object]) -> None:
    """Runs every part, even where earlier ones fail; failures are reported through ``failed`` when all have run."""
    failures = []
    for part in parts:
        try:
            part()
        except Exception as error:
            failures.append(error)
    # Only now: under pytest `failed` raises, and the parts that follow would not run.
    for failure in failures:
        failed(hook, None, failure)


def hide_frame(error: BaseException) -> None:
    """Takes the caller's frame, which is handling the exception, out of its traceback.

    The program sees the traceback that it would see without us. In Python 3.10 ``raise`` puts the frame back.
    """
    traceback = error.__traceback__
    if traceback is not None:
        error.__traceback__ = traceback.tb_next


class _HiddenFrame:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            hide_frame(error)


hidden_frame = _HiddenFrame()
"""``with hidden_frame:`` takes the frame that it is in out of the traceback of an exception that leaves the block."""


def first(key: str) -> bool:
    """True on the first call with this key in this process: for messages to log once."""
    with _lock:
        if key in _logged_keys:
            return False
        _logged_keys.add(key)
        return True


def warn_once(key: str, message: str) -> None:
    """Logs a warning, only the first time that this process uses this key."""
    if first(key):
        log(logging.WARNING, printable(message), key)


def log(level: int, message: str, key: str | None = None) -> None:
    """Logs a message. Catches exceptions of the user's log handlers, which would end the recorder's threads.

    ``key``: that of a message that is logged once, as the ``once`` of the record.
    """
    try:
        logger.log(level, "%s", message, extra={"once": key})
    except Exception:
        pass


def warn(message: str) -> None:
    """Logs a warning."""
    log(logging.WARNING, printable(message))


@contextmanager
def without(prefix: str) -> Iterator[None]:
    """A block in which messages that begin so are not logged: its caller shows what they are about."""

    def is_other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(prefix)

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def printable(text: str, limit: int = 2000) -> str:
    """The text with unprintable characters escaped, cut to ``limit`` characters before that.

    For text from a model, a server or a user, in which control characters, line ends and marks of writing direction
    would change what a terminal shows. Keys of this process's clients are cut out.
    """
    # First: half a key at the limit would not be found.
    text = credentials.cut(text)
    text = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return escaped(text)


SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""Spaces that ``str.isprintable`` refuses and that only take room."""


def escaped(text: str, kept: str = "") -> str:
    """The text with unprintable characters escaped, save for those of ``kept``. Keys are not cut out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)
