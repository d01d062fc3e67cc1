"""The usual answer of ``openai.chat``, read in one pass: one choice, vLLM's or OpenAI's fields and no others.

Its types hold only what needs no second look: known fields, ids within int32, logprobs that are finite and not above 0,
no alternatives, no extras but those that stay as they are. Of any other answer ``plain_answer`` returns None, and
chat.py reads it; where both read one, the facts are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Raw, Struct, json, structs

from rollout_trace.data.model import Completion, Usage, new_usage
from rollout_trace.data.tokens import FLOAT32_MAX, array_of, ids_in
from rollout_trace.wire.extras import spans_of
from rollout_trace.wire.extras_alignment import FoundExtras, settle
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL
from rollout_trace.wire.message import MessageMerger, completion_from, completion_of
from rollout_trace.wire.sse import data_lines
from rollout_trace.wire.token_texts import RawsOf, texts_of
from rollout_trace.wire.usage import usage_of

if TYPE_CHECKING:
    from rollout_trace.data.tokens import IntArray

T = TypeVar("T")

_Id = Annotated[int, Meta(ge=0, le=0x7FFFFFFF)]
_Logprob = Annotated[float, Meta(ge=-FLOAT32_MAX, le=0)]
_Count = Annotated[int, Meta(ge=0, le=0x7FFFFFFF)]
_Name = Annotated[str, Meta(min_length=1)]
_EXTRA: Final = ("created", "system_fingerprint", "service_tier", "metrics")
"""Fields of a body that go to ``Step.extra``."""


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
    # OpenAI sends an empty list with every answer that has none.
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None


class _Choice(Struct, gc=False, forbid_unknown_fields=True):
    message: _Message | None = None
    delta: _Message | None = None
    index: Annotated[int, Meta(ge=0, le=0)] = 0
    logprobs: _Logprobs | None = None
    finish_reason: _Name | None = None
    stop_reason: _Name | int | None = None
    token_ids: list[_Id] | None = None
    routed_experts: None = None
    weight_versions: list[Any] | None = None


class _Usage(Struct, gc=False, forbid_unknown_fields=True):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class _Body(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The body of an answer, or of a chunk."""

    id: _Name
    model: _Name
    choices: Annotated[list[_Choice], Meta(max_length=1)]
    created: int | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    metrics: dict[str, Any] | None = None
    usage: _Usage | None = None
    object: str | None = None
    prompt_token_ids: list[_Id] | None = None
    prompt_logprobs: None = None
    prompt_text: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    error: None = None
    obfuscation: str | None = None


class _CutBody(_Body, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A body with a text in place of the ids of its prompt: one that no server sends there, as it may send a 0."""

    prompt_token_ids: Literal["ids are read"]  # type: ignore[assignment]


_decode_cut: Final[Callable[[bytes], _CutBody]] = json.Decoder(_CutBody).decode
_decode: Final[Callable[[bytes], _Body]] = json.Decoder(_Body).decode
_PROMPT: Final = b'"prompt_token_ids":['
_LONG: Final = 1024
"""Bytes of a list of ids from which on numpy reads it faster."""


def plain_answer(response: bytes, *, streamed: bool, request: RequestFacts) -> ResponseFacts | None:
    """The facts of a usual answer; None of any other. Never raises."""
    asked = request.sampling
    # With alternatives the entries are not plain: known beforehand, it costs no try.
    if asked is not None and (asked.get("top_logprobs") or "input_ids" in asked or "nvext" in asked):
        return None
    has_ids = asked is not None and bool(asked.get("return_token_ids"))
    try:
        read = _merged(response, has_ids=has_ids) if streamed else _read(response, has_ids=has_ids)
    except DECODE_ERRORS:
        return None
    if read is None or not read[0].choices:
        return None
    body, prompt = read
    choice = _facts_of(body, body.choices[0], prompt)
    # Without ids of their own, tokens may be spelled as ids.
    if choice is None or (choice.completion_token_ids is None and b'"token_id:' in response):
        return None
    return ResponseFacts(response_id=body.id, model=body.model, choices=[choice], usage=_usage_of(body.usage))


def _facts_of(body: _Body, choice: _Choice, prompt: IntArray | None) -> ChoiceFacts | None:
    """The choice of an answer; None where its lists differ in length, or from what the usage counts."""
    message, ids = choice.message, choice.token_ids
    entries = None if choice.logprobs is None else choice.logprobs.content
    sampled = entries if ids is None else ids
    if choice.finish_reason == "error" or message is None or choice.delta is not None:
        return None
    if entries is not None and len(entries) != len(sampled or ()):
        return None
    if sampled is not None and not (sampled and (body.usage is None or body.usage.completion_tokens == len(sampled))):
        return None
    completion = _completion_of(message)
    if completion is None:
        return None
    facts = ChoiceFacts(
        completion=completion,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        prompt_token_ids=prompt,
        completion_token_ids=None if ids is None else array_of(ids, "i"),
        logprobs=None if entries is None else array_of([entry.logprob for entry in entries], "f"),
        token_texts=None if entries is None else texts_of([entry.token for entry in entries], RawsOf(entries)),
        token_source=None if ids is None else "engine",
        extra={name: value for name in _EXTRA if (value := getattr(body, name)) is not None} or None,
    )
    if choice.weight_versions is not None:
        settle(facts, FoundExtras(policy_spans=spans_of(choice.weight_versions)))
    return facts


def _completion_of(message: _Message) -> Completion | None:
    """The completion; None where the message has two different texts of reasoning."""
    content, reasoning, other = message.content, message.reasoning, message.reasoning_content
    if other is not None and reasoning not in (None, other):
        return None
    reasoning = other if reasoning is None else reasoning
    if not message.tool_calls:
        extra = None if message.annotations is None else {"annotations": message.annotations}
        return completion_from(content, reasoning, message.refusal, extra=extra)
    parts = {"content": content, "reasoning": reasoning, "refusal": message.refusal}
    return completion_of({**parts, "tool_calls": message.tool_calls, "annotations": message.annotations})


def _usage_of(counts: _Usage | None) -> Usage | None:
    if counts is None:
        return None
    is_sum = counts.total_tokens in (None, counts.prompt_tokens + counts.completion_tokens)
    if is_sum and counts.prompt_tokens_details is None and counts.completion_tokens_details is None:
        return new_usage(input=counts.prompt_tokens, output=counts.completion_tokens)
    return usage_of(structs.asdict(counts))


def _read(data: bytes, *, has_ids: bool) -> tuple[_Body, IntArray | None]:
    """One body and the ids of its prompt. ``has_ids``: they may be in it.

    Raises:
        One of ``DECODE_ERRORS``: it is no usual one.
    """
    begin = data.rfind(_PROMPT) + len(_PROMPT) if has_ids else 0
    end = data.find(b"]", begin)
    ids = ids_in(data[begin:end]) if begin >= len(_PROMPT) and end - begin > _LONG else None
    if ids is not None:
        # Thousands of ids, each an object, would take a third of the time.
        return _decode_cut(b'%b"ids are read"%b' % (data[: begin - 1], data[end + 1 :])), ids
    body = _decode(data)
    return body, None if body.prompt_token_ids is None else array_of(body.prompt_token_ids, "i")


def _merged(response: bytes, *, has_ids: bool) -> tuple[_Body, IntArray | None] | None:
    """A stream as the answer that it would be unstreamed, and the ids of its prompt; None where it is no usual one.

    Raises:
        One of ``DECODE_ERRORS``: one of its bodies is no usual one.
    """
    parts = data_lines(response)
    if parts is None or parts.pop() != b"[DONE]" or not parts:
        return None
    first, prompt = _read(parts[0], has_ids=has_ids)
    bodies = [first, *map(_decode, parts[1:])]
    choices = [body.choices[0] for body in bodies if body.choices]
    choice = _merged_choice(choices) if choices else None
    extra: dict[str, list[Any]] = {
        "created": [body.created for body in bodies],
        "system_fingerprint": [body.system_fingerprint for body in bodies],
        "service_tier": [body.service_tier for body in bodies],
        "metrics": [body.metrics for body in bodies],
    }
    begins = [at for column in extra.values() if (at := _first(column)) is not None]
    later = [body for body in bodies[1:] if body.prompt_token_ids is not None]
    usages = [body.usage for body in bodies if body.usage is not None]
    if choice is None or begins != sorted(begins) or later or not _counts_upwards(usages):
        return None
    merged = _Body(
        id=first.id,
        model=first.model,
        choices=[choice],
        usage=usages[-1] if usages else None,
        **{name: _last(column) for name, column in extra.items()},
    )
    return merged, prompt


def _counts_upwards(usages: list[_Usage]) -> bool:
    """Whether the last usage of a stream has all that those before it have."""
    return all(
        one.prompt_tokens <= usages[-1].prompt_tokens
        and one.completion_tokens <= usages[-1].completion_tokens
        and (one.total_tokens or 0) <= (usages[-1].total_tokens or 0)
        and one.prompt_tokens_details is one.completion_tokens_details is None
        for one in usages[:-1]
    )


def _merged_choice(choices: list[_Choice]) -> _Choice | None:
    """The choice that chunks make; None where one is no delta, or has another number of ids than of logprobs."""
    deltas = [
        choice.delta
        for choice in choices
        if choice.delta is not None and choice.message is None and choice.delta.annotations is None
    ]
    contents = [None if choice.logprobs is None else choice.logprobs.content for choice in choices]
    ids, entries = _joined([choice.token_ids for choice in choices]), _joined(contents)
    sizes = [len(content or ()) for content in contents]
    is_uneven = ids is not None and entries is not None and sizes != [len(choice.token_ids or ()) for choice in choices]
    if is_uneven or len(deltas) != len(choices):
        return None
    merger = MessageMerger()
    for fragments in [delta.tool_calls for delta in deltas if delta.tool_calls]:
        merger.add({"tool_calls": fragments})
    message = _Message(
        content=_text([delta.content for delta in deltas]),
        reasoning=_text([delta.reasoning for delta in deltas]),
        reasoning_content=_text([delta.reasoning_content for delta in deltas]),
        refusal=_text([delta.refusal for delta in deltas]),
        tool_calls=merger.message().get("tool_calls"),
    )
    return _Choice(
        message=message,
        logprobs=_Logprobs(content=entries),
        finish_reason=_last([choice.finish_reason for choice in choices]),
        stop_reason=_last([choice.stop_reason for choice in choices]),
        token_ids=ids,
        weight_versions=_last([choice.weight_versions for choice in choices]),
    )


def _text(parts: list[str | None]) -> str | None:
    """The texts as one; None where there are none."""
    texts = [part for part in parts if part is not None]
    return "".join(texts) if texts else None


def _joined(parts: list[list[T] | None]) -> list[T] | None:
    """The lists as one; None where there are none."""
    lists = [part for part in parts if part is not None]
    return list(chain.from_iterable(lists)) if lists else None


def _first(values: list[Any]) -> int | None:
    """The position of the first value that is not None."""
    return next((at for at, value in enumerate(values) if value is not None), None)


def _last(values: Sequence[T]) -> T | None:
    """The last value that is not None."""
    return next((value for value in reversed(values) if value is not None), None)
