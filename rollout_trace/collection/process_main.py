"""The program of a worker of ``ProcessExecutor``: makes rollouts in an event loop of its own.

What it is told comes as pickled tuples: what to do, a number, and what that needs. What it says are tuples, too, each
after its length: that number, how it ended (``made``, ``raised`` or ``stopped``), and what came of it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing import process, spawn
from typing import Any, BinaryIO

from rollout_trace import guard
from rollout_trace.collection.job import Job, Work

UNGUARDED = 87
"""Exit code of a process that met a call of ``collect`` while it imported the program's main module."""
LENGTH = struct.Struct(">Q")
"""Bytes of what follows."""

is_preparing = False
"""Whether this process is a worker that imports the main module now."""


def main(channel: socket.socket, stream: BinaryIO) -> None:
    """Runs until the other process says so, or has ended. Called in a new process, which ends then."""
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C is for the process that started this one. A function, because programs started here inherit SIG_IGN.
        signal.signal(signal.SIGINT, lambda *_: None)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    channel.set_inheritable(False)
    if hasattr(os, "register_at_fork"):
        # A process that is forked here and outlives this one must not keep the connection open.
        os.register_at_fork(after_in_child=lambda: os.close(channel.detach()) if channel.fileno() >= 0 else None)
    link = _Link(channel, stream)
    _, number, data, grace = link.receive()
    try:
        _prepare(data)
    except BaseException as error:
        reason = f"a process for rollouts cannot import the main module: {guard.describe(error)}"
        link.send(number, "raised", RuntimeError(reason))
        raise
    link.send(number, "made", None)
    asyncio.run(_Server(link, grace).serve())


def _prepare(data: dict[str, Any]) -> None:
    """Imports the program's main module, as ``multiprocessing`` does, under another name than ``__main__``."""
    global is_preparing
    current: Any = process.current_process()
    is_preparing = current._inheriting = True
    try:
        spawn.prepare(data)
    finally:
        is_preparing = False
        del current._inheriting


def leave_if_preparing() -> None:
    """Ends this process if it is a worker that has just met a call of ``collect`` in the program's main module."""
    if is_preparing:
        os._exit(UNGUARDED)


class _Link:
    """The connection to the process that started this one."""

    def __init__(self, channel: socket.socket, stream: BinaryIO) -> None:
        self._channel = channel
        self._stream = stream
        self._lock = threading.Lock()

    def receive(self) -> tuple[Any, ...]:
        """Waits for the next request. Ends this process where its starter has ended: the next run recovers its journal.

        Nothing is written first: the next run may have begun, and leaves alone what a living process has.
        """
        try:
            told: tuple[Any, ...] = pickle.load(self._stream)
            return told
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(1)

    def send(self, number: int, how: str, result: Any) -> None:
        """Says how something has ended, from any thread."""
        data = pickle.dumps((number, how, result), pickle.HIGHEST_PROTOCOL)
        with self._lock:
            try:
                self._channel.sendall(LENGTH.pack(len(data)) + data)
            except OSError:
                # The other process has ended, which the thread that reads finds.
                pass


class _Server:
    """Makes the rollouts that come through the connection; at the end it waits ``grace`` seconds for those stopped."""

    def __init__(self, link: _Link, grace: float) -> None:
        self._link = link
        self._grace = grace
        self._works: dict[int, Work] = {}
        self._running: dict[int, Future[None]] = {}

    async def serve(self) -> None:
        """Returns when the end has come, and what was recorded is written."""
        loop = asyncio.get_running_loop()
        last: asyncio.Future[int] = loop.create_future()
        threading.Thread(target=self._read, args=(loop, last), name="rollout_trace worker reads", daemon=True).start()
        number = await last
        stopped = [asyncio.wrap_future(one) for one in list(self._running.values())]
        if stopped:
            await asyncio.wait(stopped, timeout=self._grace)
        for failure in await asyncio.to_thread(finish_all, list(self._works.values())):
            guard.warn(f"a worker process could not write all that it recorded: {failure}")
        self._link.send(number, "made", None)

    def _read(self, loop: asyncio.AbstractEventLoop, last: asyncio.Future[int]) -> None:
        """Reads requests on a thread, because an agent may block the event loop."""
        while True:
            kind, number, *rest = self._link.receive()
            if kind == "work":
                self._load(number, *rest)
            elif kind == "job":
                self._running[number] = asyncio.run_coroutine_threadsafe(self._make(number, *rest), loop)
            elif kind == "stop":
                running = self._running.get(number)
                if running is not None:
                    running.cancel()
            elif kind == "ping":
                loop.call_soon_threadsafe(self._link.send, number, "made", None)
            elif kind == "end":
                loop.call_soon_threadsafe(last.set_result, number)

    def _load(self, number: int, work: int, payload: bytes) -> None:
        """Takes what the rollouts of a run share; imports the module of the agent."""
        try:
            self._works[work] = pickle.loads(payload)
        except BaseException as error:
            reason = (
                "a process for rollouts cannot make the agent, or the reward, from what it was sent "
                f"({guard.describe(error)}). Define them in a module that can be imported, not in a notebook or a "
                "session; or make the rollouts in this process (executor=None)."
            )
            self._link.send(number, "raised", TypeError(reason))
        else:
            self._link.send(number, "made", None)

    async def _make(self, number: int, work: int, payload: bytes) -> None:
        try:
            job: Job = replace(pickle.loads(payload), work=self._works[work])
            self._link.send(number, "made", await job.arun())
        except asyncio.CancelledError:
            self._link.send(number, "stopped", None)
        except BaseException as error:
            self._link.send(number, "raised", portable(error))
        finally:
            self._running.pop(number, None)


def portable(error: BaseException) -> BaseException:
    """An exception that can be pickled: itself, or one with its class and message as text."""
    try:
        # Some cannot be made again from what they are pickled as.
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(guard.describe(error))
    return error


def finish_all(works: Sequence[Work]) -> list[str]:
    """Completes what this process wrote in these runs; returns why some of it could not be written."""
    # Looked up, not imported: without it no rollout was made here.
    serving: Any = sys.modules.get("rollout_trace.collection.serving")
    failures = []
    for work in () if serving is None else works:
        try:
            serving.finish(work)
        except Exception as error:
            failures.append(guard.describe(error))
    return failures
