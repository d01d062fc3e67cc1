"""A model server in a process of its own: one answer for all requests, after a fixed delay.

As a program, ``python -m benchmarks.delayed_server SECONDS``, it prints its port and serves until its standard
input ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import payloads

BACKLOG = 2048


class _Connection(asyncio.Protocol):
    """HTTP/1.1 as far as the SDK's client needs it: requests with a content-length, one after the other."""

    def __init__(self, answer: bytes, delay: float) -> None:
        self._answer, self._delay = answer, delay
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._data[:end]).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._data) < end + 4 + length:
            return
        del self._data[: end + 4 + length]
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self._transport is not None:
            self._transport.write(self._answer)


async def _serve(delay: float) -> None:
    exchange = payloads.small()
    body = exchange.body
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {exchange.content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    answer = head.encode() + body
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answer, delay), "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def delayed_server(delay: float) -> Iterator[str]:
    """The server's address for an OpenAI client, while the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.delayed_server", str(delay)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.communicate()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
