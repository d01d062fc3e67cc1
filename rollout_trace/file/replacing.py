"""Creates files, with permission bits of their own, and replaces them whole."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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


def create(path: Path, mode: int | None, bits: int = 0o666) -> int:
    """Creates a file to write. ``mode`` and ``bits``: as for ``replacing``. Raises FileExistsError: there is one."""
    flags = os.O_WRONLY | os.O_CREAT | _BINARY
    return os.open(path, flags | os.O_EXCL, bits) if mode is None else _create(path, flags, mode)


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


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, mode: int | None = None, bits: int = 0o666, fsync: bool = True
) -> Iterator[BinaryIO]:
    """Makes a new file that replaces ``path`` when the block ends; if the block raises, ``path`` is unchanged.

    Args:
        path: missing folders are created.
        mode: permission bits; None leaves them to ``bits``.
        bits: permission bits, less those of the umask.
        fsync: False: without waiting for the disk.
    """
    # `os.replace` would replace a symbolic link itself: the file it points to is meant.
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a rename is atomic within a file system alone; cut, as names have a maximum length.
    new = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}")
    try:
        with open(create(new, mode, bits), "wb") as file:
            yield file
            file.flush()
            if fsync:
                # On disk before it gets its name: after a crash of the machine the file is whole or absent.
                os.fsync(file.fileno())
        os.replace(new, place)
    except BaseException:  # KeyboardInterrupt too must leave no half-written file.
        new.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_in(folder: Path) -> Iterator[Path]:
    """Makes a folder whose files and folders replace those of their names in ``folder`` when the block ends.

    If the block raises, ``folder`` is unchanged, and removed if it was not there.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".new-{secrets.token_hex(8)}"
    aside.mkdir()
    try:
        yield aside
        for one in sorted(aside.iterdir()):
            _move(one, folder / one.name)
        aside.rmdir()
    except BaseException:
        shutil.rmtree(aside if existed else folder, ignore_errors=True)
        raise


def _move(source: Path, target: Path) -> None:
    if source.is_dir() and target.exists():
        for one in source.iterdir():
            os.replace(one, target / one.name)
        source.rmdir()
    else:
        os.replace(source, target)
