"""The lines of a rollout's log file, and names of files for any task."""

from __future__ import annotations

import hashlib
import logging
import re
import traceback
from datetime import datetime, timezone

from rollout_trace import credentials, guard

LONGEST = 80
"""Characters of the longest name."""
_DIGITS = 12
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9._-]*")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.I)
"""Names that Windows gives to devices, with any suffix."""


def safe_name(task_id: str) -> str:
    """A name for a file or a folder, for any task id: another one for each, on every file system.

    Short ids in small letters, digits, ``.``, ``_`` and ``-`` stay as they are. Of others, what cannot be in a name is
    replaced, and 12 digits of a SHA-256 of the id are added. So it is with capitals: some systems hold ``A`` and ``a``
    for the same name.
    """
    if len(task_id) <= LONGEST and _PLAIN.fullmatch(task_id) and task_id[-1] != "." and not _is_special(task_id):
        return task_id
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    start = _UNSAFE.sub("_", task_id).strip("._-")[: LONGEST - _DIGITS - 1].rstrip("._-")
    # An id that looks like a name of another one has a digest of its own.
    return f"{start}-{digest}" if start and not _RESERVED.fullmatch(start) else f"task-{digest}"


def _is_special(name: str) -> bool:
    return _RESERVED.fullmatch(name) is not None or re.search(rf"-[0-9a-f]{{{_DIGITS}}}$", name) is not None


def entry(record: logging.LogRecord) -> str:
    """A record as it stands in the file: time, level, logger, message; further lines are indented."""
    when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
    try:
        message = record.getMessage()
    except Exception as error:  # Arguments that do not fit the message.
        message = f"{record.msg!r} % {record.args!r} ({guard.describe(error)})"
    text = _readable(f"{when.replace('+00:00', 'Z')} {record.levelname} {record.name}: {message}")
    if record.exc_info and record.exc_info[1] is not None:
        text += traceback_lines(record.exc_info[1])
    elif record.exc_text:
        text += _indented(record.exc_text)
    if record.stack_info:
        text += _indented(record.stack_info)
    return text


def traceback_lines(error: BaseException) -> str:
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
