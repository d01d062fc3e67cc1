"""Forwarding with TLS: bodies longer than the buffers, and clients that leave."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rollout_trace.clients.loopback import forwarding
from rollout_trace.clients.loopback.forwarding import Connections, Forwarding
from rollout_trace.clients.loopback.messages import RequestRecord
from rollout_trace.clients.loopback.watched import ClientGone


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
