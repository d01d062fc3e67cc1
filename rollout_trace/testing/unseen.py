"""Calls that only the loopback server sees, those of child processes: they are recorded as the test's own steps."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from rollout_trace.clients import recorder
from rollout_trace.record.settings import Settings
from rollout_trace.wire.recognise import protocol_of_path, protocol_of_request

from ._messages import ConnectionCut, Response

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import Call

    from .matching import Request


def is_unseen(mark: str | None) -> bool:
    """Whether a request comes from no call that this process records.

    Args:
        mark: the header of a redirected request, ``PID/CALL``; None where it has none.
    """
    return mark is None or mark.partition("/")[0] != str(os.getpid())


def call_id_of(mark: str | None) -> str | None:
    """The id of the call that a request is an attempt of, in the process that makes it."""
    return None if mark is None else mark.partition("/")[2]


class UnseenCalls:
    """Records calls of child processes in the trajectory of the test.

    Args:
        trajectory: of the test, which is open.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._settings = Settings(protocol_of_path, trajectory=lambda: trajectory)

    def begin(self, request: Request) -> UnseenCall | None:
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
        """Ends it without an answer."""
        recorder.failed(self._call, ConnectionError("the model server gave no answer"))

    def watch(self, response: Response) -> Response:
        """The same response; what is sent of it is recorded."""
        recorder.answered(self._call, response.status, dict(response.headers))
        return replace(response, parts=(), stream=self._recorded(response), length=_length(response))

    def _recorded(self, response: Response) -> Generator[bytes, None, None]:
        try:
            with closing(_chunks(response)) as chunks:
                for chunk in chunks:
                    recorder.receive(self._call, chunk)
                    yield chunk
            recorder.finished(self._call)
        except ConnectionCut as error:
            recorder.ended(self._call, error)
            raise
        finally:
            recorder.ended(self._call)


def _chunks(response: Response) -> Generator[bytes, None, None]:
    if response.stream is not None:
        yield from response.stream
        return
    for part in response.parts:
        if isinstance(part, bytes):
            yield part
        else:
            part()


def _length(response: Response) -> int | None:
    if response.length is not None or response.stream is not None:
        return response.length
    return sum(len(part) for part in response.parts if isinstance(part, bytes))
