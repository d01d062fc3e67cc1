"""The answers of a scripted server: replies, faults, the order they come in, and which request gets which."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rollout_trace.clients.loopback.messages import RequestRecord

Compression = Literal["gzip", "br", "zstd"]


class ToolCall(NamedTuple):
    """A tool call of a reply. `arguments` is the raw string, sent unchanged, valid JSON or not."""

    name: str
    """Name of the tool."""
    arguments: str = "{}"
    """The raw argument string."""


@dataclass(frozen=True)
class Reply:
    """One answer of the model. Every field is optional; `Reply("text")` is the simplest."""

    text: str | None = None
    """Text of the answer."""
    tool_calls: Sequence[ToolCall | tuple[str, str]] = ()
    """Tool calls, or pairs of a name and the raw argument string."""
    reasoning: str | None = None
    """Reasoning text, sent as `message.reasoning`; its tokens are between `<think>` and `</think>`."""
    _: KW_ONLY
    token_ids: Sequence[int] | None = None
    """Exact ids to use instead of those of `text`; no stop token is added."""
    logprobs: Sequence[float] | None = None
    """Logprobs to use instead of the generated ones; any length and values."""
    finish_reason: str | None = None
    """Finish reason; by default as in vLLM. "length" leaves the stop token out."""
    stop_reason: str | int | None = None
    """``stop_reason`` of the answer."""
    usage: Mapping[str, Any] | None = None
    """Usage fields that override the counted usage."""
    extra_message: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the message (first delta)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional top-level fields of the response, or of every chunk."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Additional response headers."""
    tool_index: Literal["normal", "null", "missing"] = "normal"
    """`index` of streamed tool calls."""
    compress: Compression | None = None
    """Content encoding; "br" needs brotli, "zstd" needs zstandard."""
    chunk_bytes: int | None = None
    """Cut the bytes of the body into HTTP chunks of this size."""


@dataclass(frozen=True)
class Fault:
    """A failure or delay of an answer. Fields can be combined.

    Fields that count chunks count events of a stream, or bytes of the body of an unstreamed answer.
    """

    reply: str | Reply = "ok"
    """The reply that fails or is delayed."""
    _: KW_ONLY
    status: int | None = None
    """HTTP status of an error to send instead of the reply."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Additional response headers."""
    body: str | bytes | Mapping[str, Any] | None = None
    """Body of the error; default: an error object in vLLM's shape."""
    delay: float = 0.0
    """Seconds before the answer begins; if the server closes meanwhile, the connection is cut."""
    hold: bool = False
    """Send nothing until `server.release()`."""
    hold_after: int | None = None
    """Hold after this many chunks."""
    cut_after: int | None = None
    """Close the connection after this many chunks, without a proper end."""
    reset: bool = False
    """Reset the connection (RST): before the answer, or where `cut_after` cuts it."""
    stall: bool = False
    """Send no answer, and keep the connection open until the client disconnects."""
    stall_after: int | None = None
    """Send nothing more after this many chunks, until the client disconnects."""
    chunk_delay: float = 0.0
    """Seconds before each chunk of a stream but the first."""
    error_event_after: int | None = None
    """After this many chunks of a stream, send an error event and end it."""
    no_done: bool = False
    """End the stream without `data: [DONE]`."""
    bad_json: bool = False
    """Send status 200 with a body (or second event) that is not JSON."""

    @property
    def hides_reply(self) -> bool:
        """Whether the client gets nothing of the reply."""
        return self.status is not None or self.stall or (self.reset and self.cut_after is None)

    @property
    def breaks_reply(self) -> bool:
        """Whether the client gets only part of the reply, or something that it cannot read."""
        return self.bad_json or any(
            place is not None for place in (self.cut_after, self.stall_after, self.error_event_after)
        )


Answer = str | Reply | Fault | Sequence[str | Reply | Fault]
"""What a request is answered with. A list: the answers of its attempts, in order; the last one counts for the rest."""
ScriptFunction = Callable[..., Answer]
AnyScript = ScriptFunction | Sequence[Answer] | str | Reply | Fault
Faults = Mapping[int, Fault] | Callable[[int], Fault | None]


class Script:
    """Answers successive requests in order, whatever their contents.

    After the last answer it repeats that one if `repeat_last` is true; otherwise it raises IndexError: the server
    answers with status 400, and raises the error when its `with` block ends.
    """

    def __init__(self, answers: Sequence[Answer], *, repeat_last: bool = False) -> None:
        self._answers = list(answers)
        self._repeat_last = repeat_last
        self._next = self._asked = 0
        self._guard = threading.Lock()

    @property
    def left(self) -> int:
        """Number of answers not used yet."""
        with self._guard:
            return len(self._answers) - self._next

    def add(self, answers: Sequence[Answer]) -> None:
        """Put more answers after the last."""
        with self._guard:
            self._answers += answers

    def __call__(self, request: Mapping[str, Any]) -> Answer:
        with self._guard:
            count = len(self._answers)
            self._asked += 1
            if self._next < count:
                self._next += 1
                return self._answers[self._next - 1]
            if self._repeat_last and count:
                return self._answers[-1]
            asked = self._asked
        if not count:
            raise IndexError(f"request {asked} came, but there is no script: set `server.script`, or use `answers()`")
        answers = "1 answer" if count == 1 else f"{count} answers"
        raise IndexError(
            f"request {asked} came, but the script has {answers}: add one, or use Script([...], repeat_last=True)"
        )


def reply_of(answer: Reply | Fault) -> Reply:
    """The reply that an answer carries."""
    inner = answer.reply if isinstance(answer, Fault) else answer
    return Reply(inner) if isinstance(inner, str) else inner


_BY_NAME = ("record", "messages")
"""Parameters of a script that are given by their names."""


class FaultPlan:
    """Plans which requests, counted from 1, go wrong.

    A fault that hides the whole answer takes none from the script. An answer that a fault broke off is kept, and given
    to the next request that is equal: a client that tries again gets what it would have got.
    """

    def __init__(self, faults: Faults | None) -> None:
        self.faults = checked_faults(faults)
        self._count = 0
        self._kept: dict[bytes, list[Reply | Fault]] = {}
        self._guard = threading.Lock()

    def answers(self, key: bytes, take: Callable[[], list[Reply | Fault]]) -> list[Reply | Fault]:
        """The answers to the next request. `key`: what equal requests have in common; `take`: takes its answers."""
        with self._guard:
            self._count += 1
            number = self._count
        fault = self._fault(number)
        if fault is not None and fault.hides_reply:
            return [fault]
        with self._guard:
            kept = self._kept.pop(key, None)
        answers = take() if kept is None else kept
        if fault is None:
            return answers
        if fault.breaks_reply:
            with self._guard:
                self._kept[key] = answers
        return [replace(fault, reply=reply_of(answer)) for answer in answers]

    def _fault(self, number: int) -> Fault | None:
        if self.faults is None:
            return None
        found = self.faults(number) if callable(self.faults) else self.faults.get(number)
        if found is not None and not isinstance(found, Fault):
            raise TypeError(f"`faults` gave {found!r} for request {number}: use a Fault, or None")
        return found


def checked_faults(faults: Faults | None) -> Faults | None:
    """Faults as they were given. Raises TypeError or ValueError for those that would never happen."""
    if faults is None or callable(faults):
        return faults
    if not isinstance(faults, Mapping):
        raise TypeError(f"faults={faults!r:.80}: use a dict by number, {{2: Fault(...)}}, or a function of the number")
    for number in faults:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"`faults` has {number!r}: use numbers, {{2: Fault(...)}}")
        if number < 1:
            raise ValueError(f"`faults` has {number}: requests are counted from 1")
    return faults


class Director:
    """Calls a script for each choice of a request, with the arguments that its signature has."""

    def __init__(self, script: AnyScript) -> None:
        self.script = script
        self._function = as_function(script)
        parameters = inspect.signature(self._function).parameters
        self._names = [name for name in _BY_NAME if name in parameters]
        positional = [
            p.name
            for p in parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in _BY_NAME
        ]
        self._takes_choice = len(positional) > 1
        self._attempts: dict[bytes, int] = {}
        self._guard = threading.Lock()

    @property
    def left(self) -> int:
        """Number of answers of lists that no request has got yet; 0 for other scripts."""
        return int(getattr(self._function, "left", 0))

    def add(self, answers: Sequence[Answer]) -> bool:
        """Add answers to the script. Returns False if it is not a list."""
        if isinstance(self._function, Script):
            self._function.add(answers)
        return isinstance(self._function, Script)

    def answers(
        self, request: Any, record: RequestRecord, count: int, messages: Callable[[], Any]
    ) -> list[Reply | Fault]:
        """One answer for each choice. `messages` gives those of the request as chat messages."""
        given = {"record": lambda: record, "messages": messages}
        keywords = {name: given[name]() for name in self._names}
        choices = range(count if self._takes_choice else 1)
        raw = [self._function(request, *([at] if self._takes_choice else []), **keywords) for at in choices]
        if any(not isinstance(answer, (str, Reply, Fault)) for answer in raw):
            attempt = self._count_attempt(record)
            raw = [_attempt_of(answer, attempt) for answer in raw]
        answers = [as_reply(answer) for answer in raw]
        return answers if self._takes_choice else answers * count

    def _count_attempt(self, record: RequestRecord) -> int:
        key = key_of(record)
        with self._guard:
            attempt = self._attempts.get(key, 0)
            self._attempts[key] = attempt + 1
        return attempt


def key_of(record: RequestRecord) -> bytes:
    """Returns a key shared by equal requests."""
    return record.path.encode() + b"\n" + record.body


def as_function(script: AnyScript) -> ScriptFunction:
    if callable(script):
        return script
    if isinstance(script, (str, Reply, Fault)):
        constant = script
        return lambda request: constant
    if isinstance(script, Mapping):
        raise TypeError("the script is a dict: give it to by_conversation(), or use a list or a function")
    if not isinstance(script, Sequence):
        raise TypeError(f"the script is {script!r}: use a function of the request, a list of answers, or one answer")
    return Script(script)


def _attempt_of(answer: Answer, attempt: int) -> str | Reply | Fault:
    if isinstance(answer, (str, Reply, Fault)):
        return answer
    if not isinstance(answer, Sequence) or not answer:
        raise TypeError(f"the script gave {answer!r}: return a str, a Reply, a Fault, or a list of them")
    return answer[min(attempt, len(answer) - 1)]


def as_reply(answer: object) -> Reply | Fault:
    """An answer of a script, checked. Raises TypeError for anything else."""
    if isinstance(answer, str):
        return Reply(answer)
    if not isinstance(answer, (Reply, Fault)):
        raise TypeError(f"the script gave {answer!r} as one answer: use a str, a Reply or a Fault")
    for call in reply_of(answer).tool_calls:
        if isinstance(call, str) or len(call) != 2:
            raise TypeError(f"the script gave the tool call {call!r}: use a pair of name and arguments, or a ToolCall")
    return answer
