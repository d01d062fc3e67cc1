"""The program of a worker of ``ProcessExecutor``: makes rollouts in an event loop of its own."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import threading
from concurrent.futures import Future
from multiprocessing import process, spawn
from typing import Any, BinaryIO

from rollout_trace import guard
from rollout_trace.collection.job import Work
from rollout_trace.collection.messages import finish_all, packed, portable, receive, unpickled_job

UNGUARDED = 87
"""Exit code of a process that met a call of ``collect`` while it imported the program's main module."""

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
    kind, data, grace = link.receive()
    assert kind == "prepare"
    try:
        _prepare(data)
    except BaseException as error:
        link.send(("unprepared", guard.describe(error)))
        raise
    link.send(("prepared",))
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

    def receive(self) -> Any:
        """Waits for a message. Raises EOFError where the other process has ended."""
        return receive(self._stream)

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends a message, from any thread."""
        data = packed(message)
        with self._lock:
            try:
                self._channel.sendall(data)
            except OSError:
                # The other process has ended, which the thread that reads finds.
                pass


class _Server:
    """Makes the rollouts that come through the connection.

    Args:
        grace: seconds to wait for rollouts that were stopped, and for the writing where the other process has ended.
    """

    def __init__(self, link: _Link, grace: float) -> None:
        self._link = link
        self._grace = grace
        self._works: dict[int, Work] = {}
        self._running: dict[int, Future[None]] = {}

    async def serve(self) -> None:
        """Returns when the last message has come, and what was recorded is written."""
        loop, last = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=self._read, args=(loop, last), name="rollout_trace worker reads", daemon=True).start()
        await last.wait()
        stopped = [asyncio.wrap_future(one) for one in list(self._running.values())]
        if stopped:
            await asyncio.wait(stopped, timeout=self._grace)
        await asyncio.to_thread(self._finish)
        self._link.send(("ended",))

    def _read(self, loop: asyncio.AbstractEventLoop, last: asyncio.Event) -> None:
        """Takes messages, on a thread: an agent may hold up the event loop."""
        while True:
            try:
                kind, *rest = self._link.receive()
            except EOFError:
                self._leave()
            if kind == "work":
                self._load(*rest)
            elif kind == "job":
                number = rest[0]
                self._running[number] = asyncio.run_coroutine_threadsafe(self._make(*rest), loop)
            elif kind == "stop":
                running = self._running.get(*rest)
                if running is not None:
                    running.cancel()
            elif kind == "ping":
                loop.call_soon_threadsafe(self._link.send, ("pong", *rest))
            elif kind == "end":
                loop.call_soon_threadsafe(last.set)

    def _load(self, number: int, payload: bytes) -> None:
        """Takes what the rollouts of a run share; imports the module of the agent."""
        try:
            self._works[number] = pickle.loads(payload)
        except BaseException as error:
            self._link.send(("refused", number, guard.describe(error)))
        else:
            self._link.send(("ready", number))

    async def _make(self, number: int, work: int, payload: bytes) -> None:
        try:
            outcome = await unpickled_job(payload, self._works[work]).arun()
            self._link.send(("made", number, outcome))
        except asyncio.CancelledError:
            self._link.send(("stopped", number))
        except BaseException as error:
            self._link.send(("raised", number, portable(error)))
        finally:
            self._running.pop(number, None)

    def _finish(self) -> None:
        for failure in finish_all(list(self._works.values())):
            guard.warn(f"a process for rollouts could not write all that it recorded: {failure}")

    def _leave(self) -> None:
        """Ends this process, whose starter has ended: what it recorded is in its journal, which the next run recovers.

        Without writing first. The next run would begin meanwhile and leave alone what a living process has; and what
        the agents see after the end of the recording would be in no file.
        """
        os._exit(1)
