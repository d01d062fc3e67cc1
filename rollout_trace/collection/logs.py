"""What an attempt at a rollout is given: an ``rt.Rollout``, with a logger, and a log file of what is logged meanwhile.

A record is put into the file of the rollout in whose context it was logged, in threads too where the trajectory is
carried into them. What a logger's level or filters leave out is not logged, and so not in the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import traceback
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace._field_docs import document_fields
from rollout_trace._threads import lock_for, renew_after_fork
from rollout_trace.data.episodes import episode_of
from rollout_trace.process.patches import Patches
from rollout_trace.record import scope

if TYPE_CHECKING:
    from rollout_trace.collection.job import Job

PARENT = "rollout_trace.rollout"
"""Name of the logger above those of the rollouts: its level and its handlers are theirs."""
LONGEST = 80
"""Characters of the longest name."""
_DIGITS = 12
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9._-]*")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.I)
"""Names that Windows gives to devices, with any suffix."""

# Reentrant: a record may be logged by a signal handler, or by the garbage collector, while one is written.
_lock = lock_for(__name__)
_open: dict[str, LogFile] = {}
"""Those that have not ended, by the id of the rollout's trajectory."""
_here: ContextVar[LogFile | None] = ContextVar("rollout_trace_log", default=None)
_patches: Patches | None = None
_installed = 0


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One attempt of an agent at one task: the second argument of ``agent(task, rollout)``."""

    task_id: str
    """Id of the task."""
    group: str
    """Id shared by the samples of the task."""
    index: int
    """Position among the samples of the task, from 0."""
    seed: int | None = None
    """``seed + index`` of ``rt.collect(seed=...)``; None without one."""
    attempt: int = 1
    """Number of the attempt, from 1. Above 1, the earlier attempts failed."""
    name: str = "agent"
    """Name of the trajectory."""
    log: logging.Logger = field(repr=False)
    """Logger of this rollout. With ``logs=True`` it writes to the rollout's own log file."""
    artifacts: str = field(default="", repr=False)
    """Folder that the rollouts of this run share."""

    @property
    def folder(self) -> Path:
        """Folder for files of this attempt, created on first use."""
        place = Path(self.artifacts, safe_name(self.task_id), f"{self.index}-{self.attempt}")
        place.mkdir(parents=True, exist_ok=True)
        return place


class RolloutLogger(logging.Logger):
    """The logger of one rollout, which ``logging`` does not keep; what it logs is passed on as its parent's level says.

    Its file gets all of it, unless it, or a logger above but the root, has a level: the root's is for terminals.
    """

    def __init__(self, name: str, parent: logging.Logger, file: LogFile | None) -> None:
        super().__init__(name)
        self.parent = parent
        self._rollouts_file = file

    def isEnabledFor(self, level: int) -> bool:
        """Whether a record of this level is passed on, or is for the file. Not cached: levels change."""
        return (
            not self.disabled
            and level > self.manager.disable
            and level >= min(self.getEffectiveLevel(), self._file_level())
        )

    def callHandlers(self, record: logging.LogRecord) -> None:
        """Writes the record to the file, and passes it on."""
        if self._rollouts_file is not None and record.levelno >= self._file_level():
            self._rollouts_file.write(record)
        if record.levelno >= self.getEffectiveLevel():
            super().callHandlers(record)

    def getChild(self, suffix: str) -> RolloutLogger:
        """A logger below this one, which ``logging`` does not keep either."""
        return RolloutLogger(f"{self.name}.{suffix}", self, self._rollouts_file)

    def _file_level(self) -> float:
        if self._rollouts_file is None:
            return float("inf")
        logger: logging.Logger | None = self
        while logger is not None and logger is not self.root:
            if logger.level:
                return logger.level
            logger = logger.parent
        return logging.NOTSET


class LogFile:
    """The file of one attempt. It is opened with its first record. Thread safe; no method raises."""

    def __init__(self, path: str, first: str, trajectory_id: str) -> None:
        self.path = path
        self._first = first
        self._id = trajectory_id
        self._file: IO[str] | None = None
        self._has_ended = False
        self._renew()
        renew_after_fork(self, LogFile._renew)
        with _lock:
            _open[trajectory_id] = self

    def _renew(self) -> None:
        """Gets a lock that no thread has: another one may have had it when this process was forked."""
        self._lock = threading.RLock()

    def write(self, record: logging.LogRecord) -> None:
        """Puts a record into the file; does nothing once it has ended."""
        if self._has_ended:
            return
        try:
            self._put(_entry(record))
        except Exception as error:
            _warn(self.path, error)

    def end(self, error: BaseException | None) -> None:
        """Closes the file, with the exception that ended the attempt, if any."""
        with _lock:
            _open.pop(self._id, None)
        if _here.get() is self:
            _here.set(None)
        with self._lock:
            try:
                self._put("# ended\n" if error is None else _traceback(error))
            except Exception as failure:
                _warn(self.path, failure)
            self._has_ended = True
            file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # What it holds has been flushed.
                file.close()

    def _put(self, text: str) -> None:
        with self._lock:
            if self._has_ended:
                return
            if self._file is None:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                # Appended: a run that was interrupted may have begun the same attempt.
                self._file = open(self.path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
                text = self._first + text
            self._file.write(text)
            self._file.flush()


@dataclass(frozen=True, slots=True)
class RolloutLog:
    """What one attempt at a rollout logs."""

    logger: logging.Logger
    """The rollout's own. It has no reference to this object: both are freed without the garbage collector."""
    file: LogFile | None

    def end(self, error: BaseException | None = None) -> None:
        """Ends the file, with the exception that ended the attempt, if any. Never raises."""
        if self.file is not None:
            self.file.end(error)


class RolloutLogs:
    """The log files of one run in this process: ``<task>-<index>-<attempt>.log``; none without a folder."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._is_installed = False

    def install(self) -> None:
        """From now on, also writes to a rollout's file what any logger of this process logs in its context."""
        global _patches, _installed
        if self._folder is None or self._is_installed:
            return
        with _lock:
            self._is_installed = True
            _installed += 1
            if _patches is None:
                _patches = Patches()
                # Not a handler of the root: with one there, `logging.basicConfig` of an agent would do nothing, and
                # warnings that no handler takes would no longer be printed.
                _patches.replace(logging.Logger, "callHandlers", _writing(_patches))

    def uninstall(self) -> None:
        """Undoes ``install``; the last one of several has an effect."""
        global _patches, _installed
        if not self._is_installed:
            return
        with _lock:
            self._is_installed = False
            _installed -= 1
            if _installed == 0 and _patches is not None:
                _patches.undo()
                _patches = None

    def begin(self, job: Job, trajectory_id: str) -> RolloutLog:
        """The log of an attempt. To be called in the context in which the agent runs, or that this one is copied to."""
        task = safe_name(job.task.id)
        name = f"{PARENT}.{task.replace('.', '_')}.{job.index}"
        parent, file = logging.getLogger(PARENT), None
        if self._folder is not None:
            first = (
                f"# task {guard.printable(job.task.id, 300)}, sample {job.index}, attempt {job.attempt}, "
                f"trajectory {trajectory_id}, run {job.work.run_id}\n"
            )
            file = LogFile(os.path.join(self._folder, f"{task}-{job.index}-{job.attempt}.log"), first, trajectory_id)
            _here.set(file)
        return RolloutLog(RolloutLogger(name, parent, file), file)


def _writing(patches: Patches) -> Any:
    def make(original: Any) -> Any:
        def callHandlers(self: logging.Logger, record: logging.LogRecord) -> None:
            if patches.is_active and not isinstance(self, RolloutLogger):
                file = _current()
                if file is not None:
                    file.write(record)
            original(self, record)

        return callHandlers

    return make


def _current() -> LogFile | None:
    """The file of the rollout that this code runs in."""
    trajectory = scope.here()
    if trajectory is not None:
        # In a thread that the trajectory was carried into there is nothing else. Inner ones share the episode's id.
        file = _open.get(episode_of(trajectory))
        if file is not None:
            return file
    return _here.get()


def _warn(path: str, error: Exception) -> None:
    folder = os.path.dirname(path)
    guard.warn_once(
        f"rollout log:{folder}:{type(error).__name__}",
        f"log files of rollouts in {folder} cannot be written ({guard.describe(error)}); the rollouts go on",
    )


def safe_name(task_id: str) -> str:
    """A distinct name for a file or folder for any task id, on every file system.

    Short ids in small letters, digits, ``.``, ``_`` and ``-`` stay; others, also capitals, get 12 digits of a SHA-256.
    """
    if len(task_id) <= LONGEST and _PLAIN.fullmatch(task_id) and task_id[-1] != "." and not _is_special(task_id):
        return task_id
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    start = _UNSAFE.sub("_", task_id).strip("._-")[: LONGEST - _DIGITS - 1].rstrip("._-")
    # An id that looks like a name of another one has a digest of its own.
    return f"{start}-{digest}" if start and not _RESERVED.fullmatch(start) else f"task-{digest}"


def _is_special(name: str) -> bool:
    return _RESERVED.fullmatch(name) is not None or re.search(rf"-[0-9a-f]{{{_DIGITS}}}$", name) is not None


def _entry(record: logging.LogRecord) -> str:
    """A record as it stands in the file: time, level, logger, message; further lines are indented."""
    when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
    try:
        message = record.getMessage()
    except Exception as error:  # Arguments that do not fit the message.
        message = f"{record.msg!r} % {record.args!r} ({guard.describe(error)})"
    text = _readable(f"{when.replace('+00:00', 'Z')} {record.levelname} {record.name}: {message}")
    if record.exc_info and record.exc_info[1] is not None:
        text += _traceback(record.exc_info[1])
    elif record.exc_text:
        text += _indented(record.exc_text)
    if record.stack_info:
        text += _indented(record.stack_info)
    return text


def _traceback(error: BaseException) -> str:
    """The traceback of an exception, each line indented."""
    try:
        return _indented("".join(traceback.format_exception(error)))
    except Exception:  # A `__str__` that raises, or a chain too deep.
        return _indented(guard.describe(error))


def _indented(text: str) -> str:
    return "    " + _readable(text.rstrip("\n"))


def _readable(text: str) -> str:
    """Text with a line end, without keys and control characters; lines after the first cannot be taken for entries."""
    lines = credentials.cut(text).split("\n")
    return "\n    ".join(guard.escaped(line, "\t") for line in lines) + "\n"
