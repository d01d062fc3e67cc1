"""``rt.recording``: writes closed trajectories to the file of the open recording."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace import credentials, guard
from rollout_trace._threads import lock_for
from rollout_trace._wrong_use import Uncalled, explained
from rollout_trace.data import user_values
from rollout_trace.file.addresses import absolute, is_address, is_folder_target, shown, to_local
from rollout_trace.record import process_end, write_queue
from rollout_trace.record.ancestry import OtherProcesses
from rollout_trace.record.redaction import Redactor
from rollout_trace.record.sink import Sink, Writer
from rollout_trace.record.state import Episode
from rollout_trace.record.write_queue import WriteQueue

if TYPE_CHECKING:
    from rollout_trace.data.costs import PriceTable
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.media import MediaMode
    from rollout_trace.file.shards import Compression, ShardWriter
    from rollout_trace.file.shards_upload import UploadedShards
    from rollout_trace.file.writer import JSONLWriter
    from rollout_trace.record.journal import Journal
    from rollout_trace.record.redaction import Redact
    from rollout_trace.record.sink import Answer
    from rollout_trace.record.writer_process import WriterProcess


class recording(metaclass=Uncalled):
    """Writes every outermost trajectory that closes inside the block, with its children.

    The target is a file, shards in a folder or at an address, or a writer.

    It covers all threads of the process: a trajectory that closes in a thread without its own recording is written to
    the only open one. ``with ... as`` returns the writer. Trajectories are decoded and written on the recording's
    thread; leaving the block waits until all are written. If a stream began inside a trajectory and is read after it,
    the trajectory is written when the stream ends; leaving the recording's block ends the stream (``abandoned``). A
    trajectory that cannot be written does not stop the agent: it is kept and retried, and on leaving the block
    WriteError holds what the file lacks.

    In a folder, each process writes its own files (shards), ``part-<host>-<process>-<number>.jsonl.zst``. Shards for an
    address (``s3://bucket/run``) are written to a local folder, the spool, and uploaded on a separate thread when they
    are complete, at the latest when the block is left. A failed upload is retried. See docs/files.md.

    Args:
        target: path of a JSONL file, which is appended to; or of a folder that exists or whose path ends with a slash
            (any other name without a suffix is a file); or an address that fsspec opens; or a writer, whose ``write``
            runs on the recording's thread.
        media: where to store images, audio and files, as for ``JSONLWriter``.
        prices: price table for the cost of each call, unless the provider's answer or the user has set one.
        journal: keep finished calls beside the file, in ``<path>.journal``, until their trajectory is written, so that
            a killed process loses only the calls in flight. ``rt.recover(path)`` reads it.
        fsync: make sure that each line is on the disk before the next one is written.
        redact: what must not reach a disk: a regular expression, a list of them, or a function of a text and its place
            that returns the text to keep. See docs/security.md.
        secret_headers: names of request headers that carry keys, such as ``cookie``, in addition to the usual ones.
            Their values are removed from whatever servers return, in the whole process, from then on.
        lock_timeout: seconds to wait for a file that another process has locked; then the trajectory is kept and
            retried.
        mode: permission bits of created files, such as ``0o600``; None leaves them to the process's umask.
        shard_bytes: for a folder or an address: bytes of JSON after which the process begins its next shard.
        shard_seconds: for a folder or an address: age in seconds after which the next shard begins. At an address, a
            shard is uploaded at that age.
        compression: compression of shards: ``zst``, ``gz`` or ``none``; None: ``zst`` if the package zstandard is
            installed, otherwise ``gz``.
        spool: for an address: the local folder for its shards and journal until they are uploaded. None: the folder in
            the environment variable ``ROLLOUT_TRACE_SPOOL``, otherwise ``~/.local/state/rollout-trace/spool``.
        writer: ``thread``: a thread of this process decodes and writes trajectories. ``process``: a separate process
            does, which reads the calls from the journal while the agents run, and ends with this one. If this process
            is killed, the writer process writes what is there, so that nothing needs recovery. It pays off for many
            small calls per second and a free core; starting it takes a tenth of a second of CPU time. docs/files.md
            says what the thread writes even then.

    Raises:
        TypeError: the target is neither a path nor a writer (an open file is not a writer), ``prices`` is not a
            ``PriceTable``, or ``secret_headers`` are not names.
        ValueError: a file setting such as ``media`` or ``fsync`` is passed together with a writer, which has its own,
            or has a value that ``JSONLWriter`` rejects; shard settings are passed together with a file; or, on entering
            the block, the path is rejected.
        ImportError: on entering the block, the package that opens the address is missing.
        RuntimeError: the same object is entered again while it is open.
        WriteError: on leaving the block, trajectories could not be written, or shards could not be uploaded.
    """

    @explained
    def __init__(
        self,
        target: str | os.PathLike[str] | Writer,
        *,
        media: MediaMode = "inline",
        prices: PriceTable | None = None,
        journal: bool = True,
        fsync: bool = False,
        redact: Redact | None = None,
        secret_headers: Iterable[str] = (),
        lock_timeout: float = 10.0,
        mode: int | None = None,
        shard_bytes: int = 256 * 1024 * 1024,
        shard_seconds: float = 600.0,
        compression: Compression | None = None,
        spool: str | os.PathLike[str] | None = None,
        writer: Literal["thread", "process"] = "thread",
    ) -> None:
        _check_target(target)
        _check_process(writer, target, journal=journal)
        if prices is not None and not hasattr(prices, "apply"):
            raise TypeError(f"prices is {user_values.brief(prices)}; give rt.PriceTable({{model: rt.Price(...)}}).")
        # By the names of the arguments: `_changed`.
        self._file_settings: dict[str, Any] = {
            "media": media,
            "fsync": fsync,
            "lock_timeout": lock_timeout,
            "mode": mode,
        }
        self._shard_settings: dict[str, Any] = {
            "shard_bytes": shard_bytes,
            "shard_seconds": shard_seconds,
            "compression": compression,
            "spool": spool,
        }
        _check_file_settings(self._file_settings, target)
        _check_shard_settings(self._shard_settings, target)
        self._target = target
        self.name = shown(str(target)) if is_address(target) else str(target)
        """The target, for messages."""
        self._prices = prices
        self._is_journaled = journal
        self._has_process = writer == "process"
        redactor = None if redact is None else Redactor(redact)
        self._redactor = redactor if redactor is not None and redactor.has_rules else None
        self._secret_headers = credentials.header_names(secret_headers)
        self._writer: Writer | None = None
        self._path: str | None = None
        self._sink: Sink | None = None
        self._queue: WriteQueue | None = None
        self.journal: Journal | None = None
        """Journal of finished calls whose trajectory is not yet written; None without a journal."""
        self.others = OtherProcesses(None)
        """Notes to write, at the end, for other processes that write to the output."""
        self._is_entered = False
        self._is_ended_by_exit = False
        self._outer: recording | None = None

    def __enter__(self) -> Writer:
        with _lock:
            if self._is_entered:
                raise RuntimeError(
                    f"this recording to {self._target} is already open. Open it once, around everything (threads "
                    "inherit it with rt.propagate(function)), or make an rt.recording() for each block."
                )
            self._is_entered = True
        # Outside of the lock, which every closing trajectory takes: opening a file may wait for a disk.
        try:
            writer = self._open_target()
            self._outer = _current.get()
            _current.set(self)
            _open_recordings.append(self)
            guard.run_all("exit", process_end.watch)
            return writer
        except BaseException:
            self._is_entered = False
            raise

    def open_without_block(self) -> None:
        """Opens the recording for explicit use only: no context enters it, and it is not in ``open_recordings``.

        ``end_with_process`` ends it.
        """
        self._is_entered = True
        self._open_target()

    def _open_target(self) -> Writer:
        credentials.add_secret_headers(self._secret_headers)
        target, place, close = self._target, None, []
        if isinstance(target, (str, os.PathLike)):
            target, place = self._open_path(target)
            close = [target.close]
        if place is not None and self._is_journaled:
            from rollout_trace.record.journal import Journal

            self.journal = Journal(place, mode=self._file_settings["mode"], redactor=self._redactor)
            close.append(self.journal.close)
        self._writer = writer = target
        # Now: the program may change its folder.
        path = getattr(writer, "path", None)
        self._path = absolute(path) if isinstance(path, (str, os.PathLike)) else None
        self.others = OtherProcesses(None if self._path is None or is_address(self._path) else self._path)
        self._sink = Sink(
            writer,
            self.name,
            close=partial(guard.run_all, "close", *close),
            prices=self._prices,
            redactor=self._redactor,
            journal=self.journal,
        )
        self._queue = WriteQueue(self._sink, self._process())
        if self.journal is not None:
            self.journal.wake = self._queue.wake
            if self.is_redacted:
                # What is redacted is journaled by the thread: it must be there when the first call ends.
                self._queue.start()
        return writer

    def _process(self) -> Callable[[Callable[[list[Answer]], object]], WriterProcess] | None:
        """Starts the writer process; None where there is none, or nothing to leave to it."""
        target = self._target
        if not (self._has_process and self.journal is not None and isinstance(target, (str, os.PathLike))):
            return None
        from rollout_trace.record.writer_process import WriterProcess, settings_of

        settings = settings_of(
            absolute(target),
            is_folder=is_folder_target(target),
            file=self._file_settings,
            shards=self._shard_settings,
            prices=self._prices,
            journal=self.journal,
        )
        return None if settings is None else partial(WriterProcess, settings, self._prices)

    def _open_path(
        self, path: str | os.PathLike[str]
    ) -> tuple[JSONLWriter | ShardWriter | UploadedShards, Path | None]:
        """The writer of a file, a folder or an address, and the place beside which its journal is; None without one."""
        if not is_folder_target(path):
            from rollout_trace.file.writer import JSONLWriter

            writer = JSONLWriter(to_local(path), **self._file_settings)
            # Beside a device, such as /dev/null, is no place for a journal, and nothing to recover.
            is_device = os.path.exists(writer.path) and not os.path.isfile(writer.path)
            return writer, None if is_device else writer.path
        from rollout_trace.file.shards import Settings, ShardWriter
        from rollout_trace.file.shards_upload import UploadedShards

        folder, settings = to_local(path), Settings(**self._shard_settings)
        if not is_address(folder):
            shards = ShardWriter(folder, settings, self._file_settings)
            return shards, shards.path
        uploaded = UploadedShards(folder, settings, self._file_settings)
        # Until a shard is uploaded, what has not been written to it is on this machine, as the shard is.
        return uploaded, uploaded.spool

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self._was_ended:
            self._stop()
            self._raise_lost(error)

    async def __aenter__(self) -> Writer:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._was_ended:
            return
        # Imported on use: a recording needs no event loop.
        import asyncio

        # The event loop goes on meanwhile: streams that are still read may end by themselves.
        end = partial(self._end, self._leave())
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # Of another library.
            loop = None
        try:
            if loop is None:
                end()
            else:
                await loop.run_in_executor(None, end)
        finally:
            _unwatch()
        self._raise_lost(error)

    @property
    def _was_ended(self) -> bool:
        """Whether the end of the process has ended it: finalizers and functions of atexit may leave it after that."""
        return self._queue is None and self._is_ended_by_exit

    def _stop(self, timeout: float | None = None) -> bool:
        queue = self._leave()
        try:
            return self._end(queue, timeout)
        finally:
            _unwatch()

    def _end(self, queue: WriteQueue, timeout: float | None = None) -> bool:
        is_written = queue.stop(timeout)
        if is_written:
            guard.run_all("episodes", self.others.note)
        return is_written

    def end_with_process(self, deadline: float) -> None:
        """Ends the recording and logs what was not written. ``deadline`` is in ``time.monotonic`` seconds."""
        self._is_ended_by_exit = True
        where = "" if self.journal is None else f" The journal has the rest: rt.recover({self.name!r})."
        if not self._stop(max(0.0, deadline - time.monotonic())):
            guard.warn(f"{self.name} could not be written completely within {process_end.CLOSE_TIMEOUT:g} s.{where}")
        elif self._sink is not None and self._sink.has_lost:
            guard.warn(str(self._sink.write_error()))

    def _leave(self) -> WriteQueue:
        """Takes no further trajectory; returns the queue, which is to be stopped."""
        if self._queue is None:
            raise RuntimeError(f"the recording to {self._target} was left without being entered, or was left twice.")
        if self in _open_recordings:
            _open_recordings.remove(self)
        left, self._queue, self._writer, self.journal = self._queue, None, None, None
        # Not reset(token): a fixture may leave the block in another context than it entered, or before an inner one.
        here, outer = _current.get(), self._outer
        if here is None or not here.is_open:
            while outer is not None and not outer.is_open:
                outer = outer._outer
            _current.set(outer)
        self._is_entered = False
        return left

    def _raise_lost(self, error: BaseException | None) -> None:
        """Raises what could not be written, unless an exception of the agent is on its way."""
        if self._sink is not None and self._sink.has_lost and error is None:
            raise self._sink.write_error()

    @property
    def path(self) -> str | None:
        """Absolute path of the file or folder, or the address; None outside the block, and for a writer without one."""
        return self._path if self.is_open else None

    @property
    def is_redacted(self) -> bool:
        """Whether ``redact=`` was given."""
        return self._redactor is not None

    @property
    def lost(self) -> list[tuple[Trajectory, BaseException]]:
        """Trajectories that could not be written, each with the exception; complete once the block has ended."""
        return [] if self._sink is None else self._sink.lost

    @property
    def is_open(self) -> bool:
        """True inside the block."""
        return self._writer is not None

    def is_inside(self, outer: recording) -> bool:
        """Whether this block is open, and is ``outer`` or was entered inside it."""
        if not self.is_open:
            return False
        one: recording | None = self
        while one is not None and one is not outer:
            one = one._outer
        return one is not None

    @property
    def is_followed(self) -> bool:
        """Whether a writer process decodes the calls in the journal."""
        queue = self._queue
        return queue is not None and queue.has_process

    @property
    def backlog(self) -> int:
        """Approximate bytes of closed trajectories waiting to be written; 0 outside the block."""
        queue = self._queue
        return 0 if queue is None else queue.backlog

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all trajectories closed so far are written, if possible; False after ``timeout`` seconds.

        It does not wait for trajectories with a stream that is still being read.
        """
        queue = self._queue
        return queue is None or queue.flush(timeout)

    def write(self, trajectories: list[Trajectory]) -> bool:
        """Queues closed trajectories for the recording's thread to write together; returns False if it has ended."""
        # Read once: another thread may leave the block meanwhile.
        queue = self._queue
        if queue is None:
            return False
        episode = Episode(trajectories)
        # Before it is written, and let go of, which may be at once.
        self.others.add(episode.members)
        states = [member.state for member in episode.members if member.state is not None]
        if not queue.put(episode):
            return False
        for state in states:
            state.handed_to = self.name
        return True


def _unwatch() -> None:
    """Takes off the handler of SIGTERM, once nothing is left to write."""
    if not _open_recordings:
        guard.run_all("exit", process_end.unwatch)


def _changed(settings: dict[str, Any]) -> str | None:
    """The first of the arguments of ``recording`` that is not its default; None where all are."""
    defaults: Any = inspect.unwrap(recording.__init__).__kwdefaults__
    return next((f"{name}={value!r}" for name, value in settings.items() if value != defaults[name]), None)


def _check_file_settings(settings: dict[str, Any], target: object) -> None:
    changed = _changed(settings)
    if changed is None:
        return
    if not isinstance(target, (str, os.PathLike)):
        raise ValueError(f"{changed} works only with a path. Give it to the writer: JSONLWriter(path, {changed}).")
    from rollout_trace.file.addresses import check_permissions
    from rollout_trace.file.writer import check_lock_timeout, check_media

    check_media(settings["media"])
    check_permissions(settings["mode"])
    check_lock_timeout(settings["lock_timeout"])


def _check_shard_settings(settings: dict[str, Any], target: object) -> None:
    changed = _changed(settings)
    if changed is None:
        return
    if not isinstance(target, (str, os.PathLike)) or not is_folder_target(target):
        raise ValueError(
            f'{changed} is for shards. Give a folder, such as "rollouts/", or an address, such as "s3://bucket/rollouts".'
        )
    from rollout_trace.file.shards import Settings

    Settings(**settings).checked()


def _check_process(writer: object, target: object, *, journal: bool) -> None:
    if writer == "thread":
        return
    if writer != "process":
        raise ValueError(f'writer is {user_values.brief(writer)}; it can be "thread" or "process".')
    if not journal:
        raise ValueError('writer="process" needs the journal, from which it reads the calls. Leave out journal=False.')
    if not isinstance(target, (str, os.PathLike)) or is_address(target):
        raise ValueError(
            'writer="process" works only for a file or folder of this machine, and the target is '
            f"{user_values.brief(target)}. Leave writer= out."
        )


def _check_target(target: Any) -> None:
    if isinstance(target, (str, os.PathLike)):
        return
    # An open file has a `write` too, but for text: only `writelines` tells it from a writer.
    if not callable(getattr(target, "write", None)) or hasattr(target, "writelines"):
        what = "an open file" if hasattr(target, "writelines") else type(target).__name__
        raise TypeError(
            f"rt.recording() was given {user_values.brief(target)} ({what}); give the path of a file, such as "
            '"rollouts.jsonl", or a writer, such as rt.JSONLWriter(path).'
        )


_current: ContextVar[recording | None] = ContextVar("rollout_trace_recording", default=None)
_open_recordings: list[recording] = []
_lock = lock_for(__name__)


current_recording: Callable[[], recording | None] = _current.get
"""The recording block that this context is in, or was copied in; it may have closed since. None without one."""


def set_current_recording(value: recording | None) -> None:
    """Sets the recording of this context."""
    _current.set(value)


def open_recordings() -> list[recording]:
    """The recordings whose blocks have been entered and not left, the outermost first."""
    return list(_open_recordings)


def _end_open_recordings() -> None:
    """Ends the recordings whose blocks were not left, and waits for those that still write. For the process's end."""
    deadline = time.monotonic() + process_end.CLOSE_TIMEOUT
    for one in reversed(open_recordings()):
        guard.run_all("exit", partial(one.end_with_process, deadline))
    # Interrupted while they waited, by Ctrl-C: their threads go on.
    write_queue.wait_for_all(deadline)


process_end.add_closer(_end_open_recordings)
