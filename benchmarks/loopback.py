"""What the loopback server of `rollout-trace run` adds to a streamed call: until its first byte, and to a chunk.

Three processes, as in use: the model server, the recorder, and the program, which asks the first directly and through
the second in turn. As a program it is one of the others: ``python -m benchmarks.loopback server``.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_most, differences, spread
from rollout_trace.clients.loopback.program_server import ProgramServer
from rollout_trace.clients.loopback.trajectories import ProgramTrajectories
from rollout_trace.record.settings import Settings
from rollout_trace.wire.protocols import protocol_of_path

SIZES = (200, 63_000)
LIMIT = 2
"""Milliseconds."""
CHUNKS, PAUSE = 20, 0.003
"""Of an answer, and seconds between them."""
_ROOT = Path(__file__).resolve().parents[1]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    for size in SIZES:
        found = _measured(size, effort.repeat(150))
        for what, at in (("the first byte", 0), ("a chunk", 1)):
            direct, through = ([1e3 * one[way][at] for one in found] for way in (0, 1))
            added = differences(through, direct)
            name = f"{what} of a stream, {size:,} bytes asked (added)"
            more = f"{spread(direct).middle:.2f} ms directly"
            yield at_most(name, added, LIMIT, form=".2f", unit=" ms", more=more)


def _measured(size: int, rounds: int) -> list[list[tuple[float, float]]]:
    """Of each round: directly and through the server, the seconds to the first byte, and of a chunk on its way."""
    with tempfile.TemporaryDirectory() as folder, rt.recording(Path(folder, "out.jsonl")), rt.trajectory("x") as one:
        model = subprocess.Popen(
            _command("server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
        )
        assert model.stdout is not None
        assert model.stdin is not None
        settings = Settings(protocol_of_path, is_http=True, is_guess=True)
        try:
            address = f"http://127.0.0.1:{model.stdout.readline().strip()}/v1"
            environ = {"OPENAI_BASE_URL": address}
            trajectories = ProgramTrajectories(lambda: one)
            with ProgramServer(["x"], environ, trajectories, lambda: settings) as server:
                through = server.start_of_program().variables["OPENAI_BASE_URL"]
                command = _command("program", address, through, str(size), str(rounds))
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        finally:
            model.stdin.close()
            model.wait()
            model.stdout.close()
    return [[(first, chunk) for first, chunk in one] for one in json.loads(done.stdout)]


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.loopback", *words]


def _program(direct: str, through: str, size: int, rounds: int) -> None:
    places = [(urlsplit(one), http.client.HTTPConnection(urlsplit(one).netloc)) for one in (direct, through)]
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * size}]})
    found = []
    for number in range(rounds + 1):
        times = {}
        for way in (0, 1) if number % 2 else (1, 0):
            url, connection = places[way]
            times[way] = _asked(connection, f"{url.path}/chat/completions", body)
        found.append([times[0], times[1]])
    # The first round opens the connections.
    print(json.dumps(found[1:]))


def _asked(connection: http.client.HTTPConnection, path: str, body: str) -> tuple[float, float]:
    began, first, late = time.perf_counter(), 0.0, []
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    while piece := answer.read1(1 << 16):
        now = time.perf_counter()
        first = first or now - began
        # Each chunk says when it was sent.
        late += [
            now - float(line.split(b'"content":"')[1].split(b'"')[0])
            for line in piece.split(b"\n")
            if b"content" in line
        ]
    return first, statistics.median(late)


def _serve() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        print(listening.getsockname()[1], flush=True)
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        sys.stdin.read()


def _accept(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as requests:
        while line := requests.readline():
            size = 0
            while line.strip():
                if line.lower().startswith(b"content-length"):
                    size = int(line.split(b":")[1])
                line = requests.readline()
            requests.read(size)
            connection.sendall(_HEAD)
            for _ in range(CHUNKS):
                delta = {"content": repr(time.perf_counter())}
                connection.sendall(_chunk({"choices": [{"index": 0, "delta": delta}]}))
                time.sleep(PAUSE)
            connection.sendall(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _chunk(value: object) -> bytes:
    data = f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        _serve()
    else:
        _program(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
