"""Where the database of an index is: in a cache; in a temporary folder where that is not wanted, or not possible."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rollout_trace import guard
from rollout_trace._version import __version__
from rollout_trace.file.locking import FileLock, NoFileLocks, hold
from rollout_trace.view.index_store import SCHEMA, Store
from rollout_trace.view.model import Summary

_VERSION = f"2 {__version__} {SCHEMA} {' '.join(Summary.__struct_fields__)}"
"""Part of the name of a database: another version makes its own."""
_UNUSED = 30 * 86400
"""Seconds after which a database that nobody has used is deleted."""


def cache_folder() -> Path:
    """The folder for caches of this library."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored, as its specification says.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rollout-trace"


class KeptStore:
    """The database of an index.

    Args:
        paths: absolute, of which the index is.
        cache: folder to keep it in. None: it is deleted when it is closed.
    """

    def __init__(self, paths: Sequence[str], cache: Path | None) -> None:
        self._temporary: str | None = None
        self._lock: tuple[int, FileLock] | None = None
        self.store = self._open(paths, cache)

    def _open(self, paths: Sequence[str], cache: Path | None) -> Store:
        if cache is not None:
            try:
                return self._open_in(cache, paths)
            except (OSError, sqlite3.Error) as error:
                self._unlock()
                guard.warn(f"the index cannot be kept: {guard.describe(error)}")
        return self._open_temporary()

    def _open_in(self, folder: Path, paths: Sequence[str]) -> Store:
        # What it has of the files is for their owner alone, as they may be.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _delete_unused(folder)
        name = hashlib.blake2b("\0".join([_VERSION, *paths]).encode("utf-8", "surrogateescape"), digest_size=12)
        path = folder / f"{name.hexdigest()}.sqlite"
        if not self._hold(Path(f"{path}.lock")):
            # Another page of these files is open. Two processes must not build one index.
            return self._open_temporary()
        try:
            return Store(path)
        except sqlite3.DatabaseError:
            _delete(path)
            return Store(path)

    def _hold(self, path: Path) -> bool:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock = hold(file, path)
        except NoFileLocks:
            lock = None
        if lock is None:
            os.close(file)
            return False
        self._lock = (file, lock)
        os.utime(path)
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock[0])
            self._lock = None

    def _open_temporary(self) -> Store:
        self._temporary = tempfile.mkdtemp(prefix="rollout-trace-")
        return Store(Path(self._temporary) / "index.sqlite")

    def close(self) -> None:
        """Closes it, and deletes it where it is not kept."""
        self.store.close()
        self._unlock()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _delete(path: Path) -> None:
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), path.with_suffix(".lines")):
        name.unlink(missing_ok=True)


def _delete_unused(folder: Path) -> None:
    for lock in folder.glob("*.sqlite.lock"):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > _UNUSED:
                _delete(Path(str(lock).removesuffix(".lock")))
                lock.unlink()
