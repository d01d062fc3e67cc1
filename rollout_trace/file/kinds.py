"""What a path is: a regular file, a history."""

from __future__ import annotations

import errno
import os
import re
import stat

HISTORY_SCHEMA = "rollout-trace-history/1"
"""The first field of each line of a history."""
_HISTORY_NAME = re.compile(r"(.*\.)?history(-[0-9a-f]+)?\.jsonl")

_SPECIAL_KINDS = [
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
]


def refuse_special_file(path: str | os.PathLike[str]) -> None:
    """Raises OSError where a path is a pipe, a socket or a device other than ``/dev/null``.

    A pipe cannot be read from its start, a device may have no end, and neither can be truncated to whole lines. Missing
    paths are accepted.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    kind = next((name for is_kind, name in _SPECIAL_KINDS if is_kind(mode)), None)
    if kind is not None and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, f"expected a file of lines, got {kind}", os.fspath(path))


def is_history_file(path: str | os.PathLike[str]) -> bool:
    """True for a history of ``rt.collect``: its name is that of one, and so is its first line, if there is one.

    An address, whose content is not looked at, is judged by its name.
    """
    name = os.fspath(path)
    if not _HISTORY_NAME.fullmatch(re.split(r"[/\\]", name)[-1]):
        return False
    try:
        with open(name, "rb") as file:
            begin = file.read(200).lstrip()
    except OSError:
        return True
    # A file of trajectories may have had this name before there were histories.
    return re.match(rb'\{\s*"schema"\s*:\s*"rollout-trace/', begin) is None
