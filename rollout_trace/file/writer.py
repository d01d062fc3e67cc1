"""Appends trajectories to a file as whole lines, from any number of threads and processes."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rollout_trace import guard
from rollout_trace.data.user_values import brief
from rollout_trace.errors import WriteError
from rollout_trace.file.compression import check_content, compressor
from rollout_trace.file.encode import encode
from rollout_trace.file.kinds import refuse_special_file
from rollout_trace.file.media import MediaFolder, MediaMode, check_mode, folder_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has none: there only the threads of one process are kept apart.
    fcntl = None

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class _PartialWrite(OSError):
    """A write failed after some bytes, which could not be removed. The next line begins after them."""


class JSONLWriter:
    """Appends trajectories to the file ``path``, one per line.

    Any number of threads, processes and writers can write one file: each line is appended whole. Missing folders are
    created.

    Args:
        path: the suffix chooses the compression: ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` (needs the package
            zstandard).
        fsync: each line is on the disk before ``write`` returns.
        media: ``inline``: images, audio and files that messages, completions and tool results hold as base64 stay in
            the line; ``folder``: those longer than 1 KiB go to the folder ``<path>.media``, once each, and ``read``
            restores them.

    Raises:
        TypeError: ``path`` is not a path.
        ValueError: ``media`` has another value, the suffix is that of another format, or the contents of the file do
            not fit its suffix (text in a file that ends with ``.gz``).
        ImportError: the suffix is ``.zst`` and zstandard is not installed.
        OSError: the file cannot be opened for writing, or the path is a pipe or a device.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False, media: MediaMode = "inline") -> None:
        check_mode(media)
        self.path = _check_path(path)
        # Absolute: the process may change its folder before the file is opened again (removed, forked, unpickled).
        self._absolute_path = self.path.absolute()
        self._fsync = fsync
        self._media = MediaFolder(folder_of(self.path.absolute()), fsync=fsync) if media == "folder" else None
        self._compress = compressor(self.path)
        self._lock = threading.Lock()
        self._last_end = 0
        """Offset where this writer's latest line ended: a file that ends there ends with a newline."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = self._open()
        try:
            check_content(self._file, self.path)
        except BaseException:
            self.close()
            raise
        _writers.add(self)

    def write(self, trajectory: Trajectory) -> None:
        """Appends a closed trajectory. Once this returns, readers see its line.

        Raises:
            ValueError: the trajectory is open, a step has more or fewer logprobs than ids, or the writer is closed.
            WriteError: the file system refused; the message states whether a part of the line is left in the file.
        """
        # Encoded and compressed before the lock is taken, so that other threads can write meanwhile.
        line = encode(trajectory)
        if self._media is not None:
            line = self._extract_media(line, self._media, trajectory.id)
        data = line if self._compress is None else self._compress(line)
        with self._lock:
            if self._file is None:
                raise ValueError(f"the writer of {self.path} is closed: nothing more can be written to it.")
            try:
                if os.fstat(self._file).st_nlink == 0:  # The file was removed: lines written to it would be lost.
                    self._replace_removed(self._file)
                self._append(self._file, data)
            except OSError as error:
                is_whole = not isinstance(error, _PartialWrite)
                left = (
                    "The file is as it was before"
                    if is_whole
                    else "A part of its line may be at the end of the file, which readers report as a damaged line"
                )
                raise WriteError(
                    f"trajectory {trajectory.id} could not be written to {self.path}: {error}. {left}, and the "
                    "trajectory can be written again."
                ) from error
        # Outside the lock and the `try`: the line is written, and a failure here is not a failure of writing.
        if (recorder := trajectory._recorder) is not None:
            guard.run_all("silence", partial(recorder.was_written, trajectory, self.path))

    def _extract_media(self, line: bytes, media: MediaFolder, trajectory_id: str) -> bytes:
        try:
            return media.extract(line)
        except OSError as error:
            raise WriteError(
                f"the media of trajectory {trajectory_id} could not be written to {media.path}: {error}. "
                f"{self.path} is as it was before, and the trajectory can be written again."
            ) from error

    def close(self) -> None:
        """Closes the file. A second call does nothing."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> JSONLWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"JSONLWriter({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        media: MediaMode = "inline" if self._media is None else "folder"
        return partial(JSONLWriter, fsync=self._fsync, media=media), (self._absolute_path,)

    def _open(self) -> int:
        refuse_special_file(self._absolute_path)
        return os.open(self._absolute_path, _FLAGS, 0o666)

    def _replace_removed(self, removed: int) -> None:
        self._file = self._open()
        os.close(removed)

    def _append(self, file: int, data: bytes) -> None:
        is_locked = self._acquire_lock(file)
        try:
            end = os.lseek(file, 0, os.SEEK_END)
            # Compressed files need no newline here: readers find the next member by its magic number.
            if self._compress is None and end not in (0, self._last_end) and not _ends_with_newline(file):
                data = b"\n" + data  # A killed writer left a partial line: this one must not become a part of it.
            if is_locked:
                self._write_or_undo(file, data, end)
            else:
                _write_at_once(file, data)
                self._sync(file)
            self._last_end = end + len(data)
        finally:
            if is_locked and fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)

    def _write_or_undo(self, file: int, data: bytes, end: int) -> None:
        """Writes all bytes, or truncates the file to ``end``, its length before.

        Called with the lock: without it, truncating could cut off another writer's line.
        """
        try:
            _write_all(file, data)
            self._sync(file)
        except BaseException as error:  # Also KeyboardInterrupt: Ctrl-C must not leave a partial line.
            try:
                # Only if something was written: /dev/null refuses to be truncated.
                if os.lseek(file, 0, os.SEEK_END) != end:
                    os.ftruncate(file, end)
            except OSError:
                if isinstance(error, OSError):
                    raise _PartialWrite(*error.args) from error
            raise

    def _sync(self, file: int) -> None:
        if self._fsync:
            os.fsync(file)

    def _acquire_lock(self, file: int) -> bool:
        """Locks the file; False where its file system has no locks, so that other writers may write at any time."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            guard.warn_once(
                f"no-lock:{self._absolute_path}",
                f"the file system of {self.path} has no file locks ({error.strerror}): each line is appended in one "
                "write, which most file systems keep whole. If several machines write at once, give each its own file.",
            )
            return False
        return True

    def _reopen(self) -> None:
        """Renews lock and descriptor in a forked process: an inherited descriptor shares the parent's ``flock``."""
        self._lock = threading.Lock()
        inherited, self._file = self._file, None
        if inherited is not None:
            os.close(inherited)
            try:
                self._file = self._open()
            except OSError as error:
                # Not raised: the other writers must be renewed too.
                guard.warn(f"{self.path} cannot be opened again in a forked process ({error}): it is closed here.")


def _check_path(path: Any) -> Path:
    """The path of a file of lines.

    Raises:
        TypeError: it is not a path.
        ValueError: it is empty, or its suffix is that of another format.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f'expected the path of a file, such as "rollouts.jsonl", got {brief(path)}.')
    place = Path(path)
    if not place.name:
        raise ValueError(f'expected the path of a file, such as "rollouts.jsonl", got {os.fspath(path)!r}.')
    suffix = Path(place.name.removesuffix(place.suffix if place.suffix in (".gz", ".zst") else "")).suffix
    # A part that begins with a digit belongs to the name: rollouts-qwen2.5
    if suffix[1:2].isalpha() and suffix not in (".jsonl", ".ndjson", ".json"):
        raise ValueError(
            f"{place}: {suffix!r} is no format that trajectories are written in; give a name that ends with .jsonl, "
            ".jsonl.gz or .jsonl.zst."
        )
    return place


def _ends_with_newline(file: int) -> bool:
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) == b"\n"


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _write_at_once(file: int, data: bytes) -> None:
    """Writes all bytes in one call, for files without locks: between two calls another writer could append its line.

    What a partial write left stays: truncating it could cut off such a line.
    """
    written = os.write(file, data)
    if written < len(data):
        raise _PartialWrite(errno.EIO, f"only {written} of the {len(data)} bytes of its line were taken")


_writers: WeakSet[JSONLWriter] = WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._reopen()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
