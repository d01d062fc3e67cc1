"""Attempts that end otherwise than usual: retried by the anthropic SDK without an exception, or read by middleware."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from rollout_trace.record.call import Call


class HTTPStatusError(Exception):
    """Represents a response with an error status for which the SDK raises nothing before it retries."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the server answered with status {response.status_code}.")
        self.response = response


class ResponseHead:
    """Status and headers of a response, for exceptions about it, and its body where that has been read."""

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


class AttemptListener:
    """Receives the bytes of one attempt for its call, where middleware may read a response and then retry.

    It ignores everything once a later attempt has begun. A stream that ends inside the middleware is marked complete;
    the call itself ends when the client's ``request`` returns.
    """

    __slots__ = ("_call", "_current", "_number")

    def __init__(self, call: Call, current: ContextVar[Call | None]) -> None:
        """``current`` holds the call until it has returned to its caller."""
        self._call = call
        self._current = current
        self._number = len(call.attempts)

    @property
    def faults(self) -> list[str]:
        """Those of the call."""
        return self._call.faults

    @property
    def eof(self) -> bool:
        """That of the call."""
        return self._call.eof

    @eof.setter
    def eof(self, value: bool) -> None:
        if self._is_last:
            self._call.eof = value

    def receive(self, chunk: bytes) -> None:
        """As ``Call.receive``."""
        if self._is_last:
            self._call.receive(chunk)

    def end(self, cut: BaseException | None = None) -> None:
        """As ``Call.end``."""
        if self._is_last and self._current.get() is self._call:
            # Inside the middleware: it may make another attempt, so the call goes on.
            self._call.eof = True
        elif self._is_last:
            self._call.end(cut)

    @property
    def _is_last(self) -> bool:
        return len(self._call.attempts) == self._number


def cause_of(error: BaseException | None) -> BaseException | None:
    """The HTTP library's exception behind an SDK's own; any other exception itself."""
    if error is None or type(error).__module__.partition(".")[0] not in ("openai", "anthropic"):
        return error
    return error.__cause__ or error
