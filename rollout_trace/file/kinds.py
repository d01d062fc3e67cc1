"""Refuses paths that are not regular files."""

from __future__ import annotations

import errno
import os
import stat

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
