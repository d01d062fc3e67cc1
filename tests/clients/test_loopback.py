"""What the loopback servers do beneath a recorded call: heads, TLS, and what is sent before it is recorded."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import rollout_trace as rt
from rollout_trace.clients.loopback import forwarding
from rollout_trace.clients.loopback.forwarding import Connections, Forwarding
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.clients.loopback.program_server import ProgramServer
from rollout_trace.clients.loopback.trajectories import ProgramTrajectories
from rollout_trace.clients.loopback.watched import ClientGone
from rollout_trace.record.settings import Settings
from rollout_trace.testing import LoopbackServer, ScriptedServer
from rollout_trace.wire.protocols import protocol_of_path


class Echo(LoopbackServer):
    """Answers with what it read."""

    def answer(self, record: RequestRecord) -> Response:
        """Answers a request (called by the server)."""
        return json_response(200, [record.method, record.path, record.header_lines])


def exchanged(server: LoopbackServer, sent: bytes) -> bytes:
    """What comes back for some bytes, until the server has nothing more to say."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            return b"".join(iter(lambda: client.recv(65536), b""))
        return b""


@pytest.mark.parametrize(
    "head",
    [
        b"Host: x\r\nX-A:  b \r\nx-a: c\r\nEmpty:\r\nConnection: keep-alive\r\nUmlaut: \xe4\r\n",
        b"Host: x\r\nFolded: a\r\n b\r\n\tc\r\nAfter: d\r\n",
        b"Host: x\nBare: y\r\n",
        b"Host: x\r\nOdd: a\rb\r\n",
        b"Host: x\r\nConnection: close\r\n",
    ],
)
def test_the_fields_of_a_head_are_those_that_the_standard_library_reads(head: bytes) -> None:
    with Echo() as server:
        answer = exchanged(server, b"GET /a HTTP/1.1\r\n" + head + b"\r\nGET /b HTTP/1.1\r\n\r\n")
        seen = [(one.path, one.header_lines) for one in server.requests]
    fields = http.client.parse_headers(io.BytesIO(head + b"\r\n")).items()
    # Of a connection that is to be closed no further request is read.
    assert seen == [("/a", fields), ("/b", [])][: 1 if b"close" in head else 2]
    assert answer.count(b"HTTP/1.1 200 ") == len(seen)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /a HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % number for number in range(101)) + b"\r\n", b"431"),
        (b"GET /a HTTP/1.1\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /a b HTTP/1.1\r\n\r\n", b"400"),
        (b"BREW /a HTTP/1.1\r\nHost: x\r\n\r\n", b"501"),
        (b"GET /a HTTP/1.0\r\n\r\n", b"200"),
        (b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx", b"100"),
    ],
)
def test_what_is_unusual_is_answered_as_by_the_standard_library(sent: bytes, status: bytes) -> None:
    with Echo() as server:
        assert exchanged(server, sent).split()[1] == status


def test_a_request_is_sent_before_it_is_recorded() -> None:
    came = threading.Event()
    waited = []

    def answer(request: object) -> str:
        came.set()
        return "hi"

    with rt.trajectory("x") as one, ScriptedServer(answer) as model:

        def main() -> rt.Trajectory:
            waited.append(came.wait(20))
            return one

        settings = Settings(protocol_of_path, is_http=True, is_guess=True)
        environ = {"OPENAI_BASE_URL": model.base_url}
        with ProgramServer(["x"], environ, ProgramTrajectories(main), lambda: settings) as server:
            place = server.start_of_program().variables["OPENAI_BASE_URL"].removeprefix(server.url)
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
            body = '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
            for _ in range(2):
                connection.request("POST", f"{place}/chat/completions", body, {"content-type": "application/json"})
                assert b'"hi"' in connection.getresponse().read()
            connection.close()
        assert len(model.requests) == 2
    assert waited == [True]
    assert [[attempt.status for attempt in step.attempts] for step in one.steps] == [[200], [200]]


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, socket.socket]]:
    """The address of a server with TLS, and its socket, whose certificate is trusted."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    made = made.add_extension(names, False).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    path = tmp_path / "server.pem"
    unlocked = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, *unlocked)
    )
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(path))
    for variable in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    forwarding._tls.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    with socket.create_server(("127.0.0.1", 0)) as plain, context.wrap_socket(plain, server_side=True) as listening:
        listening.settimeout(20)
        yield f"https://localhost:{listening.getsockname()[1]}", listening
    forwarding._tls.cache_clear()


def test_bodies_longer_than_all_buffers_pass_with_tls(secure: tuple[str, socket.socket]) -> None:
    url, listening = secure
    body = bytes(range(256)) * (1 << 14)
    got: list[bytes] = []

    def serve() -> None:
        with listening.accept()[0] as connection, connection.makefile("rb") as requests:
            for _ in range(2):
                while requests.readline() != b"\r\n":
                    pass
                got.append(requests.read(len(body)))
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    connections = Connections()
    here, there = socket.socketpair()
    with here, there:
        record = RequestRecord(0, 0, "POST", "/", "", {}, body, socket=here)
        for _ in range(2):
            stream = Forwarding(connections).send(f"{url}/", record, threading.Event()).stream
            assert stream is not None
            assert b"".join(stream) == body
    connections.close()
    serving.join()
    assert got == [body, body]


def test_a_client_that_leaves_is_noticed_with_tls_while_its_server_is_silent(secure: tuple[str, socket.socket]) -> None:
    url, listening = secure
    here, there = socket.socketpair()

    def serve() -> None:
        with listening.accept()[0] as connection:
            assert connection.recv(65536)
            there.close()
            # Until it is left.
            assert connection.recv(65536) == b""

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    with here, pytest.raises(ClientGone):
        Forwarding().send(f"{url}/", RequestRecord(0, 0, "GET", "/", "", {}, b"", socket=here), threading.Event())
    serving.join()
