"""Shared parts of the decoders: the bodies of an answer, its choices, its counts, and the issues that they get.

The places of each count are in ``rollout_trace/data/counts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rollout_trace.data.counts import COUNTS, USAGES, Shape, count_at, counts_in, totals_in, value_at
from rollout_trace.data.model import ErrorInfo, TokenIssue, Usage, new_usage
from rollout_trace.wire.errors import brief, error_of, error_value
from rollout_trace.wire.facts import ChoiceFacts, ResponseFacts
from rollout_trace.wire.lenient import LenientDecoder, loads
from rollout_trace.wire.sse import Event, data_lines, events

if TYPE_CHECKING:
    from rollout_trace.wire.facts import ResponseFacts

R = TypeVar("R")


UNCONFIRMED = "ids came only in the logprobs, where this server leaves some out, and no usage counts them."


def text_of(value: Any) -> str | None:
    """A name or an id as a text; of a number its digits, as some servers send ids as numbers."""
    return value if value is None or isinstance(value, str) else str(value)


def events_of(response: bytes, *, streamed: bool) -> list[Event]:
    """The events of a stream; an unstreamed answer is one event."""
    if not streamed:
        return [Event(b"", response)]
    lines = data_lines(response)
    found = events(response) if lines is None else [Event(b"", line) for line in lines]
    # llama-server sends `null` for a token without text yet; SDKs treat it as an empty chunk.
    return [event for event in found if event.data != b"null"]


def plain_bodies(parts: list[Event]) -> list[Any]:
    """The bodies as plain JSON values, for fields that the typed ones lack. Bodies that are no JSON are left out."""
    found = []
    for part in parts:
        try:
            found.append(loads(part.data))
        except ValueError:
            continue
    return found


def read_bodies(
    parts: list[Event],
    kind: LenientDecoder[Any],
    facts: ResponseFacts,
    add: Callable[[Any, Event], None],
    *,
    streamed: bool,
) -> bool:
    """Calls ``add`` with each body in order, up to the first error. True where the stream sent [DONE], or is none."""
    strictly = True
    for part in parts:
        if streamed and part.data.startswith(b"[DONE]"):
            return True
        try:
            body, problem = kind.decode(part.data, strictly=strictly)
        except ValueError as error:
            # A cut event is where the stream broke off, not an error of the server's.
            if part.complete:
                facts.error = unreadable(part, error)
            return False
        facts.malformed = facts.malformed or problem
        is_odd = part.type == b"error" or getattr(body, "object", None) == "error"
        if body.error or (is_odd and _is_error(body, part)):
            facts.error = error_value(body.error or loads(part.data))
            return False
        add(body, part)
        # The chunks of a stream are alike: where one has unknown fields, the strict type is not tried first again.
        strictly = strictly and not kind.has_unknown(body)
    return not streamed


def _is_error(body: Any, part: Event) -> bool:
    """Whether a body is an error without saying so in its field: by the event's name, or vLLM's of an unstreamed one.

    Where the type of the event says so itself, its protocol reads it.
    """
    by_name = part.type == b"error" and getattr(body, "type", None) != "error"
    return by_name or getattr(body, "object", None) == "error"


def unreadable(part: Event, error: ValueError) -> ErrorInfo:
    """The error of an event whose data are no JSON object."""
    if part.type == b"error":
        return error_value(part.data.decode("utf-8", "replace"))
    return ErrorInfo(type="InvalidJSON", message=f"{error} in {brief(part.data)}")


def error_of_choice(error: Any, finish_reason: str | None) -> ErrorInfo | None:
    """The error of a choice, beside others that may be whole: gateways put it there, vLLM the reason alone."""
    if error:
        return error_value(error)
    if finish_reason == "error":
        return ErrorInfo(type="ProviderError", message="the finish reason is 'error', and nothing says why.")
    return None


def error_without_choices(
    parts: list[Event], response: bytes, status: int, is_known: Callable[[Event], bool], *, streamed: bool = True
) -> ErrorInfo | None:
    """The error of an answer without choices: another kind of object, or an object or page in place of a stream.

    None for a stream that was cut before its first choice.
    """
    if not streamed:
        return error_of(response, status)
    if not parts:
        return error_of(response, status) if response.lstrip()[:1] in (b"{", b"[", b"<") else None
    unread = next((p.data for p in parts if p.complete and p.data[:6] != b"[DONE]" and not is_known(p)), None)
    return None if unread is None else error_of(unread, status)


def is_read(kind: LenientDecoder[Any], part: Event, test: Callable[[Any], bool], *, whole: bool = False) -> bool:
    """True for a body that can be read and passes a test; ``whole``: and of which nothing was dropped."""
    try:
        body, problem = kind.decode(part.data)
    except ValueError:
        return False
    return test(body) and not (whole and problem)


def holds_choices(kind: LenientDecoder[Any], part: Event) -> bool:
    """True for a body with choices (empty ones too) or a usage; False for something else."""
    return is_read(kind, part, lambda body: body.choices is not None or body.usage is not None, whole=True)


def read_answer_fields(facts: ResponseFacts, body: Any) -> None:
    """Copies id, model and usage from a body of OpenAI's shape. The first id and model count, and the last usage."""
    if not (facts.response_id and facts.model):
        facts.response_id = facts.response_id or text_of(body.id)
        facts.model = facts.model or text_of(body.model)
    if body.usage is not None:
        add_usage(facts, body.usage)


def reader_for(readers: dict[int, R], index: int | None, position: int, make: Callable[[], R], *, streamed: bool) -> R:
    """The reader of a choice: one for all chunks of an index in a stream, one for each choice of an unstreamed answer.

    ``position`` is the choice's place in its body, used where it has no index.
    """
    # Unstreamed, an index that comes twice is the server's mistake: merged, two completions would look like one.
    if index is None or (index in readers and not streamed):
        index = position if streamed or position not in readers else len(readers)
    if index not in readers:
        readers[index] = make()
    return readers[index]


def mark_malformed(facts: ResponseFacts, *, streamed: bool) -> None:
    """Sets the issue of every choice where a field was dropped; in a stream ids and logprobs are withheld too."""
    if facts.malformed is None:
        return
    for choice in facts.choices:
        choice.issue = TokenIssue(code="response_malformed", message=f"{facts.malformed}.")
        # An unstreamed answer lacks only that field, but a dropped one in a chunk may leave a gap in the middle.
        if streamed:
            withhold(choice)


def withhold(choice: ChoiceFacts, code: str = "", message: str = "") -> None:
    """Removes the completion ids, logprobs and texts of a choice; a code becomes its issue unless it has one."""
    if code:
        set_issue(choice, code, message)
    choice.completion_token_ids = choice.logprobs = choice.top_logprobs = choice.token_texts = None


def set_issue(choice: ChoiceFacts, code: str, message: str) -> None:
    """Sets the issue of a choice that has none yet: the first one found is nearest to the cause."""
    if choice.issue is None:
        choice.issue = TokenIssue(code=code, message=message)


def report_clash(choice: ChoiceFacts, position: int | None) -> bool:
    """True, and the issue set, where ids and logprobs name different tokens from a position on."""
    if position is not None:
        set_issue(
            choice, "ids_differ", f"the ids and the logprobs are of different tokens from position {position} on."
        )
    return position is not None


_SAMPLED: Final = frozenset(row.path for row in COUNTS if row.count in ("output", "reasoning"))
_OF_PROMPT: Final = {row.path for row in COUNTS if row.count in ("input", "tools", "cache_read", "cache_write")}
_NUMBERS: Final = (int, float)
_DETAILS: Final = frozenset(row.path[0] for row in COUNTS if row.shape in ("openai", "anthropic") and row.path[1:])


def usage_of(counts: Mapping[str, Any], shape: Shape = "openai") -> Usage:
    """The usage that an object of counts makes. A count that is null, missing or no whole number is None.

    What has no field of its own is in ``extra``, that of OpenAI's details beside the rest.
    """
    rest = {name: value for name, value in counts.items() if value is not None}
    if len(rest) <= 3 and (totals := totals_in(shape, rest)) is not None:
        return new_usage(**totals)
    details: dict[str, Any] = {}
    if not _DETAILS.isdisjoint(rest):
        details = {name: dict(value) for name, value in rest.items() if name in _DETAILS and isinstance(value, dict)}
        rest |= details
    found, said = counts_in(shape, rest)
    for path in said:
        holder = rest
        for name in path[:-1]:
            holder = holder[name]
        del holder[path[-1]]
    for name, values in details.items():
        others = {key: value for key, value in values.items() if value is not None}
        del rest[name]
        rest |= others if shape == "openai" or not others else {name: others}
    return new_usage(**found, extra=rest or None)


def add_usage(facts: ResponseFacts, counts: Any) -> None:
    """Adds the counts of a body, in OpenAI's names, to those of the bodies before it; nothing that is no object."""
    if not isinstance(counts, dict):
        return
    read, written, total = counts.get("prompt_tokens"), counts.get("completion_tokens"), counts.get("total_tokens")
    is_usual = type(read) is type(written) is type(total) is int and read >= 0 <= written and total == read + written
    if is_usual and not facts.counts and (len(counts) == 3 or len(counts) - list(counts.values()).count(None) == 3):
        # Of nearly all answers. The table would be searched for twenty names.
        facts.counts, facts.usage = counts, new_usage(input=read, output=written)
    else:
        facts.counts = merged(facts.counts, counts)
        facts.usage = usage_of(facts.counts) if facts.counts else None


def merged(before: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and costs of a stream so far, field by field: each chunk has totals, so that the later one holds.

    A later chunk may leave some out, or repeat them as zeros. A zero holds where the same chunk counts more of the
    prompt elsewhere: tokens that were to be written to a cache were read from it. Of sampled tokens the larger number
    holds.
    """
    if not before:
        return {name: value for name, value in counts.items() if value is not None}

    return _merged(before, counts, (), partial(_has_moved, before, counts))


def _has_moved(before: Mapping[str, Any], counts: Mapping[str, Any]) -> bool:
    return any((count_at(counts, path) or 0) > (count_at(before, path) or 0) for path in _OF_PROMPT)


def _merged(
    before: Mapping[str, Any], counts: Mapping[str, Any], way: tuple[str, ...], has_moved: Callable[[], bool]
) -> dict[str, Any]:
    found = dict(before)
    for name, value in counts.items():
        known = found.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            found[name] = _merged(known, value, (*way, name), has_moved)
        elif value is not None and not (
            # A number that is no later total, but what a chunk has that does not count any more.
            type(value) in _NUMBERS
            and type(known) in _NUMBERS
            and known > value
            and ((*way, name) in _SAMPLED or not (value or has_moved()))
        ):
            found[name] = value
    return found


def take_usage(fields: dict[str, Any], *, of_choice: bool = False) -> dict[str, Any]:
    """Takes counts from where some providers put them among the fields of a body, or of a choice; empty without any."""
    found: dict[str, Any] = {}
    for place in USAGES:
        *way, name = place.path
        holder: Any = value_at(fields, way) if place.of_choice is of_choice else None
        counts = holder.get(name) if isinstance(holder, dict) else None
        # Something else may have the same name: in Groq's whole answers it is what its caches held.
        if isinstance(counts, dict) and usage_of(counts).output is not None:
            found = merged(found, counts)
            del holder[name]
            if way and not holder:
                del fields[way[0]]
    return found
