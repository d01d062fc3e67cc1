"""The usual answer of ``openai.chat``, read in one pass: one choice, vLLM's or OpenAI's fields and no others.

Its types hold only what needs no second look: known fields, ids within int32, logprobs that are finite and not above 0,
no alternatives, no extras but those that stay as they are. Of any other answer ``plain_answer`` returns None, and
chat.py reads it; where both read one, the facts are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Raw, Struct, json, structs

from rollout_trace.data.model import Completion, Usage, new_usage
from rollout_trace.data.tokens import FLOAT32_MAX
from rollout_trace.wire.answer_extras import BodyExtras, OtherNames
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL
from rollout_trace.wire.message import MessageMerger, completion_from, completion_of
from rollout_trace.wire.other_fields import OtherFields
from rollout_trace.wire.token_texts import RawsOf, texts_of
from rollout_trace.wire.usage import usage_of

T = TypeVar("T")

_Id = Annotated[int, Meta(ge=0, le=0x7FFFFFFF)]
_Logprob = Annotated[float, Meta(ge=-FLOAT32_MAX, le=0)]
_Count = Annotated[int, Meta(ge=0, le=0x7FFFFFFF)]
_Name = Annotated[str, Meta(min_length=1)]


class _Entry(Struct, gc=False, forbid_unknown_fields=True):
    token: str
    logprob: _Logprob
    bytes: Raw = NULL
    top_logprobs: tuple[()] | None = None


class _Logprobs(Struct, gc=False, forbid_unknown_fields=True):
    content: list[_Entry] | None = None
    refusal: None = None


class _Message(Struct, gc=False, forbid_unknown_fields=True):
    """A message, or what a chunk adds to it."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: None = None
    audio: None = None
    annotations: None = None


class _Choice(Struct, gc=False, forbid_unknown_fields=True):
    message: _Message | None = None
    delta: _Message | None = None
    index: Annotated[int, Meta(ge=0, le=0)] = 0
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[_Id] | None = None
    routed_experts: None = None


class _Usage(Struct, gc=False, forbid_unknown_fields=True):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class _Body(BodyExtras, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of an answer, or of a chunk."""

    id: _Name
    model: _Name
    choices: Annotated[list[_Choice], Meta(max_length=1)]
    usage: _Usage | None = None
    object: str | None = None
    prompt_token_ids: list[_Id] | None = None
    prompt_logprobs: None = None  # type: ignore[assignment]
    error: None = None
    obfuscation: str | None = None


_decode: Final[Callable[[bytes], _Body]] = json.Decoder(_Body).decode
_OTHERS: Final = OtherNames(BodyExtras, (), BodyExtras.__struct_fields__[1:])
_BEGIN, _NEXT, _END = b"data: ", b"\n\ndata: ", b"\n\ndata: [DONE]\n\n"


def plain_answer(response: bytes, *, streamed: bool, request: RequestFacts) -> ResponseFacts | None:
    """The facts of a usual answer; None of any other. Never raises."""
    asked = request.sampling or {}
    # With alternatives the entries are not plain: known beforehand, it costs no try.
    if asked.get("top_logprobs") or "input_ids" in asked:
        return None
    parts = _parts(response) if streamed else [response]
    if parts is None:
        return None
    try:
        bodies = list(map(_decode, parts))
    except DECODE_ERRORS:
        return None
    usage = _usage_of(bodies)
    choice = _choice_of(bodies, usage, streamed=streamed)
    # Without ids of their own, tokens may be spelled as ids.
    if choice is None or (choice.completion_token_ids is None and b'"token_id:' in response):
        return None
    return ResponseFacts(response_id=bodies[0].id, model=bodies[0].model, choices=[choice], usage=usage)


def _parts(response: bytes) -> list[bytes] | None:
    """The JSON of each event; None of a stream with anything but events of one line, or without ``[DONE]``."""
    if not (response.startswith(_BEGIN) and response.endswith(_END)) or b"\r" in response:
        return None
    parts = response[len(_BEGIN) : -len(_END)].split(_NEXT)
    return parts if response.count(b"\n") == 2 * len(parts) + 2 else None


def _usage_of(bodies: list[_Body]) -> Usage | None:
    found = next((body.usage for body in reversed(bodies) if body.usage is not None), None)
    if found is None:
        return None
    if found.prompt_tokens_details is None and found.completion_tokens_details is None:
        return new_usage(input=found.prompt_tokens, output=found.completion_tokens)
    return usage_of(structs.asdict(found))


def _choice_of(bodies: list[_Body], usage: Usage | None, *, streamed: bool) -> ChoiceFacts | None:
    """The choice; None where there is none, or it is not whole."""
    choices = [body.choices[0] for body in bodies if body.choices]
    completion = _completion_of(choices, streamed=streamed)
    ids = _joined([choice.token_ids for choice in choices])
    contents = [None if choice.logprobs is None else choice.logprobs.content for choice in choices]
    entries = _joined(contents)
    if completion is None or not _is_even(choices, contents, ids, entries, usage):
        return None
    stop_reasons: list[str | int | None] = [choice.stop_reason for choice in choices]
    prompt = next((body.prompt_token_ids for body in bodies if body.prompt_token_ids is not None), None)
    return ChoiceFacts(
        completion=completion,
        finish_reason=_last([choice.finish_reason for choice in choices]),
        stop_reason=_last(stop_reasons),
        prompt_token_ids=None if prompt is None else _packed(prompt, "i"),
        completion_token_ids=None if ids is None else _packed(ids, "i"),
        logprobs=None if entries is None else _packed([entry.logprob for entry in entries], "f"),
        token_texts=None if entries is None else texts_of([entry.token for entry in entries], RawsOf(entries)),
        token_source=None if ids is None else "engine",
        extra=_extra_of(bodies),
    )


def _is_even(
    choices: list[_Choice],
    contents: list[list[_Entry] | None],
    ids: list[int] | None,
    entries: list[_Entry] | None,
    usage: Usage | None,
) -> bool:
    """Whether each chunk has as many ids as logprobs, and all together as many as the usage counts."""
    count = ids if ids is not None else entries
    if count is None:
        return True
    if not count or (usage is not None and len(count) != usage.output):
        return False
    if ids is None or entries is None:
        return True
    sizes = [len(choice.token_ids or ()) for choice in choices]
    return sizes == [len(content or ()) for content in contents]


def _completion_of(choices: list[_Choice], *, streamed: bool) -> Completion | None:
    """What was sampled; None where a chunk is no delta, or an answer no message."""
    if streamed:
        parts = [choice.delta for choice in choices if choice.message is None]
    else:
        parts = [choice.message for choice in choices if choice.delta is None]
    found = [part for part in parts if part is not None]
    if not found or len(found) != len(choices):
        return None
    content = _text([part.content for part in found])
    refusal = _text([part.refusal for part in found])
    reasoning = _text([part.reasoning for part in found])
    other = _text([part.reasoning_content for part in found])
    if reasoning is not None and other is not None and reasoning != other:
        return None
    reasoning = other if reasoning is None else reasoning
    calls = [part.tool_calls for part in found if part.tool_calls]
    if not calls:
        return completion_from(content, reasoning, refusal)
    merger = MessageMerger()
    for fragments in calls if streamed else ():
        merger.add({"tool_calls": fragments})
    merged = merger.message() if streamed else {"tool_calls": calls[0]}
    return completion_of({"content": content, "reasoning": reasoning, "refusal": refusal, **merged})


def _text(parts: list[str | None]) -> str | None:
    """The texts as one; None where there are none."""
    texts = [part for part in parts if part is not None]
    return "".join(texts) if texts else None


def _last(values: list[T | None]) -> T | None:
    """The last value that is not None."""
    return next((value for value in reversed(values) if value is not None), None)


def _joined(parts: list[list[T] | None]) -> list[T] | None:
    """The lists as one; None where there are none."""
    lists = [part for part in parts if part is not None]
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists)) if lists else None


def _packed(values: Sequence[float], kind: Literal["i", "f"]) -> Any:
    """An array of int32 or float32 with these values, whose range is known: read-only, as its memory is of bytes."""
    import numpy as np

    return np.frombuffer(struct.pack(f"{len(values)}{kind}", *values), kind)


def _extra_of(bodies: list[_Body]) -> dict[str, Any] | None:
    others, seen = OtherFields(_OTHERS.names), _OTHERS.nothing
    for body in bodies:
        # The chunks of a stream repeat these.
        rest = _OTHERS.fields_of(body)
        if rest != seen:
            seen = rest
            others.add(body)
    return others.values or None
