"""The recorder: how one call is recorded, whoever makes it. It knows no SDK and no HTTP library.

    call = begin(settings, "openai.chat")           # the user's call begins, in the user's context
    attempt(call, request_body)                     # a request is about to be sent
    answered(call, 200, response_headers)           # its answer has begun
    receive(call, chunk)                            # the next bytes of it, as they come from the network
    finished(call)                                  # it was read to its end
    ended(call)                                     # nothing more will come

In the place of ``receive`` and ``finished`` a body that is there as a whole goes to ``body``; a stream that somebody
else reads is wrapped by ``tee``. A request that is tried again is another ``attempt``, after ``attempt_failed``. Where
the caller gets an exception in the place of an answer, ``failed`` takes the place of ``ended``.

No function raises, save under pytest, or waits for a disk or another call. Each takes None in the place of a call,
which is what ``begin`` gives where there is nothing to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.record.call import Call, Failure, drain
from rollout_trace.record.place import place

if TYPE_CHECKING:
    from rollout_trace.record.settings import Settings


def begin(settings: Settings, protocol: str | None) -> Call | None:
    """A call begins: it belongs to the trajectory of this context, or the one that the settings are bound to.

    Args:
        settings: how it is recorded.
        protocol: one of ``rollout_trace.wire.protocols``; None for a request that does not generate.
    """
    if protocol is None:
        return None
    call = None
    try:
        call = Call(settings, protocol)
        place(call)
    except Exception as error:
        guard.failed("begin", call, error)
    return call


def attempt(call: Call | None, content: bytes | None) -> None:
    """A request is about to be sent. What an earlier one brought is let go, save that it was made.

    Args:
        call: what is recorded.
        content: the body, exactly as it is sent; None where it is not known (a stream).
    """
    if call is None:
        return
    try:
        call.eof = False
        call.attempt(content)
    except Exception as error:
        guard.failed("attempt", call, error)


def attempt_failed(call: Call | None, error: BaseException | None) -> None:
    """The latest attempt brought no answer, or one that will not be given to the caller.

    Args:
        call: what is recorded.
        error: why; where it has a ``response``, that one's ``status_code`` and ``headers`` are recorded.
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
    """The latest attempt brought an answer for the caller; its body is still to come.

    Args:
        call: what is recorded.
        status: HTTP status.
        headers: by lower-case names, or in a mapping that does not tell cases apart.
        redirects: status and headers of the answers that the HTTP library followed by itself, in order.
    """
    if call is None:
        return
    try:
        call.answered(status, headers, redirects)
    except Exception as error:
        guard.failed("answered", call, error)


def body(call: Call | None, content: bytes) -> None:
    """The whole body of the answer, without content encoding."""
    if call is None:
        return
    try:
        call.body(content)
    except Exception as error:
        guard.failed("body", call, error)


def receive(call: Call | None, chunk: bytes) -> None:
    """The next bytes of the body, in its content encoding."""
    if call is None:
        return
    try:
        call.receive(chunk)
    except Exception as error:
        guard.failed("receive", call, error)


def finished(call: Call | None) -> None:
    """The body was read to its end: what came is all there was. To be followed by ``ended``."""
    if call is not None:
        call.eof = True


def ended(call: Call | None, cut: BaseException | None = None) -> None:
    """Nothing more will come. Only the first end counts.

    Not from a finalizer, which may interrupt anything: past a limit it decodes older calls, under a lock. ``tee`` is
    made for streams that are collected as garbage.

    Args:
        call: what is recorded.
        cut: what broke the stream off; a ``GeneratorExit`` is its reader's, and no failure.
    """
    if call is None:
        return
    try:
        call.end(cut)
        drain()
    except Exception as error:
        guard.failed("end", call, error)


def failed(
    call: Call | None, error: BaseException, *, cause: BaseException | None = None, content: bytes | None = None
) -> None:
    """The caller gets an exception in the place of an answer. The call ends.

    Args:
        call: what is recorded.
        error: as the caller gets it.
        cause: the HTTP library's, where an SDK's own stands for it.
        content: body of the answer that the error is about, where it has been read.
    """
    if call is None:
        return
    try:
        call.attempt_failed(cause or error)
        if content is not None and not call.chunks:
            call.body(content)
        call.failure = Failure.of(error)
    except Exception as failure:
        guard.failed("failed", call, failure)
    ended(call)
