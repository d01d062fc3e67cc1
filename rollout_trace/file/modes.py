"""Permission bits of the files that a writer creates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_BINARY = getattr(os, "O_BINARY", 0)


def check_permissions(mode: Any) -> int | None:
    """Permission bits that a writer can work with; None stands for those of the process (its umask).

    Raises:
        TypeError: it is no whole number.
        ValueError: it is no permission bits, or the owner could not read and write the file.
    """
    if mode is None:
        return None
    if not isinstance(mode, int) or isinstance(mode, bool):
        raise TypeError(f"mode is {mode!r}; give the permission bits of new files, such as mode=0o600.")
    if not 0 <= mode <= 0o777:
        digits = str(mode)
        is_octal = set(digits) <= set("01234567") and int(digits, 8) <= 0o777
        meant = f" (mode=0o{digits}?)" if is_octal else ""
        raise ValueError(f"mode is {mode}; give permission bits in octal, 0o600 to 0o777{meant}.")
    if mode & 0o600 != 0o600:
        raise ValueError(f"mode is 0o{mode:03o}; the owner must be able to read and write the file: 0o600 at least.")
    return mode


def open_for_append(path: Path, mode: int | None) -> int:
    """Opens a file to read and append, and creates it where it is missing. An existing file keeps its permissions."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY
    if mode is None:
        return os.open(path, flags, 0o666)
    try:
        return _create(path, flags, mode)
    except FileExistsError:
        return os.open(path, flags, mode)


def create(path: Path, mode: int | None) -> int:
    """Creates a file to write.

    Raises:
        FileExistsError: there is one.
    """
    flags = os.O_WRONLY | os.O_CREAT | _BINARY
    return os.open(path, flags | os.O_EXCL, 0o666) if mode is None else _create(path, flags, mode)


def _create(path: Path, flags: int, mode: int) -> int:
    file = os.open(path, flags | os.O_EXCL, mode)
    # The umask may have taken bits away that were asked for. Windows has no permission bits to set.
    if os.name == "posix":
        os.fchmod(file, mode)
    return file


def make_folder(path: Path, mode: int | None) -> None:
    """Creates a folder whose files have the permissions ``mode``: whoever may read a file may list the folder."""
    if mode is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    bits = mode | (mode & 0o444) >> 2
    try:
        path.mkdir(bits)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(bits)
