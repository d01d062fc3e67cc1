"""``openai.chat``: /chat/completions of OpenAI and of engines with the same API, streamed or not.

Where the ids are: vLLM 0.32 puts ``prompt_token_ids`` at the top (streamed: on the first chunk of each choice) and
``token_ids`` on each choice (streamed: a delta). The places of other engines are in places.py, those of extras in
vllm_extras.py. What has no place of its own goes to ``extra`` (other_fields.py); of the logprobs' entries only
Fireworks' ``routing_matrix`` and ``sampling_logprob`` do, as lists: ``token`` and ``bytes`` are the tokens' texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Raw, Struct

from rollout_trace.data.lists import PackedTexts
from rollout_trace.wire import align, places
from rollout_trace.wire.answer_extras import AnswerExtras, BodyExtras, OtherNames, PartExtras
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import NULL, LenientDecoder, later
from rollout_trace.wire.logprobs import extended, more_of, number_of, top_logprobs_of
from rollout_trace.wire.message import MessageMerger, completion_of
from rollout_trace.wire.other_fields import fields_from
from rollout_trace.wire.plain_chat import plain_answer
from rollout_trace.wire.prompts import ids_of
from rollout_trace.wire.reading import (
    UNCONFIRMED,
    error_of_choice,
    error_without_choices,
    events_of,
    holds_choices,
    mark_malformed,
    plain_bodies,
    read_answer_fields,
    read_bodies,
    reader_for,
    withhold,
)
from rollout_trace.wire.sglang_extras import settle_openai
from rollout_trace.wire.sse import Event
from rollout_trace.wire.token_texts import RawsOf, texts_of
from rollout_trace.wire.vllm_extras import ChoiceExtras, without_experts


class _Entry(Struct, gc=False):
    logprob: float | None = None
    token: Any = None
    bytes: Raw = NULL
    # As bytes: of a long answer the garbage collector would visit a million objects, with all threads stopped.
    top_logprobs: Raw = NULL
    routing_matrix: Any = None
    sampling_logprob: Any = None


class _Logprobs(Struct):
    content: list[_Entry] | None = None
    refusal: list[_Entry] | None = None


class _Choice(ChoiceExtras):
    index: int | None = None
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    logprobs: _Logprobs | float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    matched_stop: Any = None
    content_filter_results: Any = None
    native_finish_reason: Any = None
    error: Any = None


class _Body(BodyExtras):
    id: Any = None
    object: Any = None
    model: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    prompt_token_ids: list[int] | None = None
    error: Any = None
    obfuscation: Any = None


class _StrictChoice(_Choice, forbid_unknown_fields=True):
    pass


class _StrictBody(_Body, forbid_unknown_fields=True):
    choices: list[_StrictChoice] | None = None  # type: ignore[assignment]


_BODY = LenientDecoder(_Body, _StrictBody)
_BODY_NAMES = OtherNames(_Body, ("prompt_logprobs",), BodyExtras.__struct_fields__[1:])
_CHOICE_NAMES = OtherNames(_Choice, ChoiceExtras.__struct_fields__, fields_from(_Choice, "matched_stop"))


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    plain = plain_answer(response, streamed=streamed, request=request) if status < 400 else None
    return plain or decode_any(response, streamed=streamed, status=status, request=request)


def decode_any(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """As ``decode``, without the short way for usual answers."""
    facts = ResponseFacts()
    if status >= 400:
        facts.error = error_of(response, status)
        return facts
    parts = events_of(response, streamed=streamed)
    answer = _Answer(facts, streamed=streamed)
    done = read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    facts.choices = answer.choices(done=done)
    _fill_from_places(parts, facts)
    _use_sent_ids(facts, request)
    # Before the checks: a field that was dropped is the cause of what they would find.
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    answer.add_extras(request.sampling)
    settle_openai(facts.choices, request.sampling, streamed=streamed)
    if not facts.choices and facts.error is None:
        facts.error = error_without_choices(parts, response, status, partial(holds_choices, _BODY), streamed=streamed)
    return facts


class _ChoiceReader:
    """One choice, from its only body or from all its chunks."""

    def __init__(self) -> None:
        self.whole: dict[str, Any] | None = None
        self.deltas = MessageMerger()
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.error: Any = None
        self.token_ids: list[int] | None = None
        self.entries: list[_Entry] | None = None
        self.uneven = False
        self.extras = PartExtras(_CHOICE_NAMES)

    def add(self, choice: _Choice) -> None:
        if choice.message is not None:
            self.whole = choice.message
        elif choice.delta is not None:
            self.deltas.add(choice.delta)
        self.finish_reason = later(self.finish_reason, choice.finish_reason)
        self.stop_reason = later(self.stop_reason, choice.stop_reason)
        self.error = self.error or choice.error
        logprobs = choice.logprobs
        entries = extended(logprobs.content, logprobs.refusal) if isinstance(logprobs, _Logprobs) else None
        # Chunk by chunk: totals can agree although ids and logprobs of different tokens are missing.
        self.uneven = self.uneven or len(choice.token_ids or ()) != len(entries or ())
        self.token_ids = extended(self.token_ids, choice.token_ids)
        self.entries = extended(self.entries, entries)
        self.extras.add(choice)


class _Answer:
    """The choices of one answer."""

    def __init__(self, facts: ResponseFacts, *, streamed: bool) -> None:
        self._facts = facts
        self._streamed = streamed
        self._readers: dict[int, _ChoiceReader] = {}
        self._prompt_token_ids: list[int] | None = None
        self._extras = AnswerExtras(_BODY_NAMES, _StrictBody)

    def add(self, body: _Body, part: Event) -> None:
        """Reads the next body."""
        read_answer_fields(self._facts, body)
        if self._prompt_token_ids is None:
            self._prompt_token_ids = body.prompt_token_ids
        choices = body.choices or ()
        others = self._extras.add(body, part.data, len(choices), _Choice)
        for position, choice in enumerate(choices):
            reader = reader_for(self._readers, choice.index, position, _ChoiceReader, streamed=self._streamed)
            reader.add(choice)
            if others:
                reader.extras.update(others[position])

    def choices(self, *, done: bool) -> list[ChoiceFacts]:
        """The facts of each choice, by index. ``done``: the answer reached its end."""
        self._extras.add_usage(self._facts, [reader.extras for reader in self._readers.values()])
        return [self._choice(index, self._readers[index], done=done) for index in sorted(self._readers)]

    def add_extras(self, sampling: Mapping[str, Any] | None) -> None:
        """Adds to the choices, whose ids have been checked, what came beside ids and logprobs."""
        for choice in self._facts.choices:
            reader = self._readers[choice.index]
            self._extras.settle(choice, reader.extras, sampling, more_of(reader.entries or []))

    def _choice(self, index: int, reader: _ChoiceReader, *, done: bool) -> ChoiceFacts:
        entries = reader.entries
        tops = [entry.top_logprobs for entry in entries or ()]
        top_logprobs = top_logprobs_of(tops)
        if top_logprobs is not None:
            reader.extras.raw.tops = tops
        return ChoiceFacts(
            index=index,
            completion=completion_of(reader.deltas.message() if reader.whole is None else reader.whole),
            finish_reason=reader.finish_reason,
            stop_reason=reader.stop_reason,
            prompt_token_ids=self._prompt_token_ids,
            completion_token_ids=reader.token_ids,
            logprobs=None if entries is None else [entry.logprob for entry in entries],
            top_logprobs=top_logprobs,
            token_texts=None if entries is None else _texts(entries),
            token_source=None if reader.token_ids is None else "engine",
            complete=done or reader.finish_reason is not None,
            error=error_of_choice(reader.error, reader.finish_reason),
            uneven=reader.uneven,
        )


def _texts(entries: list[_Entry]) -> PackedTexts | None:
    return texts_of([entry.token for entry in entries], RawsOf(entries))


def _fill_from_places(parts: list[Event], facts: ResponseFacts) -> None:
    """Fills missing ids, logprobs and texts from the places of other engines than vLLM."""
    incomplete = [c for c in facts.choices if None in (c.completion_token_ids, c.prompt_token_ids, c.logprobs)]
    if not incomplete:
        return
    parts = [part._replace(data=without_experts(part.data)) for part in parts]
    if not any(places.may_hold_ids(part.data) for part in parts):
        return
    bodies = plain_bodies(parts)
    for choice in incomplete:
        if choice.prompt_token_ids is None:
            choice.prompt_token_ids = places.prompt_ids(bodies, choice.index)
        if choice.completion_token_ids is None:
            found = places.completion_ids(bodies, choice.index, len(facts.choices))
            _set_found_ids(choice, found, counted=_is_counted(facts))
        if choice.logprobs is None:
            choice.logprobs = _floats(places.logprobs_alone(bodies, choice.index))
        if choice.token_texts is None:
            texts = places.texts_alone(bodies, choice.index)
            choice.token_texts = None if texts is None else texts_of(texts)


def _use_sent_ids(facts: ResponseFacts, request: RequestFacts) -> None:
    """Ids of the prompt from the request: SGLang takes ``input_ids`` in place of its chat template's, NVIDIA Dynamo
    ``nvext.token_data``.

    Only where the usage counts as many. A server that has no such field ignores it, and one that expands images would
    count more.
    """
    asked = request.sampling or {}
    sent = ids_of(asked.get("input_ids") or places.look_up(asked, ("nvext", "token_data"), 0))
    if sent is not None and facts.usage is not None and facts.usage.input == len(sent):
        for choice in facts.choices:
            choice.prompt_token_ids = sent if choice.prompt_token_ids is None else choice.prompt_token_ids


def _is_counted(facts: ResponseFacts) -> bool:
    usage = facts.usage
    return len(facts.choices) == 1 and facts.choices[0].complete and usage is not None and usage.output is not None


def _set_found_ids(choice: ChoiceFacts, found: places.FoundIds | None, *, counted: bool) -> None:
    if found is not None and found.lossy and not counted:
        withhold(choice, "ids_unconfirmed", UNCONFIRMED)
    elif found is not None:
        # Sizes were compared with the usual place, chunk by chunk; these ids come from another one.
        choice.completion_token_ids, choice.token_source, choice.uneven = found.ids, found.source, False
        choice.logprobs = choice.logprobs if found.logprobs is None else _floats(found.logprobs)


def _floats(values: list[Any] | None) -> list[float | None] | None:
    """Numbers as floats; other values as None, which ``align.check`` reports."""
    if values is None:
        return None
    return [number_of(value) for value in values]
