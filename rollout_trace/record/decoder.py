"""A thread that decodes calls which would keep their caller waiting: large ones, and ones whose log is busy.

One daemon thread a process, started with the first such call. It waits in a queue while there is nothing to do. At the
interpreter's normal end it finishes the call it is decoding; calls still in the queue are decoded by whoever reads
their trajectory.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from rollout_trace import guard
from rollout_trace._threads import POLITE_LIMIT, renew_after_fork, set_polite


class _Task(NamedTuple):
    call: guard.HoldsFaults
    size: int
    decode: Callable[[], object]


class Decoder:
    """The thread and its queue."""

    def __init__(self) -> None:
        self.reset()
        atexit.register(self._stop)

    def reset(self) -> None:
        """Forgets the thread and the queue. For a forked process, which has neither."""
        # `SimpleQueue`, not `Queue`: its `put` may be interrupted by the garbage collector and called again from there.
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._lock = threading.RLock()
        self.backlog = 0
        """Bytes of the calls in the queue and of the one that is being decoded."""

    def submit(self, call: guard.HoldsFaults, size: int, decode: Callable[[], object]) -> bool:
        """Queues ``decode``, which decodes a call of ``size`` bytes; False where no thread can be had."""
        with self._lock:
            if self._stopped:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="rollout_trace decoder", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # No more threads, or the interpreter is ending.
                    return False
                self._thread = thread
            self.backlog += size
        self._queue.put(_Task(call, size, decode))
        return True

    def _run(self) -> None:
        while (task := self._queue.get()) is not None and not self._stopped:
            # Agents come first as long as the thread keeps up with them.
            set_polite(self.backlog < POLITE_LIMIT)
            try:
                task.decode()
            except Exception as error:
                # Under pytest `failed` raises: here nobody would see it. The call stays undecoded, and whoever reads
                # its trajectory gets the same failure.
                with suppress(Exception):
                    guard.failed("decode", task.call, error)
            finally:
                with self._lock:
                    self.backlog -= task.size
            # Not kept while waiting for the next one: it holds the steps.
            del task

    def _stop(self) -> None:
        """Ends the thread: one that is frozen in the middle of a call would keep its log locked for ever."""
        with self._lock:
            self._stopped, thread = True, self._thread
        self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            # Bounded: what a thread waits for that nobody releases must not keep the process from ending.
            thread.join(30)


decoder = Decoder()
renew_after_fork(decoder, Decoder.reset)
