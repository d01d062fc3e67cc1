"""Appends trajectories to a file as whole lines, from any number of threads and processes."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace._threads import renew_after_fork
from rollout_trace.data.user_values import brief
from rollout_trace.errors import WriteError
from rollout_trace.file.addresses import check_permissions
from rollout_trace.file.append import AppendedFile, AppendError
from rollout_trace.file.compression import compressor
from rollout_trace.file.encode import encode
from rollout_trace.file.media import MediaFolder, MediaMode, folder_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Line:
    """A trajectory encoded as a line of the file, for ``JSONLWriter.append``."""

    trajectory: Trajectory
    data: bytes
    """Bytes of the line, compressed if the file is. Its media are already in their folder."""
    size: int
    """Size of the line in bytes, before compression."""


class JSONLWriter:
    """Appends trajectories to the file ``path``, one per line.

    Any number of threads, processes and writers can write to one file: each line is appended in one piece. Missing
    folders are created. If the file is removed or renamed (rotated) meanwhile, it is created again at ``path``.

    Args:
        path: path of the file. The suffix chooses the compression: ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` (needs the
            package zstandard).
        fsync: make sure that each line is on the disk before ``write`` returns.
        media: ``inline``: images, audio and files in messages, completions and tool results stay in the line as base64;
            ``folder``: those longer than 1 KiB are written once to the folder ``<path>.media``, and ``read`` restores
            them.
        lock_timeout: seconds to wait for other writers of the file (10 by default); 0 tries once.
        mode: permission bits of the files that are created (of the media too), such as ``0o600``, whatever the umask;
            None leaves them to the umask. Existing files keep their bits. Windows has no such bits.

    Raises:
        TypeError: ``path`` is not a path, ``lock_timeout`` is not a number, or ``mode`` is not an integer.
        ValueError: ``media``, ``lock_timeout`` or ``mode`` has an invalid value, the suffix belongs to another format,
            or the contents of the file do not match its suffix (text in a file that ends with ``.gz``).
        ImportError: the suffix is ``.zst`` and zstandard is not installed.
        OSError: the file cannot be opened for writing, or the path is a pipe or a device.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        media: MediaMode = "inline",
        lock_timeout: float = 10.0,
        mode: int | None = None,
    ) -> None:
        check_media(media)
        self._lock_timeout = check_lock_timeout(lock_timeout)
        self._mode = check_permissions(mode)
        self.path = check_path(path)
        # Absolute: the process may change its folder before the file is opened again (removed, forked, unpickled).
        self._absolute_path = self.path.absolute()
        self._fsync = fsync
        self._media: MediaFolder | None = None
        if media == "folder":
            self._media = MediaFolder(folder_of(self._absolute_path), fsync=fsync, mode=mode)
        self._compress = compressor(self.path)
        self._lock = threading.Lock()
        self._is_closed = False
        self._file = AppendedFile(
            self._absolute_path, self.path, ends_lines=self._compress is None, fsync=fsync, mode=mode
        )
        renew_after_fork(self, JSONLWriter._renew)

    def write(self, trajectory: Trajectory) -> None:
        """Appends a closed trajectory. Readers see its line once this returns.

        Raises:
            ValueError: the trajectory is open, a step has more or fewer logprobs than ids, or the writer is closed.
            WriteError: the file system failed, or the file stayed locked for ``lock_timeout`` seconds. The message
                states how much of the line is in the file, and ``lost`` holds the trajectory.
        """
        self.append(self.encode(trajectory))

    def encode(self, trajectory: Trajectory) -> Line:
        """Encodes a closed trajectory as a line for ``append``. Writes media to their folder, nothing to the file.

        Raises:
            ValueError: the trajectory is open, or a step has more or fewer logprobs than ids.
            WriteError: the media could not be written.
        """
        line = encode(trajectory)
        if self._media is not None:
            try:
                line = self._media.extract(line)
            except OSError as error:
                raise self._write_error(
                    trajectory,
                    error,
                    f"the media of trajectory {trajectory.id} could not be written to {self._media.path}: {error}. "
                    f"Nothing of its line is in {self.path}, and the trajectory can be written again.",
                ) from error
        return Line(trajectory, line if self._compress is None else self._compress(line), len(line))

    def append(self, line: Line) -> None:
        """Appends the line that ``encode`` returned. After a failure, the same line can be appended again.

        Raises:
            ValueError: the writer is closed.
            WriteError: as for ``write``. If its ``is_in_file`` is true, appending again would duplicate the line.
        """
        trajectory, end = line.trajectory, time.monotonic() + self._lock_timeout
        try:
            self._append(line.data, end)
        except AppendError as error:
            reason = str(error.cause).removesuffix(".")
            advice = "writing it again would double it" if error.is_in_file else "the trajectory can be written again"
            raise self._write_error(
                trajectory,
                error.cause,
                f"trajectory {trajectory.id} could not be written to {self.path}: {reason}. {error.left}, and "
                f"{advice}.",
                is_in_file=error.is_in_file,
            ) from error.cause
        # Outside the lock and the `try`: the line is written, and a failure here is not a failure of writing.
        if (recorder := trajectory._recorder) is not None:
            guard.run_all("silence", partial(recorder.was_written, trajectory, self.path))

    def _append(self, data: bytes, end: float) -> None:
        # The lock of the process is waited for no longer than that of the file: its holder may be waiting for that one.
        if not self._lock.acquire(timeout=self._lock_timeout):
            raise AppendError(
                TimeoutError(
                    f"another thread of this process is still writing to it after {self._lock_timeout:g} seconds "
                    "(lock_timeout= sets how long to wait)"
                ),
                "Nothing of its line is in the file",
            )
        try:
            if self._is_closed:
                raise ValueError(f"the writer of {self.path} is closed: nothing more can be written to it.")
            self._file.append(data, max(0.0, end - time.monotonic()))
        finally:
            self._lock.release()

    def _write_error(
        self, trajectory: Trajectory, cause: Exception, message: str, *, is_in_file: bool = False
    ) -> WriteError:
        return WriteError(message, lost=[(trajectory, cause)], open_writer=self.same_options(), is_in_file=is_in_file)

    def close(self) -> None:
        """Closes the file. A second call does nothing.

        Raises:
            WriteError: the file system reports only now that lines may not have been stored.
        """
        with self._lock:
            self._is_closed = True
            try:
                self._file.close()
            except OSError as error:
                raise WriteError(
                    f"closing {self.path} failed: {error}. Its lines are in the file, though maybe not on the disk."
                ) from error

    def __enter__(self) -> JSONLWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"JSONLWriter({str(self.path)!r})"

    def same_options(self) -> partial[JSONLWriter]:
        """Opens a writer for another path with the options of this one."""
        media: MediaMode = "inline" if self._media is None else "folder"
        return partial(JSONLWriter, fsync=self._fsync, media=media, lock_timeout=self._lock_timeout, mode=self._mode)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.same_options(), (self._absolute_path,)

    def _renew(self) -> None:
        """Renews lock and descriptor in a forked process: an inherited descriptor shares the parent's ``flock``."""
        self._lock = threading.Lock()
        self._file.renew()


def check_media(mode: str) -> None:
    """Raises ValueError where ``mode`` is not a ``MediaMode``."""
    if mode not in ("inline", "folder"):
        raise ValueError(f'media is {mode!r}; it can be "inline" or "folder".')


def check_lock_timeout(value: Any) -> float:
    """Seconds to wait for a lock, at most what the system can wait.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative or not finite.
    """
    advice = "give seconds, such as lock_timeout=10.0; 0 tries once"
    if isinstance(value, bool):
        raise TypeError(f"lock_timeout is {value!r}; {advice}.")
    try:
        seconds = float(value) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError, OverflowError):
        seconds = None
    if seconds is None:
        raise TypeError(f"lock_timeout is {brief(value)}; {advice}.")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"lock_timeout is {brief(value)}; {advice}.")
    return min(seconds, threading.TIMEOUT_MAX)


def check_path(path: Any) -> Path:
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
            f"{place}: {suffix!r} is not a format for trajectories; give a name that ends with .jsonl, .jsonl.gz or "
            ".jsonl.zst."
        )
    return place
