"""A call while it runs: marks of time and bytes, nothing decoded."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rollout_trace import guard
from rollout_trace.data.model import ErrorInfo, error_info, new_id
from rollout_trace.wire.errors import error_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.record.settings import Refusal, Settings


class CallLog(Protocol):
    """Where a call is recorded."""

    def settle(self, call: Call) -> None:
        """Decodes a finished call, once, and lets go of its bytes."""


PENDING_LIMIT = 4 * 1024 * 1024
"""Bytes of finished calls that may wait for decoding in one process; past it the oldest are decoded at once."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an exception said. The exception itself would keep its frames, and the caller's objects in them, alive."""

    kind: Literal["error", "cancelled", "closed"]
    info: ErrorInfo

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception means."""
        if isinstance(error, Exception):
            return cls("error", _error_info(error))
        return cls("closed" if isinstance(error, GeneratorExit) else "cancelled", _error_info(error))


def _error_info(error: BaseException) -> ErrorInfo:
    try:
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
    except Exception:
        # A property of somebody's own exception.
        return error_info(error)
    if response is None or not isinstance(status, int) or status < 400:
        return error_info(error)
    try:
        return error_of(response.content, status)
    except Exception:
        # The body of an attempt that is tried again is never read, by the SDK or by us.
        return error_info(error, status=status)


class AttemptMark:
    """One HTTP exchange, as it was seen."""

    __slots__ = ("began", "ended", "error", "headers", "started", "status")

    def __init__(self) -> None:
        self.started = time.time()
        self.began = time.perf_counter()
        self.ended: float | None = None
        self.status: int | None = None
        self.error: ErrorInfo | None = None
        self.headers: Mapping[str, str] = {}
        """Of the answer, in the HTTP library's own object: looked into only when the call is decoded."""

    @property
    def content_type(self) -> str | None:
        """Of the answer."""
        return self.headers.get("content-type")

    @property
    def request_id(self) -> str | None:
        """The server's id of the request, under OpenAI's or Anthropic's name."""
        return self.headers.get("x-request-id") or self.headers.get("request-id")


class Call:
    """One logical request to a model, from its beginning to its decoded steps."""

    __slots__ = (
        "_id",
        "agent",
        "attempts",
        "began",
        "chunks",
        "cut",
        "ended",
        "eof",
        "failure",
        "faults",
        "first_byte",
        "is_plain",
        "log",
        "profile",
        "protocol",
        "refusals",
        "request",
        "settings",
        "started",
        "steps",
    )

    def __init__(self, settings: Settings, protocol: str) -> None:
        self._id: str | None = None
        self.settings = settings
        self.protocol = protocol
        self.agent: str | None = None
        self.log: CallLog | None = None
        self.profile = settings.engine
        self.refusals: dict[str, Refusal] = {}
        self.started = time.time()
        self.began = time.perf_counter()
        self.attempts: list[AttemptMark] = []
        self.request: bytes | None = None
        self.chunks: list[bytes] = []
        self.is_plain = False
        self.first_byte: float | None = None
        self.eof = False
        self.ended: float | None = None
        self.cut: Failure | None = None
        self.failure: Failure | None = None
        self.faults: list[str] = []
        self.steps: list[Step] | None = None

    def attempt(self, content: bytes | None) -> None:
        """An attempt begins, with this request body; None where it is not known."""
        guard.attempt_began()
        self.attempts.append(AttemptMark())
        self.chunks = []
        self.is_plain = False
        self.first_byte = None
        self.request = content

    def attempt_failed(self, error: BaseException | None) -> None:
        """The attempt brought no answer, or one that will be tried again."""
        if self.attempts and self.attempts[-1].ended is None:
            mark = self.attempts[-1]
            mark.ended = time.perf_counter()
            mark.error = None if error is None else Failure.of(error).info
            response = getattr(error, "response", None)
            if response is not None:
                mark.status, mark.headers = response.status_code, response.headers

    def answered(
        self, status: int, headers: Mapping[str, str], redirects: Iterable[tuple[int, Mapping[str, str]]] = ()
    ) -> None:
        """The attempt brought the answer that the caller will get; its body may still be to come."""
        if self.attempts:
            for redirect in redirects:
                self._redirected(*redirect)
            mark = self.attempts[-1]
            mark.status, mark.headers = status, headers

    def body(self, content: bytes) -> None:
        """The whole body of the answer, already decompressed."""
        self.chunks = [content]
        self.is_plain = True
        self.eof = True
        self._end_attempt()

    def receive(self, chunk: bytes) -> None:
        """The next bytes of a streamed body, as they arrive from the network."""
        if self.ended is None:
            if self.first_byte is None:
                self.first_byte = time.perf_counter()
            self.chunks.append(chunk)

    def end(self, cut: BaseException | None = None) -> None:
        """Nothing more will come; ``cut`` is what broke the stream off. Only the first end counts.

        It may run while the garbage collector closes a stream, in the middle of anything: it takes no lock and decodes
        nothing. ``drain`` does the rest.
        """
        if self.ended is None:
            self.cut = None if cut is None else Failure.of(cut)
            self.ended = time.perf_counter()
            self._end_attempt(self.cut)
            pending.ended.append(self)

    def _end_attempt(self, cut: Failure | None = None) -> None:
        if self.attempts and self.attempts[-1].ended is None:
            self.attempts[-1].ended = time.perf_counter()
            if cut is not None and cut.kind != "closed":
                # A body that broke off. One that its reader closed has no fault.
                self.attempts[-1].error = cut.info

    @property
    def id(self) -> str:
        """Unique across processes; made when it is first asked for."""
        if self._id is None:
            self._id = new_id()
        return self._id

    @property
    def encoding(self) -> str | None:
        """The content encoding that the chunks are still in."""
        return None if self.is_plain or not self.attempts else self.attempts[-1].headers.get("content-encoding")

    @property
    def is_stream(self) -> bool:
        """The answer is a stream of events: server-sent ones, or Amazon's (``vnd.amazon.eventstream``)."""
        kind = (self.attempts[-1].content_type or "") if self.attempts else ""
        return "eventstream" in kind.lower().replace("-", "")

    def size(self) -> int:
        """Bytes held until the call is decoded."""
        return len(self.request or b"") + sum(map(len, self.chunks))

    def _redirected(self, status: int, headers: Mapping[str, str]) -> None:
        """An answer that the HTTP client followed elsewhere by itself: an exchange like any other."""
        guard.attempt_began()
        mark, last = AttemptMark(), self.attempts[-1]
        mark.started, mark.began = last.started, last.began
        mark.status, mark.headers = status, headers
        # Before the attempt that was redirected: its answer is the last.
        self.attempts.insert(-1, mark)


class _Pending:
    """The finished calls whose bytes are still to be decoded, oldest first."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.ended: deque[Call] = deque()
        self._sizes: dict[Call, int] = {}
        self._total = 0
        # Reentrant: the garbage collector may close an agent, which is a generator, while the lock is held.
        self._lock = threading.RLock()

    def drain(self) -> None:
        """Takes in the calls that have ended; past the limit the oldest are decoded."""
        while self.ended:
            try:
                call = self.ended.popleft()
            except IndexError:
                return
            try:
                self._add(call)
            except Exception as error:
                guard.failed("pending", call, error)
        while self._total > PENDING_LIMIT and (oldest := self._pop()) is not None:
            settle(oldest)

    def _add(self, call: Call) -> None:
        size = call.size()
        with self._lock:
            self._total += size - self._sizes.get(call, 0)
            self._sizes[call] = size
        if call.steps is not None:
            # Its trajectory was faster, and has decoded it already.
            self.discard(call)

    def discard(self, call: Call) -> None:
        with self._lock:
            self._total -= self._sizes.pop(call, 0)

    def _pop(self) -> Call | None:
        with self._lock:
            oldest = next(iter(self._sizes), None)
            if oldest is not None:
                self._total -= self._sizes.pop(oldest)
            return oldest


pending = _Pending()


def drain() -> None:
    """Takes in the calls that have ended. For places where locks may be taken and calls decoded."""
    pending.drain()


def settle(call: Call) -> None:
    """Decodes a finished call, once, and lets go of its bytes."""
    pending.discard(call)
    log = call.log
    if log is not None:
        log.settle(call)
