"""A running call: timestamps, raw bytes, and the settings of its client. Nothing is decoded before it has ended."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from rollout_trace import guard
from rollout_trace._forks import renew_after_fork
from rollout_trace.data.counts import COST_HEADER
from rollout_trace.data.model import ErrorInfo, error_info, new_id
from rollout_trace.record.bounds import KeptBytes
from rollout_trace.record.decoder import decoder
from rollout_trace.wire.errors import error_of

if TYPE_CHECKING:
    from rollout_trace.data.exact_turn import ExactTurn
    from rollout_trace.data.model import LogprobsMode, Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineProfile


MAX_CALL_BYTES = 64 * 1024 * 1024
"""The default of ``Settings.max_call_bytes``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one wrapped class."""

    protocol_of: Callable[[str, str], str | None]
    """From HTTP method and path to the protocol; None for requests that do not generate."""
    engine: EngineProfile | None = None
    """The engine whose capture fields are added to requests; None sends what the caller sends."""
    keep_bytes: bool = False
    """Whether steps keep the request and response bodies."""
    trajectory: Callable[[], Trajectory | None] | None = None
    """Weak reference to the trajectory that the client is bound to; None if the context decides."""
    logprobs_mode: LogprobsMode | None = None
    """Distribution of the server's logprobs, if the user set it: it overrides the default of the engine."""
    max_call_bytes: int = MAX_CALL_BYTES
    """Most bytes that are kept of a request body, and of a response body as it arrives."""
    wishes: Engine | None = None
    """What is asked for beside ids and logprobs; None where nothing is. With ``auto``, of whatever engine is found."""
    source: Callable[[Callable[[], object]], Settings | None] | None = None
    """Where the settings in force are looked up when a call begins, from what returns the server's address; None: these
    are. It returns None where nothing is recorded. For clients that are recorded because the process is."""
    is_http: bool = False
    """Whether calls are requests of an HTTP library. What is sent again with the same bytes is a retry then: no SDK
    shows which requests are one call."""
    is_guess: bool = False
    """Whether a request was taken for a call by its path and its body alone. One whose answer is none is dropped."""
    quiet: bool = False
    """Whether wishes that cannot be met are not warned of: those of test calls."""


def check_call_bytes(value: object) -> int:
    """Checks a ``max_call_bytes`` argument and returns it.

    Raises:
        TypeError: no whole number.
        ValueError: below 1.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"max_call_bytes={value!r:.80}: expected a whole number of bytes, such as 64 * 1024 * 1024.")
    if value < 1:
        raise ValueError(f"max_call_bytes={value}: expected at least 1 byte; the default is {MAX_CALL_BYTES:,}.")
    return value


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
    """What a call tells the log that it belongs to: ``log.StepLog``."""

    def decode(self, call: Call, *, wait: bool = True) -> bool: ...
    def prepare(self, call: Call) -> None: ...
    def call_ended(self, call: Call) -> None: ...
    def call_received(self, call: Call) -> None: ...
    def call_amended(self, call: Call) -> None: ...


class EndedOnce(guard.HoldsFaults, Protocol):
    """A call, or one attempt of it, that a stream ends."""

    def end(self, cut: BaseException | None = None) -> None:
        """Ends it; ``cut`` is the exception that broke the stream off."""


JOURNAL_SECONDS = 1.0
"""Seconds between two records of one stream in flight in the journal."""
PENDING_LIMIT = 4 * 1024 * 1024
"""Most bytes of finished calls that wait for decoding in this process; beyond it the oldest are decoded at once."""
LARGE = 64 * 1024
"""Most bytes of a response that is decoded by the caller of another call (about 3 ms); a thread decodes longer ones."""
_PACKED = 8
"""Times by which a compressed response counts more: it is longer once unpacked."""
_REQUEST = 16
"""Times by which a request counts less: it is split into messages, most of which are known already."""
BACKLOG_LIMIT = 256 * 1024 * 1024
"""Most bytes that wait for that thread; beyond it callers decode large calls too, which keeps the bytes bounded."""


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


class Call(KeptBytes):
    """One logical request to a model: its attempts and raw bytes, later its decoded steps."""

    __slots__ = ("_id", "agent", "attempts", "began", "cut", "ended", "endpoint", "eof", "exact_turn", "failure",
                 "faults", "first_byte", "hides", "ids_field", "journal_due", "journal_progress", "log",
                 "on_ids_not_served", "path_model", "peeks", "profile", "protocol", "refusals",
                 "request_digest", "settings", "started", "steps")  # fmt: skip

    def __init__(self, settings: Settings, protocol: str) -> None:
        super().__init__(settings.max_call_bytes)
        self._id: str | None = None
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
        self.ids_field: list[bytes] | None = None
        """The field with the ids of its prompt, as pieces of a member of a JSON object: put into the body as it goes
        out."""
        self.on_ids_not_served: Callable[[str], None] | None = None
        """Told, when the answer is decoded, that other ids were served than sent."""
        self.path_model: str | None = None
        """The model in the path of the request, where the body does not name it."""
        self.peeks: Callable[[bytes | None], bool] | None = None
        """Whether an error event at the beginning of the stream is about an added field; None where it cannot be."""
        self.hides: frozenset[str] = frozenset()
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

    def attempt(self, content: bytes | None) -> None:
        """Begins an attempt with this request body (None if unknown). Bytes of an earlier attempt are dropped."""
        guard.attempt_began()
        if self.attempts or self.chunks:
            self.forget_bytes()
            self.first_byte = None
        self.attempts.append(AttemptMark())
        self.keep_request(content)

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
            for redirect in redirects:
                self._redirected(*redirect)
            mark = self.attempts[-1]
            mark.status, mark.headers = status, headers

    def body(self, content: bytes) -> None:
        """Records the whole response body, already decompressed."""
        # Looked up only where it decides how much is kept.
        is_long = len(content) > self.limit
        self.keep_body(content, is_encoded=is_long and self._header("content-encoding") is not None)
        self.eof = True
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
            # Last: once it is set, another thread may decode the call.
            self.ended = time.perf_counter()
            pending.ended.append(self)
            if (log := self.log) is not None:
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
    def id(self) -> str:
        """Unique across processes. Generated on first use, off the path of the call."""
        if self._id is None:
            self._id = new_id()
        return self._id

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

    def _redirected(self, status: int, headers: Mapping[str, str]) -> None:
        """Records a redirect that the HTTP client followed: an attempt of its own."""
        guard.attempt_began()
        mark, last = AttemptMark(), self.attempts[-1]
        mark.started, mark.began = last.started, last.began
        mark.status, mark.headers = status, headers
        # Before the attempt that is open: the answer to come belongs to the last mark.
        self.attempts.insert(-1, mark)


class _Pending:
    """Finished calls that are not decoded yet, oldest first, and the total of their bytes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Drops all calls, in a forked process: they are the other's, and a thread of it may have held the lock."""
        self.ended: deque[Call] = deque()
        """Calls that ended since ``drain`` ran last. Appended to without a lock: the garbage collector may do so."""
        self._sizes: dict[Call, int] = {}
        self._total = 0
        # Reentrant: while the lock is held, the garbage collector may close an agent (a generator), and its calls.
        self._lock = threading.RLock()

    def drain(self) -> None:
        """Collects finished calls and decodes the oldest once more than ``PENDING_LIMIT`` bytes wait."""
        while self.ended:
            try:
                call = self.ended.popleft()
            except IndexError:
                # Another thread has taken the last one since `while` looked.
                return
            # Its trajectory may have closed meanwhile and decoded it: then it does not wait.
            if call.steps is None:
                try:
                    self._add(call)
                except Exception as error:
                    guard.failed("pending", call, error)
        while self._total > PENDING_LIMIT:
            with self._lock:
                oldest = next(iter(self._sizes), None)
                size = self._remove(oldest)
            if oldest is None:
                return
            _decode_soon(oldest, size)

    def _add(self, call: Call) -> None:
        size = call.size()
        with self._lock:
            self._total += size - self._sizes.get(call, 0)
            self._sizes[call] = size
        if call.steps is not None:
            # Decoded while it was added.
            self.discard(call)
        elif call.settings.wishes is not None and call.settings.wishes.exact_turns:
            # The next call needs its ids: decoded while the agent does something else.
            decoder.submit(call, 0, partial(decode if call.log is None else call.log.prepare, call))

    def discard(self, call: Call) -> None:
        """Counts a call no more."""
        if call in self._sizes:
            with self._lock:
                self._remove(call)

    def _remove(self, call: Call | None) -> int:
        size = 0 if call is None else self._sizes.pop(call, 0)
        self._total -= size
        return size


pending = _Pending()

renew_after_fork(pending, _Pending.reset)


def end(call: EndedOnce, cut: BaseException | None = None) -> None:
    """Ends a call, whatever fails in it. Never raises, save under pytest. For finalizers too: it takes no lock."""
    try:
        call.end(cut)
    except Exception as error:
        if isinstance(call, Call) and call.ended is None:
            # Otherwise its trajectory would wait for it until its recording ends.
            call.ended = time.perf_counter()
        guard.failed("end", call, error)


deferred: deque[Callable[[], object]] = deque()
"""Functions that ``drain`` runs, once each: for what a call's end cannot do, which may be a finalizer."""


def drain() -> None:
    """Collects finished calls. Only for places where locks may be taken and calls decoded: not for finalizers."""
    while deferred:
        try:
            deferred.popleft()()
        except IndexError:
            break
    pending.drain()


def decode(call: Call, *, wait: bool = True) -> bool:
    """Decodes a finished call and drops its bytes. Does nothing if it has been decoded.

    Without ``wait`` it returns False, and decodes nothing, while another thread decodes a call of the same log.
    """
    pending.discard(call)
    log = call.log
    return log is None or log.decode(call, wait=wait)


def _decode_soon(call: Call, size: int) -> None:
    """Decodes a finished call here if that is quick, else on the decoder's thread."""
    work = call.held * (1 if call.encoding is None else _PACKED) + len(call.request or b"") // _REQUEST
    if work <= LARGE and decode(call, wait=False):
        return
    if decoder.backlog + size > BACKLOG_LIMIT or not decoder.submit(call, size, partial(decode, call)):
        decode(call)


NAMES = ("content-type", "content-encoding", "x-request-id", "request-id", COST_HEADER)
_NAMES = {name.encode(): name for name in NAMES}


class KnownHeaders(dict[str, str]):
    """The headers of ``NAMES`` that an answer has, by name."""

    __slots__ = ()


def known_headers(headers: Mapping[str, str]) -> KnownHeaders:
    """Those of ``NAMES`` that an answer has.

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
