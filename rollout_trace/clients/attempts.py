"""What the anthropic SDK does otherwise with the attempts of a call, and middleware may do in any."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from rollout_trace.record.call import Call


class HTTPStatusError(Exception):
    """Stands for an answer with an error status, where the SDK raises none before it tries again."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"the server answered with status {response.status_code}.")
        self.response = response


class OneAttempt:
    """A call as the stream of one of its attempts sees it, where middleware may read it, and make another attempt.

    It is deaf once another attempt has begun. What ends inside the middleware ends the call only when that returns.
    """

    __slots__ = ("_call", "_current", "_number")

    def __init__(self, call: Call, current: ContextVar[Call | None]) -> None:
        """``current`` holds the call as long as it has not returned to its caller."""
        self._call = call
        self._current = current
        self._number = len(call.attempts)

    @property
    def faults(self) -> list[str]:
        """Of the call."""
        return self._call.faults

    @property
    def eof(self) -> bool:
        """Of the call."""
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
            self._call.eof = True
        elif self._is_last:
            self._call.end(cut)

    @property
    def _is_last(self) -> bool:
        return len(self._call.attempts) == self._number


def cause_of(error: BaseException | None) -> BaseException | None:
    """The HTTP library's exception, where an SDK's own stands for it."""
    if error is None or type(error).__module__.partition(".")[0] not in ("openai", "anthropic"):
        return error
    return error.__cause__ or error
