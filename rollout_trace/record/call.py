"""A running call: timestamps, raw bytes within a limit, and the settings of its client.

Nothing is decoded before it has ended. A request body longer than the limit is not kept: a part of it could not be
read. Of a longer response the first bytes are, and the rest is counted; so of one that is longer than ``UNPACKED``
times the limit once its content encoding is undone. Comment lines of event streams (heartbeats) are removed as they
come, and do not count.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rollout_trace import guard
from rollout_trace.data.counts import COST_HEADER
from rollout_trace.data.model import ErrorInfo, error_info, new_id
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.sse import without_comments

if TYPE_CHECKING:
    from rollout_trace.data.exact_turn import ExactTurn
    from rollout_trace.data.model import Step
    from rollout_trace.record.settings import Settings


@dataclass(slots=True)
class Refusal:
    """A server's refusal of one field that a profile adds."""

    message: str
    """HTTP status and error message of the server."""
    expires: float
    """When the field is sent again, as ``time.monotonic`` seconds."""
    is_doubtful: bool = False
    """Whether it may be about the values of one request alone."""


class CallLog(Protocol):
    """Interface of the log that a call belongs to: ``log.StepLog``."""

    def decode(self, call: Call, *, wait: bool = True) -> bool: ...
    def prepare(self, call: Call) -> None: ...
    def set_aside(self, call: Call) -> bool: ...
    def call_ended(self, call: Call) -> None: ...
    def call_received(self, call: Call) -> None: ...
    def call_amended(self, call: Call) -> None: ...


JOURNAL_SECONDS = 1.0
"""Seconds between two records of one stream in flight in the journal."""
UNPACKED = 4
"""The limit of an unpacked response, as a multiple of that of one as it arrives."""
PIECE = 256 * 1024
"""Bytes of a stream that are searched for comments at a time: about a millisecond of work."""
_TAIL = 512
_FINISHED = re.compile(rb'"finish_reason": ?"|event: ?response\.(?:completed|incomplete)')
_DONE = re.compile(rb"\ndata: ?\[DONE\]")

just_ended: deque[Call] = deque()
"""Calls that nobody has collected since. Appended to without a lock: the garbage collector may do so."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Kind and message of an exception. The exception itself would keep its traceback's local variables alive."""

    kind: Literal["error", "cancelled", "closed"]
    """``closed``: the reader closed the stream early (GeneratorExit). ``cancelled``: any other non-``Exception``."""
    info: ErrorInfo

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception stands for."""
        if isinstance(error, Exception):
            return cls("error", _error_info(error))
        return cls("closed" if isinstance(error, GeneratorExit) else "cancelled", _error_info(error))


def _error_info(error: BaseException) -> ErrorInfo:
    try:
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
    except Exception:
        # `response` may be a property of a user's exception class, and raise anything.
        return error_info(error)
    if response is None or not isinstance(status, int) or status < 400:
        return error_info(error)
    # Not where nobody has read the body: the SDK reads none of an attempt that it retries, nor may we. `content` raises
    # then, and that of requests would read it now.
    with suppress(Exception):
        if getattr(response, "_content_consumed", True):
            return error_of(response.content, status)
    return error_info(error, status=status)


_NO_HEADERS: Mapping[str, str] = {}


class AttemptMark:
    """Times, status and headers of one attempt (HTTP exchange)."""

    __slots__ = ("began", "ended", "error", "headers", "started", "status")

    def __init__(self) -> None:
        self.started = time.time()
        """Start, as Unix seconds; for dates."""
        self.began = time.perf_counter()
        """Start, as ``time.perf_counter`` seconds; for the duration, like ``ended``."""
        self.ended: float | None = None
        self.status: int | None = None
        self.error: ErrorInfo | None = None
        self.headers: Mapping[str, str] = _NO_HEADERS
        """Response headers, in the HTTP library's own object until ``known`` is read."""

    @property
    def known(self) -> KnownHeaders:
        """The response headers that steps are made from. The HTTP library's object is let go of."""
        headers = self.headers
        if type(headers) is not KnownHeaders:
            self.headers = headers = known_headers(headers)
        return headers

    @property
    def content_type(self) -> str | None:
        """Content type of the response."""
        return self.known.get("content-type")


_HIDES_NOTHING: frozenset[str] = frozenset()
"""One object: each call that waits would hold one of its own."""


class Call:
    """One logical request to a model: its attempts and raw bytes, later its decoded steps."""

    __slots__ = ("_checked", "_tail", "agent", "attempts", "began", "chunks", "cut", "ended", "endpoint", "eof",
                 "exact_turn", "failure", "faults", "first_byte", "held", "hides", "id", "ids_field", "is_decompressed",
                 "is_replayed",
                 "journal_due", "journal_progress", "left_out", "limit", "log", "mark", "on_ids_not_served",
                 "path_model", "peeks", "policy_version", "profile", "protocol", "refusals", "request",
                 "request_digest", "request_left_out", "settings", "started", "steps")  # fmt: skip

    def __init__(self, settings: Settings, protocol: str) -> None:
        self.limit = settings.max_call_bytes
        """Most bytes that are kept of the request, and of the response as it arrives."""
        self.id = new_id()
        """Unique across processes."""
        self.settings = settings
        self.protocol = protocol
        self.agent: str | None = None
        """Name of the calling agent."""
        self.endpoint: str | None = None
        """Host and path of a request of an HTTP library; None for an SDK's."""
        self.request_digest: str | None = None
        """Digest of the request of a decoded call of an HTTP library: of what is sent again it is the same."""
        self.journal_due = math.inf
        """When a stream in flight goes to the journal next, as ``time.perf_counter`` seconds."""
        self.journal_progress: object = None
        """What the journal has of this call before its end."""
        self.log: CallLog | None = None
        """The log it belongs to; None before it is in one, and once its trajectory has closed."""
        self.exact_turn: ExactTurn | None = None
        """How its prompt is sent, where exact turns are wished for and it continues an earlier step."""
        self.ids_field: Sequence[bytes | memoryview] | None = None
        """The field with the ids of its prompt, as pieces of a member of a JSON object: put into the body as it goes
        out."""
        self.on_ids_not_served: Callable[[str], None] | None = None
        """Told, when the answer is decoded, that other ids were served than sent."""
        self.policy_version: str | int | None = None
        """Version of the weights when it began, by the function that its log has for it; None without one."""
        self.is_replayed = False
        """Whether it was answered from a recording: nothing was sampled."""
        self.path_model: str | None = None
        """The model in the path of the request, where the body does not name it."""
        self.peeks: Callable[[bytes | None], bool] | None = None
        """Whether an error event at the beginning of the stream is about an added field; None where it cannot be."""
        self.hides = _HIDES_NOTHING
        """Names of the answers to added fields: a chunk of the stream with nothing else in it is not handed on."""
        self.profile = settings.engine
        """The engine whose capture fields are added; ``AUTO`` until it is detected."""
        self.refusals: dict[str, Refusal] = {}
        """Capture fields that the server refuses, by name: not sent, or sent and refused."""
        self.started = time.time()
        """Start, as Unix seconds; for dates."""
        self.began = time.perf_counter()
        """Start, as ``time.perf_counter`` seconds; for durations, like ``first_byte`` and ``ended``."""
        self.attempts: list[AttemptMark] = []
        self.first_byte: float | None = None
        self.eof = False
        """Whether the response body was read to its end."""
        self.ended: float | None = None
        self.cut: Failure | None = None
        """The exception that broke off the response body."""
        self.failure: Failure | None = None
        """The exception that the caller got instead of a response."""
        self.faults: list[str] = []
        """Failures of the recorder during this call."""
        self.steps: list[Step] | None = None
        """The decoded steps; None until then."""
        self.forget_bytes()

    def forget_bytes(self) -> None:
        """Drops request and response bytes, for another attempt."""
        self.request: bytes | None = None
        """Request body; None where it is unknown, or too long to keep."""
        self.request_left_out = 0
        """Bytes of a request body that was too long to keep."""
        self.chunks: list[bytes] = []
        """Response body, as far as it has arrived, up to the limit."""
        self.held = 0
        """Bytes in ``chunks``."""
        self.left_out = 0
        """Bytes of the response that came after those in ``chunks``."""
        self.is_decompressed = False
        """Whether the response was given without its content encoding: as a whole, or by a library that undoes it."""
        self._tail = b""
        self.mark = min(PIECE, self.limit)
        """The number of held bytes above which there is something to do."""
        # The chunks before it have been searched for comments.
        self._checked = 0

    def attempt(self, content: bytes | None) -> None:
        """Begins an attempt: a request is about to be sent. Of earlier attempts only status, times and errors are kept.

        ``content`` is the body, exactly as it is sent; None if it is unknown (a stream).
        """
        # Middleware may have read an earlier attempt to its end.
        self.eof = False
        guard.attempt_began()
        if self.attempts or self.chunks:
            self.forget_bytes()
            self.first_byte = None
        self.attempts.append(AttemptMark())
        if content is not None and len(content) > self.limit:
            self.request_left_out = len(content)
        else:
            self.request = content

    def attempt_failed(self, error: BaseException | None) -> None:
        """Ends an attempt that got no response, or one that the SDK retries."""
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
        """Records the head of the response that the caller gets; its body may follow."""
        if self.attempts:
            mark = self.attempts[-1]
            for earlier in redirects:
                # One that the HTTP client followed: an attempt of its own, before the one that is open.
                guard.attempt_began()
                followed = AttemptMark()
                followed.started, followed.began = mark.started, mark.began
                followed.status, followed.headers = earlier
                self.attempts.insert(-1, followed)
            mark.status, mark.headers = status, headers

    def body(self, content: bytes) -> None:
        """Records the whole response body, already decompressed."""
        limit = self.limit
        # Looked up only where it decides how much is kept.
        if len(content) > limit and self._header("content-encoding") is not None:
            limit *= UNPACKED
        kept = content if len(content) <= limit else content[: self.limit]
        self.chunks, self.held, self.left_out = [kept], len(kept), len(content) - len(kept)
        self.is_decompressed = self.eof = True
        self._end_attempt()

    def receive(self, chunk: bytes) -> None:
        """Records the next bytes of a streamed body, as they arrive from the network (still compressed)."""
        if self.ended is None:
            now = time.perf_counter()
            if self.first_byte is None:
                self.first_byte, self.journal_due = now, now + JOURNAL_SECONDS
            self.chunks.append(chunk)
            self.held = held = self.held + len(chunk)
            # The only comparison for each chunk: all that is rare is behind it.
            if held > self.mark:
                self.past_mark()
            if now >= self.journal_due:
                self.journal_due = math.inf
                if self.log is not None:
                    self.log.call_received(self)

    def end(self, cut: BaseException | None = None) -> None:
        """Ends the call; ``cut`` is the exception that broke the stream off. Only the first end counts.

        The garbage collector may run it at any point of the program, when it closes a stream: it takes no lock and
        decodes nothing. ``drain`` does the rest.
        """
        if self.ended is None:
            if cut is not None:
                self.cut = Failure.of(cut)
            self._end_attempt(self.cut)
            log = self.log
            # Last: once it is set, another thread may decode the call.
            self.ended = time.perf_counter()
            just_ended.append(self)
            if log is not None:
                log.call_ended(self)
        elif self.failure is not None and self.log is not None:
            self.log.call_amended(self)

    def _end_attempt(self, cut: Failure | None = None) -> None:
        if self.attempts and self.attempts[-1].ended is None:
            self.attempts[-1].ended = time.perf_counter()
            if cut is not None and cut.kind != "closed":
                # The body broke off. One that its reader closed early is no error of the attempt's.
                self.attempts[-1].error = cut.info

    @property
    def encoding(self) -> str | None:
        """Content encoding of ``chunks``; None if they are not compressed."""
        return None if self.is_decompressed else self._header("content-encoding")

    @property
    def is_text_stream(self) -> bool:
        """Whether the response is declared a stream of server-sent events."""
        return "text/event-stream" in (self._header("content-type") or "").lower()

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events: server-sent ones, or Amazon's (``vnd.amazon.eventstream``)."""
        return "eventstream" in (self._header("content-type") or "").lower().replace("-", "")

    def _header(self, name: str) -> str | None:
        return self.attempts[-1].known.get(name) if self.attempts else None

    # Its bytes

    def size(self) -> int:
        """Number of bytes held until the call is decoded."""
        return len(self.request or b"") + self.held

    def drop_bytes(self) -> None:
        """Drops the bodies of a call that has been decoded."""
        self.chunks, self.request, self.held = [], None, 0

    def past_mark(self) -> None:
        """Removes comments from what came since the last time, and keeps the response within its limit.

        To be called when ``held`` has exceeded ``mark``.
        """
        if not self.left_out:
            self._remove_comments()
        while self.held > self.limit:
            # The latest chunk; once some bytes were left out all of it is, or the stream would have a gap.
            chunk = self.chunks.pop()
            kept = chunk[: max(len(chunk) - (self.held - self.limit), 0)]
            rest = chunk[len(kept) :]
            self.held -= len(rest)
            self.left_out += len(rest)
            self._tail = (self._tail + rest[-_TAIL:])[-_TAIL:]
            if kept:
                self.chunks.append(kept)
        self.mark = self.limit if self.left_out else min(self.held + PIECE, self.limit)

    def saw_done(self) -> bool:
        """Whether the part of an uncompressed stream that was left out ended with the event [DONE]."""
        return self.encoding is None and _DONE.search(self._tail) is not None

    def has_last_event(self) -> bool:
        """Whether what has arrived of an uncompressed stream ends with the event [DONE]."""
        return self.encoding is None and _DONE.search(b"".join(self.chunks[-8:])[-_TAIL:]) is not None

    def has_finished(self) -> bool:
        """Whether what has arrived of an uncompressed stream ends with the end of an answer."""
        return self.encoding is None and _FINISHED.search(b"".join(self.chunks[-8:])) is not None

    def set_done(self) -> None:
        """Sets ``saw_done`` on a recovered call, whose tail is not stored."""
        self._tail = b"\ndata: [DONE]"

    def what_is_missing(self, *, has_more: bool) -> str | None:
        """A sentence on what is not kept; None where all is.

        ``has_more``: what is kept of the response unpacks to more than the limit of an unpacked one.
        """
        parts = []
        if self.request_left_out:
            parts.append(f"the request has {self.request_left_out:,} bytes, and none are kept")
        if self.left_out:
            parts.append(f"the response has {self.held + self.left_out:,} bytes, and the first {self.held:,} are kept")
        if has_more:
            unpacked = f"unpack to more than {UNPACKED * self.limit:,}, and the first {self.limit:,} of them are read"
            parts.append(f"{self.held:,} bytes of the response {unpacked}")
        return f"{'; '.join(parts)} (max_call_bytes is {self.limit:,})." if parts else None

    def _remove_comments(self) -> None:
        """Removes the comment lines from the chunks since ``_checked``, which then come before it."""
        if not self.is_text_stream or self.encoding is not None:
            return
        piece = b"".join(self.chunks[self._checked :])
        begins_line = not self._checked or self.chunks[self._checked - 1].endswith(b"\n")
        start = 0 if begins_line else piece.find(b"\n") + 1
        end = piece.rfind(b"\n") + 1
        before, lines, rest = piece[:start], piece[start:end], piece[max(start, end) :]
        kept = without_comments(lines)
        # A comment whose end has not come is looked at again; a very long one is not, or it would be for ever.
        is_open = rest.startswith(b":") and len(rest) < PIECE and (begins_line or start > 0)
        if len(kept) < len(lines) or is_open:
            done = [part for part in (before, kept, b"" if is_open else rest) if part]
            self.chunks[self._checked :] = [*done, rest] if is_open else done
            self.held -= len(lines) - len(kept)
            self._checked += len(done)
        else:
            self._checked = len(self.chunks)


def end(call: Call, cut: BaseException | None = None) -> None:
    """Ends a call, whatever fails. Never raises, except under pytest. Takes no lock, so finalizers may call it."""
    try:
        call.end(cut)
    except Exception as error:
        if isinstance(call, Call) and call.ended is None:
            # Otherwise its trajectory would wait for it until its recording ends.
            call.ended = time.perf_counter()
        guard.failed("end", call, error)


NAMES = ("content-type", "content-encoding", "x-request-id", "request-id", COST_HEADER)
_NAMES = {name.encode(): name for name in NAMES}


class KnownHeaders(dict[str, str]):
    """The headers of ``NAMES`` that an answer has, by name."""

    __slots__ = ()


def known_headers(headers: Mapping[str, str]) -> KnownHeaders:
    """Returns the headers of ``NAMES`` that an answer has.

    Args:
        headers: with lower-case names, or in a case-insensitive mapping.
    """
    # Of httpx's own object in one pass: each of its look-ups by name takes as long.
    items = getattr(headers, "_list", None)
    # Not in ASCII, or of another version: by look-ups.
    with suppress(TypeError, ValueError, AttributeError):
        pairs = [(_NAMES[name], value.decode("ascii")) for _, name, value in items or () if name in _NAMES]
        # One that came twice is joined by the look-up by name.
        if type(items) is list and len(found := KnownHeaders(pairs)) == len(pairs):
            return found
    return KnownHeaders((name, value) for name in NAMES if (value := headers.get(name)) is not None)
