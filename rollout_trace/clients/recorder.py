"""Functions that record one call, independent of any SDK or HTTP library.

    call = begin(settings, "openai.chat")           # the user's call begins, in the user's context
    attempt(call, request_body)                     # a request is about to be sent
    answered(call, 200, response_headers)           # its response has begun
    receive(call, chunk)                            # the next bytes of the body, as they arrive from the network
    finished(call)                                  # the body was read to its end
    ended(call)                                     # nothing more will arrive

A body that is available as a whole goes to ``body`` instead of ``receive`` and ``finished``; a stream that other code
reads is wrapped by ``tee``. A retry is another ``attempt``, after ``attempt_failed``. If the caller gets an exception
instead of a response, call ``failed`` instead of ``ended``.

No function raises, save under pytest, or waits for a disk or another call. Each accepts None as the call, which
``begin`` returns if there is nothing to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.record.call import Call, Failure, drain, end
from rollout_trace.record.scope import place
from rollout_trace.wire.protocols import model_in_path

if TYPE_CHECKING:
    from rollout_trace.record.call import Settings

current: ContextVar[Call | None] = ContextVar("rollout_trace_call", default=None)
"""The call that this context is sending: set while an SDK's ``request``, or an HTTP library's ``send``, runs, until its
answer has begun. A library below finds it there, and records nothing."""


def is_inside() -> bool:
    """Whether this context is sending a call. Never one that has ended: tasks begun meanwhile keep the variable."""
    call = current.get()
    return call is not None and call.ended is None


class ResponseHead:
    """Status and headers of a response, in the names of httpx, and its body where that has been read."""

    __slots__ = ("_content", "headers", "status_code")

    def __init__(self, status_code: int, headers: Any, content: bytes | None = None) -> None:
        self.status_code = status_code
        self.headers = headers
        self._content = content

    @property
    def content(self) -> bytes:
        """The body.

        Raises:
            LookupError: nobody has read it.
        """
        if self._content is None:
            raise LookupError("the body has not been read.")
        return self._content


class HTTPStatusError(Exception):
    """Represents a response with an error status for which nothing is raised."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the server answered with status {response.status_code}.")
        self.response = response


def begin(settings: Settings, protocol: str | None, path: str = "") -> Call | None:
    """Begins a call in the trajectory of this context, or in the one that the settings are bound to.

    Args:
        settings: how it is recorded.
        protocol: one of ``rollout_trace.wire.protocols``; None for a request that does not generate.
        path: path or address of the request, for protocols whose requests name the model there.

    Returns:
        The call; None if there is nothing to record.
    """
    if protocol is None:
        return None
    call = None
    try:
        call = Call(settings, protocol)
        call.path_model = model_in_path(protocol, path)
        place(call)
    except Exception as error:
        guard.failed("begin", call, error)
    return call


def attempt(call: Call | None, content: bytes | None) -> None:
    """Begins an attempt: a request is about to be sent. Of earlier attempts only status, times and errors are kept.

    ``content`` is the body, exactly as it is sent; None if it is unknown (a stream).
    """
    if call is None:
        return
    try:
        # Middleware may have read an earlier attempt to its end.
        call.eof = False
        call.attempt(content)
    except Exception as error:
        guard.failed("attempt", call, error)


def attempt_failed(call: Call | None, error: BaseException | None) -> None:
    """Ends the latest attempt, which got no response, or one that the caller will not get.

    If ``error`` has a ``response``, its ``status_code`` and ``headers`` are recorded.
    """
    if call is None:
        return
    try:
        call.attempt_failed(error)
    except Exception as failure:
        guard.failed("attempt_failed", call, failure)


def answered(
    call: Call | None, status: int, headers: Mapping[str, str], redirects: Iterable[tuple[int, Mapping[str, str]]] = ()
) -> None:
    """Records the head of the response that the caller gets; its body is still to come.

    Headers have lower-case names, or are in a case-insensitive mapping. ``redirects``: status and headers of those that
    the HTTP library followed, in order.
    """
    if call is None:
        return
    try:
        call.answered(status, headers, redirects)
    except Exception as error:
        guard.failed("answered", call, error)


def body(call: Call | None, content: bytes) -> None:
    """Records the whole body of the response, without content encoding."""
    if call is None:
        return
    try:
        call.body(content)
    except Exception as error:
        guard.failed("body", call, error)
        end(call)


def receive(call: Call | None, chunk: bytes) -> None:
    """Records the next bytes of the body, in its content encoding."""
    if call is None:
        return
    try:
        call.receive(chunk)
    except Exception as error:
        guard.failed("receive", call, error)


def finished(call: Call | None) -> None:
    """Marks the body as complete: it was read to its end. To be followed by ``ended``."""
    if call is not None:
        call.eof = True


def ended(call: Call | None, cut: BaseException | None = None) -> None:
    """Ends the call. Only the first end counts.

    Not for finalizers, which may interrupt any code: beyond a limit of waiting bytes it decodes older calls, under a
    lock. For streams that may be garbage collected use ``tee``.

    ``cut`` is the exception that broke the stream off; a ``GeneratorExit`` is its reader's, and no failure.
    """
    if call is None:
        return
    end(call, cut)
    try:
        drain()
    except Exception as error:
        guard.failed("end", call, error)


def failed(
    call: Call | None, error: BaseException, *, cause: BaseException | None = None, content: bytes | None = None
) -> None:
    """Ends the call with the exception that the caller gets instead of a response.

    ``cause`` is the HTTP library's exception, if ``error`` is an SDK's own; ``content`` the body of the response that
    the error is about, if it has been read.
    """
    if call is None:
        return
    try:
        call.attempt_failed(cause or error)
        # Unless a stream was teed: then its bytes are there already.
        if content is not None and not call.chunks:
            call.body(content)
        call.failure = Failure.of(error)
    except Exception as failure:
        guard.failed("failed", call, failure)
    ended(call)
