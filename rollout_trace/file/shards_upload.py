"""Uploads complete shards to an address, on a thread of its own, and keeps those that could not be uploaded."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace import guard
from rollout_trace._forks import renew_after_fork
from rollout_trace.file.addresses import file_system, shown
from rollout_trace.file.shards import Settings, ShardWriter, check_address
from rollout_trace.file.shards_spool import Claim, claim_new, make_spool, remove_if_empty, spool_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.writer import JSONLWriter

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
        address: where they go.
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
        """Has the thread look what there is to do; starts it, if need be."""
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
                f"{path} could not be uploaded to {shown(self._address)} ({guard.describe(error)}). It is kept there, "
                "as those that follow are, and tried again; the agent goes on."
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
        address: the "folder" of the shards.
        settings: as for ``ShardWriter``; ``spool``: the folder with the spools.
        options: of ``JSONLWriter``.
        clock: as for ``ShardWriter``.

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
                f'media="folder" is for local outputs: at {shown(address)} images, audio and files stay in the lines, '
                'media="inline".'
            )
        file_system(self.path)
        self.spool = spool_of(self.path, settings.spool)
        """The local folder with the shards that have not been uploaded, and the journal."""
        make_spool(self.spool, self.path)
        self.unsent: list[Unsent] = []
        """Shards that could not be uploaded; complete once the writer is closed."""
        self._claim: Claim | None = None
        self._shards = ShardWriter(self.spool, settings, options, stem=self._stem, finished=self._add, clock=clock)
        self._uploads = Uploader(self.path, self._shards.rotate_if_due)
        renew_after_fork(self, UploadedShards.renew)

    def _stem(self) -> str:
        stem, self._claim = claim_new(self.spool, self.path)
        return stem

    def _add(self, path: Path, count: int) -> None:
        self._uploads.add(path, count)

    def write(self, trajectory: Trajectory) -> None:
        """Appends a closed trajectory to the shard of this process. Raises as ``ShardWriter.write``."""
        self._shards.write(trajectory)
        # The thread completes the shard when it is old enough, whether or not another trajectory comes.
        self._uploads.wake()

    def close(self) -> None:
        """Completes the shard and waits until all are uploaded, or each has failed once more: see ``unsent``."""
        self._shards.close()
        self.unsent = list(self._uploads.finish())
        held, self._claim = self._claim, None
        if held is not None:
            held.release()
        remove_if_empty(self.spool)

    def same_options(self) -> partial[JSONLWriter]:
        """Opens a writer of one file with the options of the shards."""
        return self._shards.same_options()

    def renew(self) -> None:
        """For a forked process."""
        self._claim = None
        self.unsent = []
        self._uploads.reset()
