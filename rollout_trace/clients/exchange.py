"""One request of the caller, its call, and the fields added to it: what SDK clients and HTTP clients have in common."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.ask import (
    fields_to_add,
    may_refuse_in_stream,
    merged,
    took_in_stream,
    update_refusals,
    without_refused,
)
from rollout_trace.clients.detect import drive, drive_async
from rollout_trace.clients.exact_turns import Asking, exact_turn, was_dropped
from rollout_trace.clients.recorder import current
from rollout_trace.wire.added_chunks import answers_to
from rollout_trace.wire.errors import error_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.clients.detect import Inquiry, Reply
    from rollout_trace.record.call import Call, Settings


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
            self.call = recorder.begin(settings, protocol, path)
            self._add_capture_fields()
        except Exception as error:
            guard.failed("begin", self.call, error)

    def __enter__(self) -> Self:
        self._outer = current.get()
        current.set(self.call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        recorder.failed(self.call, error)

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

    def _sent_body(self) -> Mapping[str, Any]:
        body = self._caller_body() or {}
        return {**body, **merged(self._added, body)}

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
            self._add_ids(drive(self._asking(), ask))
        except Exception as error:
            guard.failed("exact_turn", self.call, error)

    async def send_ids_async(self, ask: Callable[[Inquiry], Awaitable[Reply]]) -> None:
        """``send_ids`` for an async client."""
        try:
            self._add_ids(await drive_async(self._asking(), ask))
        except Exception as error:
            guard.failed("exact_turn", self.call, error)

    def _asking(self) -> Asking:
        assert self.call is not None
        return exact_turn(self.call, self._address, self._caller_body() or {})

    def _add_ids(self, field: tuple[str, list[bytes]] | None) -> None:
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
            was_dropped(self.call, remaining, f"HTTP {status}: {error_of(content, status).message[:300]}")
            self._set_added(remaining)
            self.call.attempt_failed(error)
            return True
        except Exception as failure:
            guard.failed("refused", self.call, failure)
            return False

    def _learn(self, call: Call) -> None:
        """Remembers what an answered request shows of its server."""
        try:
            update_refusals(call, self._address, self._sent_body)
        except Exception as error:
            guard.failed("learn", call, error)


def record_head(call: Call | None, response: Any) -> None:
    """Records status and headers of a response of httpx or httpx2, and the redirects that led to it."""
    if call is not None:
        credentials.remember_sent(response)
    redirects = [(one.status_code, one.headers) for one in response.history] if response.history else ()
    recorder.answered(call, response.status_code, response.headers, redirects)


_is_empty = re.compile(rb"\s*\{\s*\}").fullmatch


def with_member(content: bytes, member: Iterable[bytes]) -> bytes:
    """A JSON object as bytes with a further member, in pieces, before its last brace; no other byte changes.

    Raises:
        ValueError: it is no object.
    """
    end = content.rstrip()
    if not (end.lstrip().startswith(b"{") and end.endswith(b"}")):
        raise ValueError("the body is no JSON object.")
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
