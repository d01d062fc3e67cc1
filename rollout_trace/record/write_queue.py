"""The thread of a recording: completes and writes closed trajectories, so that the agent's threads do not.

Or hands them over to the recording's writer process, and does itself what that cannot.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from rollout_trace import guard
from rollout_trace._threads import POLITE_LIMIT, give_way, renew_after_fork, set_polite
from rollout_trace.record import process_end
from rollout_trace.record.sink import NO_ANSWER, Answer, Sink
from rollout_trace.record.state import Episode

if TYPE_CHECKING:
    from rollout_trace.record.writer_process import WriterProcess

QUEUE_LIMIT = 256 * 1024 * 1024
"""Most bytes of closed trajectories that wait to be written; beyond it, closing another one waits."""


class _Barrier:
    """A place in the queue: set once everything before it is done."""

    def __init__(self, *, is_end: bool = False) -> None:
        self.is_end = is_end
        self.reached = threading.Event()
        self.waits_for: set[int] = set()
        """Numbers of the episodes that the writer process has not answered."""


_Item: TypeAlias = "Episode | _Barrier | list[Answer] | None"
_Starter: TypeAlias = "Callable[[Callable[[list[Answer]], object]], WriterProcess]"
_BY_THREAD = "This process writes from now on, by a thread; nothing is lost."


class WriteQueue:
    """Queue and thread of one recording. The thread starts with the first trajectory, and ends with ``stop``."""

    def __init__(self, sink: Sink, process: _Starter | None = None) -> None:
        """``process``: starts the writer process, which gives its answers to a function; None without one."""
        self._sink = sink
        self._process: WriterProcess | None = None
        """The process that writes what it can; None where this process writes all."""
        self._reset()
        if process is not None:
            try:
                self._process = process(self._items.put)
                self.start()
            except (OSError, RuntimeError) as error:
                guard.warn(f"{sink.name}: the writer process cannot be started ({guard.describe(error)}). {_BY_THREAD}")
        self.is_stopping = False
        """Set by ``stop``: the thread ends once everything is written."""
        self.must_wait = False
        """Whether closing waits until its trajectory is written: in a forked process, which may end without notice."""
        _queues.add(self)
        renew_after_fork(self, WriteQueue.reset_after_fork)

    def _reset(self) -> None:
        # A SimpleQueue: its `put` may interrupt itself. The garbage collector ends calls, and closes generators.
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._barriers: list[_Barrier] = []
        """Those that are not reached yet."""
        self._is_ended = False
        self._waiting: dict[int, Episode] = {}
        """Episodes with running calls."""
        self.backlog = 0
        """Bytes of closed trajectories that wait to be written, roughly."""
        # Reentrant, for the same reason.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._failures: list[Exception] = []

    def reset_after_fork(self) -> None:
        """Empties the queue of a forked process: what was in it is the original process's to write."""
        self._reset()
        self._process = None
        self._sink.reset()
        self.must_wait = True

    def put(self, episode: Episode) -> bool:
        """Queues an episode, and waits where too many bytes are queued already; False once ``stop`` was called."""
        # Before anything looks at whether a call runs: no end may be missed.
        episode.on_call_end(partial(self._items.put, episode))
        # Under the lock: nothing comes after the end.
        with self._changed:
            if self.is_stopping:
                return False
            self.backlog += episode.size
            # Where its last call has ended just now, the thread may have it already.
            has_thread = episode.is_written or self._hand_over(episode, wait=False) or self._queue(episode)
        if not has_thread:
            self._run_here()
        if self.must_wait:
            self.flush()
        else:
            self._wait_for_room()
        return True

    @property
    def has_process(self) -> bool:
        """Whether a process writes what it can."""
        return self._process is not None

    def _queue(self, episode: Episode) -> bool:
        """Queues an episode for the thread; False without a thread."""
        has_thread = self.start()
        self._items.put(episode)
        return has_thread

    def wake(self) -> None:
        """Wakes the thread to call ``write_waiting``. Takes no lock: the garbage collector may be the caller."""
        self._items.put(None)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything queued is written; False after ``timeout`` seconds.

        Episodes with running calls are not waited for.
        """
        return self._wait_for(_Barrier(), timeout)

    def stop(self, timeout: float | None = None) -> bool:
        """Ends all running calls, waits until everything is written and ends the thread; False after ``timeout``.

        Raises:
            Exception: under pytest, what failed on the thread.
        """
        with self._changed:
            self.is_stopping = True
        is_done = self._wait_for(_Barrier(is_end=True), timeout)
        if self._failures:
            raise self._failures.pop(0)
        return is_done

    def _wait_for(self, barrier: _Barrier, timeout: float | None) -> bool:
        if threading.current_thread() is self._thread:
            # The garbage collector closes something on this very thread.
            return False
        # Start the thread before queueing: a queue that has ended would never drain, and a thread that finds work at
        # once would hold the interpreter while this one waits for its start.
        has_thread = self.start()
        self._items.put(barrier)
        if not has_thread:
            self._run_here()
        return barrier.reached.wait(timeout)

    def _wait_for_room(self) -> None:
        if self.backlog <= QUEUE_LIMIT or threading.current_thread() is self._thread:
            return
        guard.warn_once(
            "slow-target",
            f"trajectories close faster than the disk writes them: {QUEUE_LIMIT >> 20} MB wait to be written. Closing "
            "a trajectory now waits until there is room.",
        )
        with self._changed:
            # At the end of the process the time is bounded, by what runs it.
            while self.backlog > QUEUE_LIMIT and not self._sink.is_failing and not process_end.is_running():
                self._changed.wait(1.0)

    def start(self) -> bool:
        """Starts the thread, unless it runs; False where none can be started: the interpreter is ending."""
        with self._changed:
            if self._thread is not None and self._thread.is_alive():
                return True
            self._thread = threading.Thread(target=self._run, name="rollout_trace recording", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = None
                return False
            return True

    def _run_here(self) -> None:
        """Does the thread's work on this one."""
        self._thread = threading.current_thread()
        try:
            while not self._items.empty() or self._barriers:
                self._do(self._items.get())
        finally:
            self._thread = None

    def _run(self) -> None:
        items, sink = self._items, self._sink
        has_imported = False
        while True:
            try:
                item = items.get(timeout=sink.retry_in)
            except queue.Empty:
                self._guarded(sink.retry)
                continue
            if has_imported:
                self._do(item)
            else:
                with _importing:
                    self._do(item)
                has_imported = isinstance(item, Episode)
            if self._is_ended:
                return
            # Otherwise the last episode would stay in memory until the next one comes.
            del item

    def _do(self, item: _Item) -> None:
        if item is None:
            # Calls that have to be redacted before the journal may have them.
            if self._sink.journal is not None:
                self._guarded(self._sink.journal.write_waiting)
            return
        if isinstance(item, Episode):
            self._guarded(self._write_ended, item)
            return
        if isinstance(item, list):
            for answer in item:
                self._guarded(self._answered, answer)
        else:
            if item.is_end:
                waiting, self._waiting = self._waiting, {}
                for episode in waiting.values():
                    self._guarded(episode.abandon)
                    self._guarded(self._write, episode)
            if self._process is not None:
                item.waits_for = set(self._process.handed)
                self._process.flush()
            self._barriers.append(item)
        self._reach()

    def _reach(self) -> None:
        """Ends the waiting for what has been answered."""
        handed = set() if self._process is None else set(self._process.handed)
        for barrier in list(self._barriers):
            if barrier.waits_for & handed:
                continue
            self._barriers.remove(barrier)
            if barrier.is_end and not self._is_ended:
                self._is_ended = True
                with self._changed:
                    process, self._process = self._process, None
                if process is not None:
                    self._guarded(process.end)
                self._guarded(self._sink.finish)
            barrier.reached.set()

    def _write_ended(self, episode: Episode) -> None:
        """Writes an episode, or sets it aside while a call of it runs."""
        if episode.is_written:
            return
        # Agents come first as long as the thread keeps up with them.
        set_polite(self.backlog < POLITE_LIMIT)
        give_way()
        if not episode.is_running:
            self._waiting.pop(id(episode), None)
            self._write(episode)
        elif id(episode) not in self._waiting:
            self._waiting[id(episode)] = episode
            self._release(episode)

    def _write(self, episode: Episode) -> None:
        # Asked again: `put` may have been handing it over meanwhile, and holds the lock until that is noted.
        with self._changed:
            if episode.is_written:
                return
            episode.is_written = True
        try:
            if self._hand_over(episode, wait=True):
                return
            self._sink.write(episode)
        except BaseException:
            self._release(episode)
            raise
        self._release(episode)

    def _hand_over(self, episode: Episode, *, wait: bool) -> bool:
        """Passes an episode to the writer process, which answers later; False if it must be written here.

        ``wait``: on the recording's thread, which may wait.
        """
        process = self._process
        # What the file has refused is kept here, and what follows with it.
        if process is None or self._sink.is_keeping or episode.is_running:
            return False
        try:
            if process.hand_over(episode, wait=wait):
                # It may have been answered already; to say so twice does no harm.
                episode.is_written = True
                return True
            if process.is_gone and wait:
                # At once: what it was given closed before this one.
                self._take_back(process)
        except BaseException as error:
            # Whether it has been sent is not known (Ctrl-C): what it has written is looked for, the rest written here.
            self._items.put([NO_ANSWER])
            if not isinstance(error, Exception):
                raise
            guard.failed("hand_over", None, error)
            # The one that is among what is taken back is not queued as well.
            return episode in process.handed.values()
        return False

    def _answered(self, answer: Answer) -> None:
        """Does what is left to do of an episode that the writer process has written, or could not write."""
        process = self._process
        if process is None:
            return
        episode = process.answered(answer)
        if episode is None:
            if answer.number is None:
                self._take_back(process)
            return
        self._finish(episode, answer.results)
        self._release(episode)

    def _finish(self, episode: Episode, results: Iterable[int | str | None]) -> None:
        for member, result in zip(episode.members, results, strict=True):
            if isinstance(result, int):
                self._guarded(self._sink.was_written, member, result)
                self._guarded(member.let_go)
                continue
            if result is not None:
                self._guarded(guard.failed, "writer process", None, RuntimeError(result))
            # What the file refuses is tried again here, kept and told of.
            self._guarded(self._sink.write_one, member)

    def _take_back(self, process: WriterProcess) -> None:
        """The writer process has ended too early: writes here what it did not."""
        with self._changed:
            # From now on it is given nothing more.
            self._process = None
        code, left, ids = process.take_back()
        guard.warn(f"{self._sink.name}: the writer process {process.pid} has ended (code {code}). {_BY_THREAD}")
        for episode in left:
            self._finish(episode, [0 if member.id in ids else None for member in episode.members])
            self._release(episode)

    def _release(self, episode: Episode) -> None:
        """Counts the episode's bytes as no longer queued; a second call does nothing."""
        with self._changed:
            if episode.is_queued:
                self.backlog -= episode.size
                episode.is_queued = False
                self._changed.notify_all()

    def _guarded(self, work: Callable[..., object], *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            # A function of the user's may call sys.exit(): without the thread, `stop` would wait for ever.
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
            # The guard raises under pytest only; there `stop` raises it, in the user's thread.
            if "PYTEST_CURRENT_TEST" in os.environ:
                self._failures.append(failure)
            else:
                guard.failed("write", None, failure)


def wait_for_all(deadline: float) -> None:
    """Ends the threads of all queues, and waits for them, at most until ``time.monotonic()`` is there."""
    for one in list(_queues):
        thread = one._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            # Once more: Ctrl-C may have come before the first one.
            one._items.put(_Barrier(is_end=True))
            thread.join(max(0.0, deadline - time.monotonic()))


_queues: WeakSet[WriteQueue] = WeakSet()

# Held while a thread writes its first trajectory, and imports what writing takes: a fork waits for it. A process that
# is forked in the middle of an import waits for that module for ever, as soon as it needs it.
# Reentrant: a writer of the user's own may fork, on that thread.
_importing = threading.RLock()
_held = threading.local()
_PATIENCE = 1.0
"""Most seconds that a fork waits."""


def _before_fork() -> None:
    _held.lock = _importing if _importing.acquire(timeout=_PATIENCE) else None


def _after_fork() -> None:
    if _held.lock is not None:
        _held.lock.release()


def _after_fork_in_child() -> None:
    """Renews the lock: its holder may not exist in the forked process."""
    global _importing
    _importing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
