"""Calls that only the loopback server sees, those of child processes: they are recorded as the test's own steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from rollout_trace import credentials
from rollout_trace.clients.loopback.addresses import upstream_of
from rollout_trace.clients.loopback.exchange import LoopbackExchange, ProgramRequest
from rollout_trace.clients.loopback.messages import CALL_HEADER, ORIGIN_HEADER, RequestRecord, Response
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record.settings import Settings
from rollout_trace.wire.protocols import protocol_of_path, protocol_of_request

from .matching import Request
from .scripted import ScriptedServer
from .upstream import cut_query


class ScriptedTestServer(ScriptedServer):
    """The server of ``scripted_llm``, which answers the test's child processes too."""

    def __init__(self, unseen: UnseenCalls, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._unseen = unseen
        self._environ = environ

    def respond(self, record: RequestRecord) -> Response:
        """The answer of the script, or HTTP 400 where it raised."""
        request, _ = as_meant(record, self._environ)
        respond = super().respond
        return self._unseen.watched(request, record, lambda request: respond(record))


def as_meant(record: RequestRecord, environ: Mapping[str, str]) -> tuple[Request, str]:
    """A request to the loopback server as it was meant, without keys, and the whole address that it was going to."""
    credentials.remember_request(record.headers, record.query)
    # As it is, or will be, in the cassette.
    body = credentials.cut_bytes(record.body)
    origin, path = record.headers.get(ORIGIN_HEADER), record.path
    if origin is None:
        # Of a child process, whose client has the server's own address.
        origin, path = upstream_of(path, environ) or ("", path)
    target = f"{path}?{record.query}" if record.query else path
    mark = record.headers.get(CALL_HEADER)
    kept = f"{path}?{cut_query(record.query)}" if record.query else path
    # The id is that of the process that makes the call.
    call = None if mark is None else mark.partition("/")[2]
    request = Request(record.method, credentials.cut(kept), body, record.headers.get("content-type"), call)
    return request, f"{origin}{target}"


class UnseenCalls:
    """Records calls of child processes in the trajectory of the test, which is open."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._settings = Settings(protocol_of_path, trajectory=lambda: trajectory)

    def watched(self, request: Request, record: RequestRecord, respond: Callable[[Request], Response]) -> Response:
        """The response to a request; where no recorder in this process sees its call, it is recorded here.

        ``record`` has, of a call that this process records, the header ``PID/CALL``. Raises ConnectionCut.
        """
        is_seen = record.headers.get(CALL_HEADER, "").partition("/")[0] == str(os.getpid())
        sent = ProgramRequest(request.method, f"http://child{request.path}", record.headers, request.body)
        is_call = not is_seen and protocol_of_request(request.method, request.path, request.body) is not None
        exchange = LoopbackExchange.begun(sent, self._settings) if is_call else None
        if exchange is None or exchange.call is None:
            return respond(request)
        with exchange:
            exchange.next_attempt()
            response = respond(replace(request, call=exchange.call.id))
        exchange.answered(response)
        return response
