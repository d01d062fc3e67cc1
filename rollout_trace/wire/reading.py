"""What the decoders of several protocols do alike: going through the bodies of an answer, and through its choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rollout_trace.data.model import ErrorInfo, TokenIssue
from rollout_trace.wire.errors import brief, error_of, error_value
from rollout_trace.wire.facts import ChoiceFacts, ResponseFacts
from rollout_trace.wire.lenient import Typed, loads, text_of
from rollout_trace.wire.sse import Event, events
from rollout_trace.wire.usage import usage_of

R = TypeVar("R")


class Body(Protocol):
    """One JSON object of an answer."""

    error: Any


B = TypeVar("B", bound=Body)


UNCONFIRMED = "ids stand in the logprobs alone, where this server leaves some out, and no usage counts them."


def parts_of(response: bytes, *, streamed: bool) -> list[Event]:
    """The events of a stream, or the one answer as if it were an event."""
    if not streamed:
        return [Event(b"", response)]
    # llama-server sends `null` where a token gives no text yet; SDKs take it for a chunk without anything.
    return [event for event in events(response) if event.data != b"null"]


def plain_bodies(parts: list[Event]) -> list[Any]:
    """The bodies as plain values, for what their types leave out; those that are no JSON left out."""
    found = []
    for part in parts:
        try:
            found.append(loads(part.data))
        except ValueError:
            continue
    return found


def read_bodies(
    parts: list[Event], kind: Typed[B], facts: ResponseFacts, take: Callable[[B, Event], None], *, streamed: bool
) -> bool:
    """Gives each body to ``take``, in order, until an error; True where the server said that it was done."""
    for part in parts:
        if streamed and part.data.startswith(b"[DONE]"):
            return True
        try:
            body, problem = kind.decode(part.data)
        except ValueError as error:
            # An event that was cut is where the stream ended, not an error of the server's.
            if part.complete:
                facts.error = ErrorInfo(type="InvalidJSON", message=f"{error} in {brief(part.data)}")
            return False
        facts.malformed = facts.malformed or problem
        if body.error:
            facts.error = error_value(body.error)
            return False
        take(body, part)
    return not streamed


def nothing_read(
    parts: list[Event], response: bytes, status: int, is_known: Callable[[bytes], bool], *, streamed: bool
) -> ErrorInfo | None:
    """The error of an answer without choices: something else, or an object or page where a stream should be.

    A stream that was cut before its first choice has none.
    """
    if not streamed:
        return error_of(response, status)
    if not parts:
        return error_of(response, status) if response.lstrip()[:1] in (b"{", b"[", b"<") else None
    unread = next((p.data for p in parts if p.complete and p.data[:6] != b"[DONE]" and not is_known(p.data)), None)
    return None if unread is None else error_of(unread, status)


def holds_choices(kind: Typed[Any], data: bytes) -> bool:
    """True for a body with choices (empty ones too) or a usage; False for something else."""
    try:
        body, problem = kind.decode(data)
    except ValueError:
        return False
    return problem is None and (body.choices is not None or body.usage is not None)


def name_answer(facts: ResponseFacts, body: Any) -> None:
    """Takes what every body of OpenAI's shape says of its answer: id, model, usage."""
    facts.response_id = facts.response_id or text_of(body.id)
    facts.model = facts.model or text_of(body.model)
    if isinstance(body.usage, dict):
        facts.usage = usage_of(body.usage)


def reader_of(readers: dict[int, R], index: int | None, position: int, make: Callable[[], R], *, streamed: bool) -> R:
    """The reader of a choice: the chunks of a stream meet in one, the choices of an answer each have their own."""
    if index is None or (index in readers and not streamed):
        index = position if streamed or position not in readers else len(readers)
    if index not in readers:
        readers[index] = make()
    return readers[index]


def mark_malformed(facts: ResponseFacts, *, streamed: bool) -> None:
    """Something could not be read: an answer lacks that field, a stream may have a gap anywhere."""
    if facts.malformed is None:
        return
    for choice in facts.choices:
        choice.issue = TokenIssue(code="response_malformed", message=f"{facts.malformed}.")
        if streamed:
            withhold(choice)


def withhold(choice: ChoiceFacts, code: str = "", message: str = "") -> None:
    """Takes ids and logprobs away, and says why unless something said so before."""
    if code:
        report(choice, code, message)
    choice.completion_token_ids = choice.logprobs = choice.top_logprobs = None


def report(choice: ChoiceFacts, code: str, message: str) -> None:
    """Says what is wrong. The first thing that was is the one nearest to the cause."""
    if choice.issue is None:
        choice.issue = TokenIssue(code=code, message=message)


def tell_clash(choice: ChoiceFacts, position: int | None) -> bool:
    """Says where the ids of the logprobs are others; True where they are."""
    if position is not None:
        report(choice, "ids_differ", f"the ids and the logprobs are of different tokens from position {position} on.")
    return position is not None
