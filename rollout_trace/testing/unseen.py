"""Calls that only the loopback server sees, those of child processes: they are recorded as the test's own steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from rollout_trace import credentials
from rollout_trace.clients import recorder
from rollout_trace.process.redirect import CALL_HEADER
from rollout_trace.record.settings import Settings
from rollout_trace.wire.protocols import protocol_of_path, protocol_of_request

from ._messages import ConnectionCut, RequestRecord, Response
from .matching import Request
from .routing import ORIGIN_HEADER, upstream_of
from .scripted import ScriptedServer
from .upstream import cut_query

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import Call


class ScriptedTestServer(ScriptedServer):
    """The server of ``scripted_llm``, which answers the test's child processes too.

    Args:
        unseen: records their calls.
        environ: the environment before the test changed it.
    """

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
    """A request to the loopback server as it was meant: without keys, and with the path that its client wanted.

    Args:
        record: the request as it came.
        environ: the variables from which its client would have had another address.

    Returns:
        The request, and the whole address that it was going to, with its query.
    """
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
    """Records calls of child processes in the trajectory of the test.

    Args:
        trajectory: of the test, which is open.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._settings = Settings(protocol_of_path, trajectory=lambda: trajectory)

    def watched(self, request: Request, record: RequestRecord, respond: Callable[[Request], Response]) -> Response:
        """The response to a request; where no recorder in this process sees its call, it is recorded here.

        Args:
            request: as it was meant.
            record: the same as it came; of a call that this process records it has the header, ``PID/CALL``.
            respond: answers it, with the id of its call.

        Raises:
            ConnectionCut: there is no answer.
        """
        is_seen = record.headers.get(CALL_HEADER, "").partition("/")[0] == str(os.getpid())
        call = None if is_seen else self._begin(request)
        if call is None:
            return respond(request)
        try:
            return call.watch(respond(replace(request, call=call.id)))
        except ConnectionCut:
            call.cut()
            raise

    def _begin(self, request: Request) -> UnseenCall | None:
        """Begins a call; None for a request that generates nothing."""
        protocol = protocol_of_request(request.method, request.path, request.body)
        call = recorder.begin(self._settings, protocol, request.path)
        if call is None:
            return None
        recorder.attempt(call, request.body)
        return UnseenCall(call)


class UnseenCall:
    """One call of a child process."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def id(self) -> str:
        """``Step.call_id`` of its steps."""
        return self._call.id

    def cut(self) -> None:
        """Ends it without an answer, if it has not ended."""
        if self._call.ended is None:
            recorder.failed(self._call, ConnectionError("the model server gave no answer"))

    def watch(self, response: Response) -> Response:
        """The same response; what is sent of it is recorded."""
        # Where the connection is cut before the first byte, nothing of the stream runs.
        after = [*response.after, self.cut]
        return replace(response, parts=(), stream=self._recorded(response), length=_length(response), after=after)

    def _recorded(self, response: Response) -> Generator[bytes, None, None]:
        recorder.answered(self._call, response.status, dict(response.headers))
        try:
            with closing(_chunks(response)) as chunks:
                for chunk, is_last in chunks:
                    recorder.receive(self._call, chunk)
                    if is_last:
                        # Before it is sent: the client may be gone with it, and the test looks at its steps.
                        recorder.finished(self._call)
                        recorder.ended(self._call)
                    yield chunk
            recorder.finished(self._call)
        except ConnectionCut as error:
            recorder.ended(self._call, error)
            raise
        finally:
            recorder.ended(self._call)


def _chunks(response: Response) -> Generator[tuple[bytes, bool], None, None]:
    """The pieces of the body, and whether each is known to be the last one."""
    if response.stream is not None:
        for chunk in response.stream:
            yield chunk, False
        return
    for number, part in enumerate(response.parts, 1):
        if isinstance(part, bytes):
            yield part, number == len(response.parts)
        else:
            part()


def _length(response: Response) -> int | None:
    if response.length is not None or response.stream is not None:
        return response.length
    return sum(len(part) for part in response.parts if isinstance(part, bytes))
