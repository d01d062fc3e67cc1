"""Calls that have ended and are not decoded yet: the oldest are decoded once too many bytes wait.

At once, by whoever makes another call, where that is quick; else on a thread. That is one daemon thread a process,
started with the first such call: a large one, one whose log is busy, or one with exact turns, whose ids the next needs.
It waits in a queue while there is nothing to do. At the interpreter's normal end it finishes the call it is decoding;
calls still in the queue are decoded by whoever reads their trajectory.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from rollout_trace import guard
from rollout_trace._threads import POLITE_LIMIT, renew_after_fork, set_polite
from rollout_trace.record.call import Call, just_ended

PENDING_LIMIT = 4 * 1024 * 1024
"""Most bytes of finished calls that wait for decoding in this process; beyond it the oldest are decoded at once."""
LARGE = 64 * 1024
"""Most bytes of a response that is decoded by the caller of another call (about 3 ms); a thread decodes longer ones."""
_PACKED = 8
"""Times by which a compressed response counts more: it is longer once unpacked."""
_REQUEST = 16
"""Times by which a request counts less: it is split into messages, most of which are known already."""
BACKLOG_LIMIT = 256 * 1024 * 1024
"""Most bytes that wait for that thread; beyond it callers decode large calls too, which keeps the bytes bounded."""


class _Task(NamedTuple):
    call: Call
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

    def submit(self, call: Call, size: int, decode: Callable[[], object]) -> bool:
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


class _Pending:
    """Finished calls that are not decoded yet, oldest first, and the total of their bytes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Drops all calls, in a forked process: they are the other's, and a thread of it may have held the lock."""
        just_ended.clear()
        self._sizes: dict[Call, int] = {}
        self._total = 0
        # Reentrant: while the lock is held, the garbage collector may close an agent (a generator), and its calls.
        self._lock = threading.RLock()

    def drain(self) -> None:
        """Collects finished calls and decodes the oldest once more than ``PENDING_LIMIT`` bytes wait."""
        while just_ended:
            try:
                call = just_ended.popleft()
            except IndexError:
                # Another thread has taken the last one since `while` looked.
                return
            # Its trajectory may have closed meanwhile and decoded it: then it does not wait.
            if call.steps is None:
                try:
                    self._add(call)
                except Exception as error:
                    guard.failed("pending", call, error)
        while self._total > PENDING_LIMIT:
            with self._lock:
                oldest = next(iter(self._sizes), None)
                size = self._remove(oldest)
            if oldest is None:
                return
            if oldest.log is not None and oldest.log.set_aside(oldest):
                continue
            # Here if that is quick, else on the decoder's thread.
            body = oldest.held * (1 if oldest.encoding is None else _PACKED)
            work = body + len(oldest.request or b"") // _REQUEST
            if work <= LARGE and decode(oldest, wait=False):
                continue
            is_full = decoder.backlog + size > BACKLOG_LIMIT
            if is_full or not decoder.submit(oldest, size, partial(decode, oldest)):
                decode(oldest)

    def _add(self, call: Call) -> None:
        size = call.size()
        with self._lock:
            self._total += size - self._sizes.get(call, 0)
            self._sizes[call] = size
        if call.steps is not None:
            # Decoded while it was added.
            self.discard(call)
        elif call.settings.wishes is not None and call.settings.wishes.exact_turns:
            # The next call needs its ids: decoded while the agent does something else.
            decoder.submit(call, 0, partial(decode if call.log is None else call.log.prepare, call))

    def discard(self, call: Call) -> None:
        """Counts a call no more."""
        if call in self._sizes:
            with self._lock:
                self._remove(call)

    def _remove(self, call: Call | None) -> int:
        size = 0 if call is None else self._sizes.pop(call, 0)
        self._total -= size
        return size


pending = _Pending()

renew_after_fork(pending, _Pending.reset)


deferred: deque[Callable[[], object]] = deque()
"""Functions that ``drain`` runs, once each: for what a call's end cannot do, which may be a finalizer."""


def drain() -> None:
    """Collects finished calls. Only for places where locks may be taken and calls decoded: not for finalizers."""
    while deferred:
        try:
            deferred.popleft()()
        except IndexError:
            break
    pending.drain()


def decode(call: Call, *, wait: bool = True) -> bool:
    """Decodes a finished call and drops its bytes. Does nothing if it has been decoded.

    Without ``wait`` it returns False, and decodes nothing, while another thread decodes a call of the same log.
    """
    pending.discard(call)
    log = call.log
    return log is None or log.decode(call, wait=wait)


_PLAIN = frozenset({type(None), bool, int, float, datetime})
"""Types of values that take no memory worth counting."""
_SMALL = 256
"""Bytes of a text below which it is counted wherever it stands: to remember it would take as much."""


def held_bytes(values: Iterable[Any], seen: set[int]) -> int:
    """Roughly, the bytes that values occupy with what is in them: dicts, lists, texts, arrays, records.

    Of other objects only what the object itself takes: what it refers to (a client, a simulation) is seldom its own.

    Args:
        values: any values. Each must live as long as ``seen`` is used.
        seen: ``id`` of what was counted before, which is not counted again.
    """
    total, parts = 0, list(values)
    while parts:
        part = parts.pop()
        kind = type(part)
        if kind in _PLAIN:
            continue
        if kind is str and len(part) < _SMALL:
            total += sys.getsizeof(part)
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        try:
            size = sys.getsizeof(part)
            # Of an array that another one holds, and of tensors, the object alone is counted by Python.
            total += max(size, int(part.nbytes)) if hasattr(kind, "nbytes") else size
        except Exception:  # Code of a user's.
            pass
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            parts += part
        elif not isinstance(part, (str, bytes)):
            parts += _fields_of(part)
    return total


def _fields_of(value: Any) -> list[Any]:
    """What a dataclass or a Pydantic object holds; of others nothing."""
    try:
        if is_dataclass(value) and not isinstance(value, type):
            return [getattr(value, item.name) for item in fields(value)]
        return list(vars(value).values()) if callable(getattr(type(value), "model_dump", None)) else []
    except Exception:  # Code of a user's: properties, `__getattribute__`.
        return []
