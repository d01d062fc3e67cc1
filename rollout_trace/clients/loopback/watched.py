"""A connection to a server on which one waits no longer than one's own client does."""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rollout_trace.clients.loopback.messages import ConnectionCut

_LOOK = 0.1
"""Seconds between looks at whether the server closes, for which nothing wakes those that wait."""


class ClientGone(ConnectionCut):
    """Raised where the client has closed its connection before the end of the answer."""


class WatchedSocket:
    """A connection to a server, for ``http.client``, on which one waits no longer than one's client does.

    No thread looks at the client meanwhile: starting one takes longer than the rest of forwarding.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent: list[bytes] = []
        self._client: socket.socket | None = None
        self._closing = threading.Event()

    def watch(self, client: socket.socket | None, closing: threading.Event) -> None:
        """Names the client of the next exchange; ``closing`` ends the exchange too."""
        self._client, self._closing = client, closing

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection, once all files of it are closed."""
        self._socket.close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """A file to read an answer from."""
        return io.BufferedReader(_WatchedReader(self, self._socket.makefile("rb", buffering=0)))

    def sendall(self, data: bytes) -> None:
        """Keeps what is to be sent until ``flush``: a head and its body go at once."""
        self._unsent.append(data)

    def flush(self) -> None:
        """Sends what is kept.

        Raises:
            ClientGone: the client has gone meanwhile.
        """
        unsent, self._unsent = memoryview(b"".join(self._unsent)), []
        while unsent:
            unsent = unsent[self._done(self._socket.send, unsent, is_writing=True) :]

    def read_into(self, buffer: Any) -> int:
        """Reads the next bytes; returns how many, 0 at the end.

        Raises:
            ClientGone: the client has gone meanwhile.
        """
        return self._done(self._socket.recv_into, buffer, is_writing=False)

    def _done(self, action: Callable[[Any], int], buffer: Any, *, is_writing: bool) -> int:
        while True:
            try:
                return action(buffer)
            except BlockingIOError:
                self._wait(is_writing)
            # TLS may have to read where it is written to, and the other way round.
            except ssl.SSLWantReadError:
                self._wait(False)
            except ssl.SSLWantWriteError:
                self._wait(True)

    def _wait(self, is_writing: bool) -> None:
        while not self._closing.is_set():
            client = [] if self._client is None else [self._client]
            found = ready(client if is_writing else [*client, self], [self] if is_writing else (), _LOOK)
            if client and client[0].fileno() in found:
                if is_closed(client[0], 0):
                    break
                # What has come is of its next request: whether it goes can no longer be seen.
                self._client = None
            if self.fileno() in found:
                return
        raise ClientGone


class _WatchedReader(io.RawIOBase):
    """The bytes that come on a watched connection."""

    def __init__(self, watched: WatchedSocket, file: Any) -> None:
        self._watched = watched
        self._file = file
        """Keeps the connection open."""

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads the next bytes."""
        return self._watched.read_into(buffer)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def ready(reading: Sequence[Any], writing: Sequence[Any], seconds: float) -> set[int]:
    """The descriptors of those that can be read from or written to, or have ended, within some seconds."""
    if hasattr(select, "poll"):
        # Not `select.select`, which takes no descriptor above 1023: a process may have that many files open.
        poll = select.poll()
        for one in reading:
            poll.register(one, select.POLLIN)
        for one in writing:
            poll.register(one, select.POLLOUT)
        return {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
    return {one.fileno() for found in select.select(reading, writing, (), seconds) for one in found}


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other end of a connection is closed, or is within some seconds."""
    try:
        # Bytes that come are of the next request, or an empty line too many.
        return bool(ready([connection], (), seconds)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True
