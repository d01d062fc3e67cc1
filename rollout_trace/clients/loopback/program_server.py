"""The loopback server of one program: forwards its model calls byte for byte, and records them.

It listens on 127.0.0.1 with a secret in its address, and lives and dies with the program. Keys pass through and are
kept nowhere. Whatever goes wrong in the recorder, requests are forwarded.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollout_trace import credentials, guard
from rollout_trace.clients.http_exchange import recorded
from rollout_trace.clients.loopback.addresses import lead_back, led_to, upstream_of
from rollout_trace.clients.loopback.exchange import LoopbackExchange, ProgramRequest
from rollout_trace.clients.loopback.forwarding import Connections, Forwarding, with_account
from rollout_trace.clients.loopback.messages import SECRET_HEADER, ConnectionCut, RequestRecord, Response, json_response
from rollout_trace.clients.loopback.programs import SECRET, Place, Program, Start
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.clients.loopback.translation import Translator, is_wanted
from rollout_trace.local_requests import why_foreign
from rollout_trace.wire.protocols import protocol_of_request

if TYPE_CHECKING:
    from rollout_trace.clients.loopback.trajectories import ProgramTrajectories
    from rollout_trace.record.settings import Settings

_READABLE = ("gzip", "x-gzip", "deflate", "identity")
"""Content encodings that the recorder can undo, whatever is installed."""


class ProgramServer(LoopbackServer):
    """Forwards the model calls of one program.

    Args:
        command: that starts the program.
        environ: its environment, with the real addresses.
        trajectories: of its calls.
        settings: how they are recorded, whatever their trajectory.
        program: how it is known; None: not at all.
    """

    keeps_requests = False

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        trajectories: ProgramTrajectories,
        settings: Callable[[], Settings],
        program: Program | None = None,
    ) -> None:
        super().__init__()
        self._command = list(command)
        self._environ = dict(environ)
        # Of a run inside another one: its calls are recorded here alone.
        lead_back(self._environ)
        self._trajectories = trajectories
        self._settings = settings
        self._program = program
        self._secret = secrets.token_urlsafe(32)
        self._connections = Connections()
        self._translator = Translator(self.forward)
        self._folder: Path | None = None

    def start_of_program(self) -> Start:
        """The command and the variables for the program, which lead its calls here."""
        address = f"{self.url}/{self._secret}"
        start = Start(self._command, {**led_to(address, self._environ), SECRET: self._secret})
        change = None if self._program is None else self._program.start
        if change is None:
            return start
        self._folder = Path(tempfile.mkdtemp(prefix="rollout-trace-"))
        return change(start, Place(self.url, address, self._folder), self._environ)

    def close(self) -> None:
        """Stops: cuts the answers in flight, and leaves nothing behind."""
        super().close()
        self._connections.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            try:
                if self._program is not None and self._program.end is not None:
                    self._program.end(folder, self._environ)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def respond(self, record: RequestRecord) -> Response:
        """The answer of the real server; an error of our own where it cannot be asked."""
        try:
            return self.answer(record)
        except ConnectionCut:
            raise
        except Exception as error:
            guard.failed("forward", None, error)
            return _refused(502, f"rollout-trace could not forward the request: {guard.describe(error)}")

    def _refusal_of_head(self, record: RequestRecord) -> Response | None:
        """The answer to a request that is not the program's."""
        port = int(self.url.rpartition(":")[2])
        if (why := why_foreign(record.header_lines, port)) is not None:
            return _refused(403, why)
        return _refused(404, "There is nothing here.") if self._path_of(record) is None else None

    def answer(self, record: RequestRecord) -> Response:
        """Answers one request (called by the server)."""
        path = self._path_of(record) or ""
        if "websocket" in record.headers.get("upgrade", "").lower():
            # The program asks by HTTP then, at once: after any other status it tries again for a minute.
            return _refused(426, "rollout-trace forwards only HTTP.")
        target = self._target_of(path, record)
        if target is None:
            return _refused(404, f"rollout-trace knows no model server for {path}.")
        # What is recorded of the address has no password.
        url, record = with_account(f"{target}?{record.query}" if record.query else target, record)
        return self._forward(ProgramRequest(record.method, url, record.headers, record.body), record)

    def _path_of(self, record: RequestRecord) -> str | None:
        """The path behind the secret; None where that is missing."""
        first, _, rest = record.path[1:].partition("/")
        if self._is_secret(first):
            return f"/{rest}"
        return record.path if self._is_secret(record.headers.get(SECRET_HEADER, "")) else None

    def _is_secret(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._secret.encode())

    def _target_of(self, path: str, record: RequestRecord) -> str | None:
        known = self._program
        if known is not None and known.upstream is not None and path.startswith(f"{known.path}/"):
            return known.upstream(self._command, self._environ, record.headers, path.removeprefix(known.path))
        found = upstream_of(path, self._environ)
        return None if found is None else "".join(found)

    def _forward(self, request: ProgramRequest, record: RequestRecord) -> Response:
        call = self._call_of(request)
        if call is None:
            return self.forward(request, record)
        settings, translated_from = call

        def send(sent: ProgramRequest, as_it_came: RequestRecord) -> Response:
            response: Response = recorded(LoopbackExchange, "send", _Sender, settings)(_Sender(self, as_it_came), sent)
            return response

        if translated_from is None:
            return send(request, record)
        return self._translator.answer(translated_from, request, record, send) or send(request, record)

    def _call_of(self, request: ProgramRequest) -> tuple[Settings, str | None] | None:
        """How a request is recorded, and the protocol that it is to be translated from; None where it is no call."""
        try:
            credentials.remember_request(request.headers, request.url.partition("?")[2])
            protocol = protocol_of_request(request.method, request.url, request.body)
            if protocol is None:
                return None
            trajectory = self._trajectories.of_request(protocol, request.headers, request.body)
            settings = replace(self._settings(), trajectory=lambda: trajectory)
            return settings, protocol if is_wanted(protocol, request.url, settings) else None
        except Exception as error:
            guard.failed("begin", None, error)
            return None

    def forward(self, request: ProgramRequest, record: RequestRecord) -> Response:
        """Sends a request to its real server.

        Raises:
            ConnectionCut: there was no answer.
        """
        sent = record if request.body is record.body else replace(record, method=request.method, body=request.body)
        response = Forwarding(self._connections, _readable).send(request.url, sent, self.closing)
        # What a real server allows pages is not this one's to allow.
        response.headers = [one for one in response.headers if not one[0].startswith("access-control-")]
        return response


class _Sender:
    """Sends the requests that are made for one of the program's."""

    def __init__(self, server: ProgramServer, record: RequestRecord) -> None:
        self._server = server
        self._record = record

    def send(self, request: ProgramRequest) -> Response:
        """Sends one to its real server."""
        return self._server.forward(request, self._record)


def _readable(given: str | None) -> str | None:
    """The header ``accept-encoding`` without what the recorder may be unable to undo."""
    if given is None:
        return None
    kept = [one.strip() for one in given.split(",") if one.partition(";")[0].strip().lower() in _READABLE]
    return ", ".join(kept) or "identity"


def _refused(status: int, message: str) -> Response:
    return json_response(status, {"error": {"message": message, "type": "rollout_trace", "code": status}})
