"""Records one call, independent of any SDK or HTTP library: functions for each of its events, and the base of requests.

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
``begin`` returns if there is nothing to record. ``Exchange`` adds the fields that an engine is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

from rollout_trace import credentials, guard
from rollout_trace.clients.ask import (
    fields_to_add,
    may_refuse_in_stream,
    merged,
    took_in_stream,
    update_refusals,
    without_refused,
)
from rollout_trace.clients.detect import drive, drive_async
from rollout_trace.record.call import Call, Failure, end
from rollout_trace.record.decoder import drain
from rollout_trace.record.scope import place
from rollout_trace.wire.added_chunks import answers_to
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.protocols import model_in_path

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.clients.detect import Inquiry, Reply
    from rollout_trace.clients.exact_turns import Asking, Field
    from rollout_trace.record.settings import Settings

P = ParamSpec("P")

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


def _safely(method: Callable[Concatenate[Call, P], None]) -> Callable[Concatenate[Call | None, P], None]:
    """Makes a function of a method of ``Call`` that does nothing without a call, and never raises."""
    name = method.__name__

    @wraps(method)
    def safe(call: Call | None, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if call is None:
            return
        try:
            getattr(call, name)(*args, **kwargs)
        except Exception as error:
            guard.failed(name, call, error)

    return safe


attempt = _safely(Call.attempt)
attempt_failed = _safely(Call.attempt_failed)
answered = _safely(Call.answered)
receive = _safely(Call.receive)


def body(call: Call | None, content: bytes) -> None:
    """Records the whole body of the response, without content encoding."""
    if call is None:
        return
    try:
        call.body(content)
    except Exception as error:
        guard.failed("body", call, error)
        end(call)


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


@cache
def _exact_turns() -> ModuleType:
    # Imported on use: few programs ask for it.
    from rollout_trace.clients import exact_turns

    return exact_turns


_IDS: Final[Mapping[str, bool]] = {"prompt_token_ids": True}
"""Stands for the ids of a prompt among the added fields."""


class Exchange:
    """The recorder's side of one request. A subclass knows the objects of its SDK or HTTP library.

    A context manager around the function that sends it, with all its attempts: an exception that leaves it is recorded
    as the caller's, and a library below records nothing meanwhile.
    """

    __slots__ = ("_added", "_outer", "call")

    def __init__(self) -> None:
        self.call: Call | None = None
        """None where there is nothing to record."""
        self._added: dict[str, Any] = {}
        """Fields that the request has beside the caller's own, by name; see ``ask.merged``."""
        self._outer: Call | None = None

    def begin(self, settings: Settings) -> None:
        """Begins the call, if this request is one. Never raises, save under pytest."""
        try:
            method, path = self._endpoint()
            protocol = self._protocol(settings, method, path)
            if protocol is None:
                return
            if settings.source is not None:
                found = settings.source(self._address)
                if found is None:
                    return
                # A client of an instrumented process may be bound to a trajectory.
                settings = found if settings.trajectory is None else replace(found, trajectory=settings.trajectory)
            self.call = begin(settings, protocol, path)
            self._add_capture_fields()
        except Exception as error:
            guard.failed("begin", self.call, error)

    def __enter__(self) -> Self:
        self._outer = current.get()
        current.set(self.call)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        current.set(self._outer)
        if self.call is not None:
            # It may be long, and the request that was sent has it.
            self.call.ids_field = None
        if error is not None:
            try:
                self._failed(error)
            finally:
                guard.hide_frame(error)

    def _failed(self, error: BaseException) -> None:
        """Records the exception that the caller gets instead of a response."""
        failed(self.call, error)

    def _protocol(self, settings: Settings, method: str, path: str) -> str | None:
        """The protocol of the request; None where it generates nothing."""
        return settings.protocol_of(method, path)

    def _endpoint(self) -> tuple[str, str]:
        """HTTP method and path."""
        raise NotImplementedError

    def _address(self) -> object:
        """Address of the server: a text, or what becomes one."""
        raise NotImplementedError

    def _caller_body(self) -> Mapping[str, Any] | None:
        """The body as the caller wants it; None where no field can be added."""
        raise NotImplementedError

    def _fields(self) -> dict[str, Any]:
        """The added fields that are values: all but the ids of the prompt, which are ``ids_field`` of the call."""
        return merged({name: one for name, one in self._added.items() if one is not _IDS}, self._caller_body() or {})

    def _set_added(self, added: dict[str, Any]) -> None:
        self._added = added
        call = self.call
        if call is None:
            return
        if call.ids_field is not None and _IDS not in added.values():
            call.ids_field = None
        body, wishes = self._caller_body() or {}, call.settings.wishes
        call.hides = frozenset() if wishes is not None and wishes.show_added else answers_to(call.protocol, added, body)
        # Refused once, it may be refused again.
        may_be_refused = bool(added and call.attempts) or (
            wishes is not None and may_refuse_in_stream(call, self._address, added, body)
        )
        call.peeks = self._is_refused_in_stream if may_be_refused else None

    @property
    def wants_ids(self) -> bool:
        """Whether the call is to be sent with the ids of its prompt, if it continues an earlier step."""
        wishes = None if self.call is None else self.call.settings.wishes
        return wishes is not None and wishes.exact_turns

    def send_ids(self, ask: Callable[[Inquiry], Reply]) -> None:
        """Adds the ids of the prompt, where the call continues an earlier step. Never raises, save under pytest.

        ``ask`` makes a request to the server; what it raises counts as no reply.
        """
        try:
            field = self._ids_field()
            self._add_ids(field if field is None or isinstance(field, tuple) else drive(field, ask))
        except Exception as error:
            guard.failed("exact_turn", self.call, error)

    async def send_ids_async(self, ask: Callable[[Inquiry], Awaitable[Reply]]) -> None:
        """``send_ids`` for an async client."""
        try:
            field = self._ids_field()
            self._add_ids(field if field is None or isinstance(field, tuple) else await drive_async(field, ask))
        except Exception as error:
            guard.failed("exact_turn", self.call, error)

    def _ids_field(self) -> Field | Asking | None:
        assert self.call is not None
        field: Field | Asking | None
        field = _exact_turns().exact_turn(self.call, self._address, self._caller_body() or {})
        return field

    def _add_ids(self, field: Field | None) -> None:
        if field is not None and self.call is not None:
            name, self.call.ids_field = field
            self._added = {**self._added, name: _IDS}

    def _is_refused_in_stream(self, content: bytes | None) -> bool:
        """Whether an error event may be about added fields. None: the stream begins with something else."""
        try:
            if self.call is None:
                return False
            if content is None:
                took_in_stream(self.call, self._address, self._added, self._caller_body() or {})
                return False
            return bool(self._added)
        except Exception as failure:
            guard.failed("peek", self.call, failure)
            return False

    def _add_capture_fields(self) -> None:
        if self.call is None or self.call.profile is None:
            return
        body = self._caller_body()
        if body is not None:
            self._set_added(fields_to_add(self.call, self._address, body))

    def _drop_refused(self, status: Any, content: bytes | None, error: Exception) -> bool:
        """Removes the added fields that an answer refuses, whose attempt failed; False if it is about something else.

        ``content`` is its body, None where that has not been read; ``error`` what the attempt failed with.
        """
        try:
            if self.call is None or not self._added or content is None:
                return False
            remaining = without_refused(self.call, self._added, self._caller_body() or {}, status, content)
            if remaining is None:
                return False
            if self.call.exact_turn is not None:
                from rollout_trace.clients.exact_turns import was_dropped

                was_dropped(self.call, remaining, f"HTTP {status}: {error_of(content, status).message[:300]}")
            self._set_added(remaining)
            self.call.attempt_failed(error)
            return True
        except Exception as failure:
            guard.failed("refused", self.call, failure)
            return False

    def _learn(self, call: Call) -> None:
        """Remembers what an answered request shows of its server."""

        def sent() -> Mapping[str, Any]:
            body = self._caller_body() or {}
            return {**body, **merged(self._added, body)}

        try:
            update_refusals(call, self._address, sent)
        except Exception as error:
            guard.failed("learn", call, error)


def record_head(call: Call | None, response: Any) -> None:
    """Records status and headers of a response of httpx or httpx2, and the redirects that led to it."""
    if call is not None:
        credentials.remember_sent(response)
    redirects = [(one.status_code, one.headers) for one in response.history] if response.history else ()
    answered(call, response.status_code, response.headers, redirects)


_is_empty = re.compile(rb"\s*\{\s*\}").fullmatch


def with_member(content: bytes, member: Iterable[bytes | memoryview]) -> bytes:
    """A JSON object as bytes with a further member, in pieces, before its last brace; no other byte changes.

    Raises:
        ValueError: it is no object.
    """
    end = content.rstrip()
    if not (end.lstrip().startswith(b"{") and end.endswith(b"}")):
        raise ValueError("the body is not a JSON object.")
    comma = b"" if _is_empty(end) else b","
    return b"".join((memoryview(end)[:-1], comma, *member, b"}", content[len(end) :]))


def content_of(message: Any) -> bytes | None:
    """The body of a request or response of httpx or httpx2; None where it is a stream that has not been read.

    A streamed request body (an upload) can be read only once, and that is the HTTP library's to do.
    """
    try:
        content: bytes | None = None if message is None else message.content
        return content
    except Exception:
        # RequestNotRead, ResponseNotRead: neither library is imported here.
        return None
