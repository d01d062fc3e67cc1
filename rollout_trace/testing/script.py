"""The answers of a scripted server: replies, faults, and the order they come in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple

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
    """The text."""
    tool_calls: Sequence[ToolCall | tuple[str, str]] = ()
    """Tool calls, or pairs of a name and the raw argument string."""
    reasoning: str | None = None
    """Goes to `message.reasoning`; its tokens stand between `<think>` and `</think>`."""
    _: KW_ONLY
    token_ids: Sequence[int] | None = None
    """The exact ids, instead of those of `text`; no stop token is added."""
    logprobs: Sequence[float] | None = None
    """Instead of the generated ones; of any length and value."""
    finish_reason: str | None = None
    """Default: as vLLM; "length" leaves the stop token out."""
    stop_reason: str | int | None = None
    """``stop_reason`` of the answer."""
    usage: Mapping[str, Any] | None = None
    """Merged over the counted usage."""
    extra_message: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the message (first delta)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More top-level fields of the response, or of every chunk."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More response headers."""
    tool_index: Literal["normal", "null", "missing"] = "normal"
    """`index` of streamed tool calls."""
    compress: Compression | None = None
    """Content-encoding; "br" needs brotli, "zstd" needs zstandard."""
    chunk_bytes: int | None = None
    """Cut the bytes of the body into HTTP chunks of this size."""


@dataclass(frozen=True)
class Fault:
    """A failure or a delay of an answer. Fields can be combined.

    Fields that count chunks count the events of a stream, or the bytes of the body of an unstreamed answer.
    """

    reply: str | Reply = "ok"
    """The reply that fails or is delayed."""
    _: KW_ONLY
    status: int | None = None
    """Answer with this error instead of the reply."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More response headers."""
    body: str | bytes | Mapping[str, Any] | None = None
    """Of the error; default: an error object in vLLM's shape."""
    delay: float = 0.0
    """Seconds before the answer begins; if the server closes meanwhile, the connection is cut."""
    hold: bool = False
    """Nothing is sent until `server.release()`."""
    hold_after: int | None = None
    """Hold after this many chunks."""
    cut_after: int | None = None
    """Close the connection after this many chunks, without a proper end."""
    reset: bool = False
    """Reset the connection (RST): before the answer, or where `cut_after` cuts it."""
    stall: bool = False
    """No answer; the connection stays open until the client leaves."""
    stall_after: int | None = None
    """After this many chunks nothing more comes, until the client leaves."""
    chunk_delay: float = 0.0
    """Seconds before each chunk of a stream but the first."""
    error_event_after: int | None = None
    """After this many chunks of a stream, an error event and the end."""
    no_done: bool = False
    """The stream ends without `data: [DONE]`."""
    bad_json: bool = False
    """Status 200 with a body (or a second event) that is not JSON."""

    @property
    def hides_reply(self) -> bool:
        """Whether the client gets nothing of the reply."""
        return self.status is not None or self.stall or (self.reset and self.cut_after is None)

    @property
    def breaks_reply(self) -> bool:
        """Whether the client gets a part of the reply, or something that it cannot read."""
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

    After the last answer it repeats that one if `repeat_last` is true, else it raises IndexError: the server answers
    with status 400, and raises the error when its `with` block ends.
    """

    def __init__(self, answers: Sequence[Answer], *, repeat_last: bool = False) -> None:
        self._answers = list(answers)
        self._repeat_last = repeat_last
        self._next = self._asked = 0
        self._guard = threading.Lock()

    @property
    def left(self) -> int:
        """Number of answers that no request has got yet."""
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
