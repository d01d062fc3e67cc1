"""Shards of an address: written to a local folder, the spool, and each uploaded from there when it is complete."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rollout_trace import guard
from rollout_trace._threads import renew_after_fork
from rollout_trace.file import locking
from rollout_trace.file.addresses import file_system, make_folder, shown
from rollout_trace.file.plain import dumps
from rollout_trace.file.shards import Settings, ShardWriter, check_address, host_label, is_shard_name

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

ROOT = "ROLLOUT_TRACE_SPOOL"
"""Environment variable: the folder with the spools of all addresses."""
_OWNER = ".owner-"
_TRIES = 32


def spool_of(address: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The spool of an address: a folder of its own in ``root``, for all processes of this machine and user.

    Args:
        address: without the slash at its end.
        root: None: that of the variable ``ROLLOUT_TRACE_SPOOL``, else ``rollout-trace/spool`` in the user's folder for
            what programs keep (``~/.local/state`` on Linux).
    """
    name = re.sub(r"[^A-Za-z0-9.]+", "-", shown(address))[:60].strip("-.")
    return Path(os.path.abspath(root or _root())) / f"{name}-{sha256(address.encode()).hexdigest()[:12]}"


def has_default_root(spool: Path) -> bool:
    """Tells whether a spool is where it is looked for unless another folder is named."""
    return spool.parent == Path(os.path.abspath(_root()))


def _root() -> Path:
    if given := os.environ.get(ROOT):
        return Path(given)
    if sys.platform == "win32":
        state = os.environ.get("LOCALAPPDATA")
    else:
        state = os.environ.get("XDG_STATE_HOME")
    home = os.path.expanduser("~")
    for folder in (state, os.path.join(home, ".local", "state") if os.path.isabs(home) else None):
        if folder and _may_be_made(Path(folder)):
            return Path(folder) / "rollout-trace" / "spool"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"rollout-trace-spool-{user}"


def _may_be_made(folder: Path) -> bool:
    """Tells whether a folder is there and can be written to, or could be made: containers may have no home."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def make_spool(folder: Path, address: str) -> None:
    """Makes a spool, which only its user may read, with a text file that names its address.

    Raises:
        OSError: it cannot be made.
    """
    make_folder(folder, 0o600)
    note = folder / "ADDRESS"
    if not note.exists():
        note.write_text(f"{shown(address)}\n")


class Claim:
    """Says that a process works on shards: until it is released, or the process is dead, others leave them alone.

    A file beside the shards, locked. Where there are no locks, it names the process.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        renew_after_fork(self, Claim.renew)

    def release(self) -> None:
        """Gives it up. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if locking.HAS_LOCKS:
                self._path.unlink(missing_ok=True)
                os.close(fd)
            else:  # Windows deletes no open file.
                os.close(fd)
                self._path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Closes the descriptor of a forked process, which shares the lock and would outlive the other process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def claim(folder: Path, stem: str) -> Claim | None:
    """Claims the shards of a spool whose names begin with ``stem``; None where a process that lives has.

    Raises:
        OSError: it cannot be found out.
    """
    path = folder / f"{_OWNER}{stem}"
    for _ in range(_TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        try:
            is_held = locking.lock_open(fd)
            # Another process may have released it, and removed the file, since it was opened.
            is_current = _is_at(fd, path)
            if is_held is not False and is_current and (is_held or not _may_live(fd)):
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
                os.write(fd, dumps(locking.owner()))
                return Claim(path, os.dup(fd))
        finally:
            # Of a claim, the duplicate goes on to hold the lock.
            os.close(fd)
        if is_current:
            return None
    return None


def claim_new(folder: Path, address: str) -> tuple[str, Claim]:
    """Claims a stem for new shards in the spool of an address, which is made where it is missing.

    Beside host and process id a random number is in it: machines may share their name, and processes of two containers
    their id, and at an address nobody can keep a name for himself.

    Raises:
        OSError: the spool cannot be made.
    """
    for _ in range(_TRIES):
        stem = f"part-{host_label()}-{os.urandom(4).hex()}-{os.getpid()}"
        # A process that has ended may remove the spool, empty as it is, at any moment until there is a claim.
        with suppress(FileNotFoundError):
            make_spool(folder, address)
            if (made := claim(folder, stem)) is not None:
                return stem, made
    raise OSError(f"no shard can be begun in {folder}: another process removes the folder again and again.")


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _may_live(fd: int) -> bool:
    """Tells whether the process that a claim names may live; for files without locks."""
    try:
        first = msgspec.json.decode(os.read(fd, 4096), type=dict)
    except (msgspec.DecodeError, ValueError):
        return False
    return locking.may_live(first)


def stale_claims(folder: Path) -> list[Claim]:
    """Claims, now of this process, of dead processes that left no shard."""
    used, names = spooled(folder), _names_in(folder)
    stems = [name.removeprefix(_OWNER) for name in names if name.startswith(_OWNER)]
    return [left for stem in stems if stem not in used and (left := claim(folder, stem)) is not None]


def stem_of(name: str) -> str:
    """The beginning of a shard's name, which the shards of one process share."""
    return _parts_of(name)[0]


def _parts_of(name: str) -> tuple[str, str]:
    stem, _, number = name.split(".jsonl", 1)[0].rpartition("-")
    return stem, number


def spooled(folder: Path) -> dict[str, list[Path]]:
    """The shards of a spool by their stems, in the order of their numbers."""
    found: dict[str, list[Path]] = defaultdict(list)
    for name in sorted(filter(is_shard_name, _names_in(folder)), key=lambda name: int(_parts_of(name)[1])):
        found[stem_of(name)].append(folder / name)
    return dict(found)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def remove_if_empty(folder: Path) -> None:
    """Removes a spool in which nothing is left but its note."""
    try:
        if os.listdir(folder) in (["ADDRESS"], []):
            (folder / "ADDRESS").unlink(missing_ok=True)
            folder.rmdir()
    except OSError:
        # Another process has begun to use it, or it is gone.
        pass


# Uploads

FIRST_RETRY, _LONGEST_RETRY = 0.5, 30.0
"""Seconds until an upload that failed is tried again; doubled after each attempt that fails."""
_CHUNK = 1 << 20
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "r2", "oss", "obs", "memory"})
"""Protocols of file systems in which an object appears only when it is whole."""


class Unsent(NamedTuple):
    """A shard that is complete, and could not be uploaded."""

    path: Path
    """Where it is kept."""
    trajectories: int
    """How many it holds."""
    error: Exception


def send(address: str, path: Path) -> None:
    """Uploads a shard, and deletes it here. Where it is at the address already, it is only deleted.

    Raises:
        FileExistsError: another file has its name.
        OSError, ...: whatever the file system of the address raises. The shard is still here.
    """
    system, root = file_system(address)
    system.invalidate_cache()
    remote = f"{root.rstrip('/')}/{path.name}"
    if not _is_there(system, remote, path):
        _put(system, path, remote)
        system.invalidate_cache()
        if (found := system.size(remote)) != path.stat().st_size:
            raise OSError(f"{path.stat().st_size} bytes of {path} were uploaded, and {found} arrived")
    path.unlink()


def _put(system: Any, path: Path, remote: str) -> None:
    protocol = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if protocol & _WHOLE:
        system.put_file(os.fspath(path), remote)
        return
    # Elsewhere readers would see a part of it. What is hidden is not read.
    folder, _, name = remote.rpartition("/")
    system.makedirs(folder, exist_ok=True)
    hidden = f"{folder}/.{name}.part"
    system.put_file(os.fspath(path), hidden)
    system.mv(hidden, remote)


def _is_there(system: Any, remote: str, path: Path) -> bool:
    """Tells whether the shard is at the address: a process may be killed before it deletes what it has uploaded.

    Raises:
        FileExistsError: what is there is another file.
    """
    if not system.exists(remote):
        return False
    if system.size(remote) == path.stat().st_size:
        with system.open(remote, "rb") as there, path.open("rb") as here:
            if all(one == other for one, other in zip(_chunks(there), _chunks(here), strict=True)):
                return True
    raise FileExistsError(f"another file of the name {path.name} is there already; {path} was not uploaded")


def _chunks(file: Any) -> Iterator[bytes]:
    return iter(partial(file.read, _CHUNK), b"")


class Uploader:
    """Uploads shards in the order in which they were completed.

    Args:
        tick: called on the thread; returns in how many seconds it is to be called again, None: when a shard comes.
    """

    def __init__(self, address: str, tick: Callable[[], float | None]) -> None:
        self._address = address
        self._tick = tick
        self.reset()

    def reset(self) -> None:
        """Empties it. For a forked process: what waits is the other process's."""
        # Reentrant: the garbage collector may run anything while it is held.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[tuple[Path, int]] = deque()
        self._unsent: list[Unsent] = []
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._has_news = False
        """Whether there may be something to do since the thread has looked last."""
        self._delay, self._retry_at = FIRST_RETRY, 0.0
        self._failures = 0

    def add(self, path: Path, count: int) -> None:
        """Takes a complete shard with ``count`` trajectories."""
        with self._changed:
            self._waiting.append((path, count))
        self.wake()

    def wake(self) -> None:
        """Wakes the thread to look for work; starts it if needed."""
        with self._changed:
            self._has_news = True
            if not self._is_stopping and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="rollout_trace upload", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    # The interpreter is ending: `finish` uploads on its caller's thread.
                    self._thread = None
            self._changed.notify_all()

    def finish(self) -> list[Unsent]:
        """Uploads what is left, each shard once more, and ends the thread; returns what could not be uploaded."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._send_last()
        return self._unsent

    def _run(self) -> None:
        while not self._is_stopping:
            self._has_news, pause = False, None
            try:
                pause = self._tick()
            except Exception as error:
                guard.failed("shards", None, error)
            with self._changed:
                if self._is_stopping:
                    break
                retry = self._retry_at - time.monotonic() if self._waiting else None
                if retry is None or retry > 0:
                    if not self._has_news:
                        # A shard may be given any age, also an endless one.
                        times = [min(one, threading.TIMEOUT_MAX) for one in (retry, pause) if one is not None]
                        self._changed.wait(min(times, default=None))
                    continue
            self._send_next()
        self._send_last()

    def _send_next(self) -> None:
        path = self._waiting[0][0]
        try:
            send(self._address, path)
        except Exception as error:
            self._failed(path, error)
            return
        self._delay, self._retry_at = FIRST_RETRY, 0.0
        with self._changed:
            self._waiting.popleft()

    def _failed(self, path: Path, error: Exception) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, _LONGEST_RETRY)
        if self._failures == 1:
            guard.warn(
                f"{path} could not be uploaded to {shown(self._address)} ({guard.describe(error)}). It is kept there "
                "and tried again, and so are the shards that follow; the agent goes on."
            )

    def _send_last(self) -> None:
        while self._waiting:
            path, count = self._waiting.popleft()
            try:
                send(self._address, path)
            except Exception as error:
                self._unsent.append(Unsent(path, count, error))


class UploadedShards:
    """Writes shards to the spool of an address, and uploads each when it is complete.

    Args:
        settings: as for ``ShardWriter``; ``spool``: the folder with the spools.

    Raises:
        ValueError: the address is that of a file, media are to go to a folder, or no file system is known for it.
        ImportError: a package is missing that opens it.
        OSError: the spool cannot be made.
    """

    def __init__(
        self, address: str, settings: Settings, options: dict[str, Any], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = check_address(address)
        if options.get("media", "inline") != "inline":
            raise ValueError(
                f'media="folder" works only for local outputs. For {shown(address)} give media="inline", which keeps '
                "images, audio and files in the lines."
            )
        file_system(self.path)
        self.spool = spool_of(self.path, settings.spool)
        """The local folder with the shards that have not been uploaded, and the journal."""
        make_spool(self.spool, self.path)
        self.unsent: list[Unsent] = []
        """Shards that could not be uploaded; complete once the writer is closed."""
        self._claim: Claim | None = None
        self._shards = ShardWriter(
            self.spool,
            settings,
            options,
            stem=self._stem,
            finished=lambda *shard: self._uploads.add(*shard),
            clock=clock,
        )
        self._uploads = Uploader(self.path, self._shards.rotate_if_due)
        self.same_options = self._shards.same_options
        renew_after_fork(self, UploadedShards.renew)

    def _stem(self) -> str:
        stem, self._claim = claim_new(self.spool, self.path)
        return stem

    def write(self, trajectory: Trajectory) -> None:
        """Appends a closed trajectory to the shard of this process. Raises as ``ShardWriter.write``."""
        self._shards.write(trajectory)
        # The thread completes the shard when it is old enough, whether or not another trajectory comes.
        self._uploads.wake()

    def close(self) -> None:
        """Completes the shard and waits until all are uploaded, or each has failed once more: see ``unsent``."""
        self._shards.close()
        self.unsent = list(self._uploads.finish())
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        remove_if_empty(self.spool)

    def renew(self) -> None:
        """Resets the object in a forked process."""
        self._claim = None
        self.unsent = []
        self._uploads.reset()
