"""Folders of shards: which outputs are one, which of its files hold trajectories, and the writer of its shards."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from rollout_trace import guard
from rollout_trace._threads import renew_after_fork
from rollout_trace.data.user_values import brief
from rollout_trace.errors import WriteError
from rollout_trace.file import locking
from rollout_trace.file.addresses import create, make_folder, shown
from rollout_trace.file.writer import JSONLWriter, Line

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Compression: TypeAlias = Literal["zst", "gz", "none"]
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
HISTORY = "history.jsonl"
"""Beside the shards of a ``collect``: its runs, a line each, which are no trajectories."""
SHARD_BYTES = 256 * 1024 * 1024
SHARD_SECONDS = 600.0
_SHARD = re.compile(r"part-.+-\d+-\d+\.jsonl(\.gz|\.zst)?")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_TRIES = 10_000


def is_shard_name(name: str) -> bool:
    """Tells whether a file has the name of a shard."""
    return _SHARD.fullmatch(name) is not None


def lines_among(names: Iterable[str]) -> list[str]:
    """Selects the names of files of lines in a folder, sorted: no history, nothing hidden.

    Notes are among them.
    """
    return sorted(name for name in names if name.endswith(SUFFIXES) and name[0] != "." and name != HISTORY)


def host_label() -> str:
    """The name of this machine as it may stand in the name of a shard."""
    return _NO_NAME.sub("_", locking.host())[:100] or "host"


class Settings(NamedTuple):
    """Settings for writing shards. See ``rt.recording`` for each."""

    shard_bytes: int = SHARD_BYTES
    shard_seconds: float = SHARD_SECONDS
    compression: Compression | None = None
    spool: str | os.PathLike[str] | None = None

    def checked(self) -> Settings:
        """The settings, if each has a value that it can have.

        Raises:
            TypeError, ValueError: one has none.
            ImportError: zstd is asked for, and the package zstandard is not installed.
        """
        for name, value in (("shard_bytes", self.shard_bytes), ("shard_seconds", self.shard_seconds)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {brief(value)}; give a number, such as {name}={_DEFAULTS[name]}.")
            if math.isnan(value) or value <= 0:
                raise ValueError(f"{name} is {value!r}; give a number above 0, such as {name}={_DEFAULTS[name]}.")
        if self.compression not in (None, *get_args(Compression)):
            raise ValueError(f'compression is {brief(self.compression)}; it can be "zst", "gz", "none" or None.')
        if self.spool is not None and not isinstance(self.spool, (str, os.PathLike)):
            raise TypeError(f"spool is {brief(self.spool)}; give the path of a folder.")
        suffix_of(self.compression)
        return self


_DEFAULTS: dict[str, Any] = Settings()._asdict()


def suffix_of(compression: Compression | None) -> str:
    """The suffix of shards. Where nothing is asked for, zstd if its package is installed, else gzip.

    Raises:
        ImportError: zstd is asked for, and the package zstandard is not installed.
    """
    has_zstd = importlib.util.find_spec("zstandard") is not None
    if compression == "zst" and not has_zstd:
        raise ImportError(
            'compression="zst" needs the package zstandard, which is not installed. Install it with: '
            "pip install '.[zstd]'"
        )
    if compression is None:
        compression = "zst" if has_zstd else "gz"
    return {"zst": ".jsonl.zst", "gz": ".jsonl.gz", "none": ".jsonl"}[compression]


class ShardWriter:
    """Writes trajectories to shards in a local folder, whole lines as ``JSONLWriter`` does: one process, one shard.

    A shard begins with a trajectory, and is complete when the next trajectory comes after it has grown past
    ``shard_bytes`` of JSON, or past ``shard_seconds``. A forked process goes on in shards of its own. An existing file
    is never written to. For any number of threads.

    Args:
        folder: created where it is missing.
        stem: the beginning of a shard's name: it is asked for once a process, and a number follows it.
        finished: called with the path of each shard that is complete, and the number of its trajectories.

    Raises:
        NotADirectoryError: the folder is a file.
        PermissionError: nothing may be written to the folder.
        OSError: it cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: Settings,
        options: dict[str, Any],
        *,
        stem: Callable[[], str] | None = None,
        finished: Callable[[Path, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(folder)
        # Absolute: the process may change its folder.
        self._folder = self.path.absolute()
        self._settings = settings
        self._suffix = suffix_of(settings.compression)
        self._options = options
        self._stem = stem or (lambda: f"part-{host_label()}-{os.getpid()}")
        self._finished = finished
        self._clock = clock
        if self._folder.exists() and not self._folder.is_dir():
            raise NotADirectoryError(f"{self.path} is a file: shards are written to a folder. Give another name.")
        make_folder(self._folder, options.get("mode"))
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(
                f"{self.path}: this folder does not allow writing. Change its permissions, or give another folder."
            )
        self._is_closed = False
        self._reset()
        renew_after_fork(self, ShardWriter._reset)

    def _reset(self) -> None:
        # Of a forked process too: the shard is the other process's, and so is whoever holds the lock.
        self._lock = threading.RLock()
        self._writer: JSONLWriter | None = None
        self._name: str | None = None
        self._next = 0
        self._bytes = self._count = 0
        self._began_at = 0.0

    def write(self, trajectory: Trajectory) -> None:
        """Appends a closed trajectory to the shard of this process.

        Raises:
            ValueError: the trajectory is open, a step has more or fewer logprobs than ids, or the writer is closed.
            OSError: the file system refused; ``WriteError`` where a shard was open, as for ``JSONLWriter``.
        """
        with self._lock:
            if self._is_closed:
                raise ValueError(f"the writer of {self.path} is closed: nothing more can be written to it.")
            self._rotate_if_due()
            writer = self._writer or self._begin()
            line: Line = writer.encode(trajectory)
            writer.append(line)
            self._bytes += line.size
            self._count += 1

    def rotate_if_due(self) -> float | None:
        """Completes the shard if it is too old or too large.

        Returns:
            Seconds until its age asks for it; None without a shard.
        """
        with self._lock:
            self._rotate_if_due()
            if self._writer is None or not self._count:
                return None
            return max(0.0, self._began_at + self._settings.shard_seconds - self._clock())

    def _rotate_if_due(self) -> None:
        if self._writer is not None and self._count and (
            self._bytes >= self._settings.shard_bytes
            or self._clock() - self._began_at >= self._settings.shard_seconds
        ):  # fmt: skip
            self.rotate()

    def rotate(self) -> None:
        """Completes the shard that is being written, if there is one."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is None:
                return
            count, self._bytes, self._count = self._count, 0, 0
            try:
                writer.close()
            except WriteError as error:
                # Its lines are in the file: nothing is lost by what this says.
                guard.warn(str(error))
            path = writer.path
            if not count and _is_empty(path):
                path.unlink(missing_ok=True)
            elif self._finished is not None:
                self._finished(path, count)

    def _begin(self) -> JSONLWriter:
        """Opens a shard of a name that no file has."""
        name = self._name = self._name or self._stem()
        for _ in range(_TRIES):
            path = self._folder / f"{name}-{self._next}{self._suffix}"
            self._next += 1
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                # Made before it is opened: another process, here or on another machine, may have this name.
                os.close(create(path, self._options.get("mode")))
            except FileExistsError:
                continue
            self._writer = JSONLWriter(path, **self._options)
            self._began_at = self._clock()
            return self._writer
        raise FileExistsError(f"{self.path} has {_TRIES} shards of the name {name} already: give another folder.")

    def close(self) -> None:
        """Completes the shard. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            self.rotate()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def same_options(self) -> partial[JSONLWriter]:
        """Opens a writer of one file with the options of the shards."""
        return partial(JSONLWriter, **self._options)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def check_address(address: str) -> str:
    """An address that shards can be written to, without the slash at its end.

    Raises:
        ValueError: it is that of a file, or a pattern, or has no folder.
    """
    plain = address.rstrip("/")
    if plain.endswith(SUFFIXES):
        folder = next(plain.removesuffix(one) for one in reversed(SUFFIXES) if plain.endswith(one))
        raise ValueError(
            f"{shown(address)} names a file, but at an address each process writes its own files. Give a folder, such "
            f"as {shown(folder)!r}."
        )
    if not plain.partition("://")[2]:
        raise ValueError(
            f"{shown(address)} does not name a folder: give one, such as {address.rstrip('/:')}://bucket/rollouts."
        )
    return plain
