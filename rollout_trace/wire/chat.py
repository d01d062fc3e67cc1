"""``openai.chat``: /chat/completions of OpenAI and of engines with the same API, streamed or not.

Where the ids are: vLLM 0.32 puts ``prompt_token_ids`` at the top (streamed: on the first chunk of each choice) and
``token_ids`` on each choice (streamed: a delta). The places of other engines are in places.py, those of extras in
vllm_extras.py. What has no place of its own goes to ``extra`` (answer_extras.py); of the logprobs' entries only
Fireworks' ``routing_matrix`` and ``sampling_logprob`` do, as lists: ``token`` and ``bytes`` are the tokens' texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, json

from rollout_trace.data.tokens import FLOAT32_MAX, INT32_MAX, array_of
from rollout_trace.wire import align, places
from rollout_trace.wire.align import FoundExtras, settle
from rollout_trace.wire.answer_extras import AnswerExtras, BodyExtras, OtherNames, PartExtras, fields_from
from rollout_trace.wire.extras import spans_of
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL, LenientDecoder, joined, last
from rollout_trace.wire.logprobs import Entry, extended, more_of, number_of, top_logprobs_of
from rollout_trace.wire.message import completion_of, merged_deltas
from rollout_trace.wire.reading import (
    UNCONFIRMED,
    add_usage,
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
from rollout_trace.wire.request import ids_of
from rollout_trace.wire.sglang_extras import settle_openai
from rollout_trace.wire.sse import Event, data_lines
from rollout_trace.wire.token_texts import RawsOf, texts_of
from rollout_trace.wire.vllm_extras import ChoiceExtras, without_experts


class _Logprobs(Struct, gc=False):
    content: list[Entry] | None = None
    refusal: list[Entry] | None = None


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


# Most answers are usual ones: one choice, no alternatives, ids and logprobs in their range, no extras but those that
# stay as they are. msgspec makes sure of it while it reads them, and no second look is needed. The fields of these
# types are those of the types above that such answers have; in the order in which they come they are found sooner.


_Id: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]


class _UsualEntry(Struct, gc=False, forbid_unknown_fields=True):
    token: str
    logprob: Annotated[float, Meta(ge=-FLOAT32_MAX, le=0)]
    bytes: Raw = NULL
    top_logprobs: tuple[()] | None = None


class _UsualLogprobs(Struct, gc=False, forbid_unknown_fields=True):
    content: list[_UsualEntry] | None = None
    refusal: None = None


class _UsualChoice(Struct, gc=False, forbid_unknown_fields=True):
    index: Annotated[int, Meta(ge=0, le=0)] = 0
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    logprobs: _UsualLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[_Id] | None = None
    routed_experts: None = None
    weight_versions: Any = None
    matched_stop: None = None
    content_filter_results: None = None
    native_finish_reason: None = None
    error: None = None


class _UsualBody(Struct, gc=False, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1)]
    object: Literal["chat.completion", "chat.completion.chunk"] | None = None
    created: Any = None
    choices: Annotated[list[_UsualChoice], Meta(max_length=1)] | None = None
    service_tier: Any = None
    system_fingerprint: Any = None
    usage: Any = None
    prompt_logprobs: None = None
    prompt_token_ids: list[_Id] | None = None
    prompt_text: None = None
    metrics: Any = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    timings: None = None
    provider: None = None
    error: None = None
    obfuscation: Any = None


class _TakenBody(_UsualBody, gc=False, forbid_unknown_fields=True):
    """An answer's body from which ids were taken and replaced by a number."""

    prompt_token_ids: list[int] | None = None


_BODY = LenientDecoder(_Body, _StrictBody)
_BODY_NAMES = OtherNames(_Body, ("prompt_logprobs",), BodyExtras.__struct_fields__[1:])
_CHOICE_NAMES = OtherNames(_Choice, ChoiceExtras.__struct_fields__, fields_from(_Choice, "matched_stop"))
_read_usual = json.Decoder(_UsualBody).decode
_read_taken = json.Decoder(_TakenBody).decode
_USUAL_EXTRA = ("created", "system_fingerprint", "service_tier", "metrics")
_usual_extra = attrgetter(*_USUAL_EXTRA)


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    usual = usual_answer(response, streamed=streamed, request=request)
    return usual or decode_any(response, streamed=streamed, status=status, request=request)


def decode_any(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of any answer: its bodies are read one by one."""
    facts, parts = ResponseFacts(), events_of(response, streamed=streamed)
    answer = _Answer(facts, request, streamed=streamed)
    done = read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    facts.choices = answer.choices(done=done)
    _fill_from_places(parts, facts, request)
    _use_sent_ids(facts, request)
    # Before the checks: a field that was dropped is the cause of what they would find.
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    answer.add_extras(request.sampling)
    settle_openai(facts.choices, request.sampling, streamed=streamed)
    if not facts.choices and facts.error is None:
        facts.error = error_without_choices(parts, response, status, partial(holds_choices, _BODY), streamed=streamed)
    return facts


def usual_answer(response: bytes, *, streamed: bool, request: RequestFacts) -> ResponseFacts | None:
    """The facts of an answer that is whole and has usual bodies alone, which are read at once; None of any other."""
    try:
        bodies, prompt = _usual_bodies(response, streamed=streamed, request=request)
    except (*DECODE_ERRORS, ValueError):
        return None
    chunks = [body.choices[0] for body in bodies if body.choices]
    if not chunks:
        return None
    part = _merged(chunks)
    choice = _choice_of(0, part, prompt, done=True)
    # Other engines than vLLM spell tokens as ids, or have one in a delta.
    if _lacks_any(choice) and (b'"token_id:' in response or b'"token_id"' in response):
        return None
    facts = ResponseFacts(bodies[0].id, bodies[0].model, [choice])
    for body in bodies:
        if body.usage is not None:
            add_usage(facts, body.usage)
    telling = bodies
    if streamed:
        told = list(map(_usual_extra, bodies))
        # Nearly always all chunks tell the same.
        telling = bodies[:1] if told.count(told[0]) == len(told) else bodies
    extra = {name: value for body in telling for name in _USUAL_EXTRA if (value := getattr(body, name)) is not None}
    choice.extra = extra or None
    if choice.completion_token_ids is not None:
        choice.completion_token_ids = array_of(choice.completion_token_ids, "i")
    if choice.logprobs is not None:
        choice.logprobs = array_of(choice.logprobs, "f")
    _use_sent_ids(facts, request)
    choice.is_sound = not isinstance(choice.prompt_token_ids, list)
    align.check(facts.choices, facts.usage)
    if part.choice.weight_versions is not None:
        settle(choice, FoundExtras(policy_spans=spans_of(part.choice.weight_versions)))
    return facts


def _usual_bodies(response: bytes, *, streamed: bool, request: RequestFacts) -> tuple[list[_UsualBody], Any]:
    """The bodies of an answer, and the ids of its prompt.

    Raises:
        One of ``DECODE_ERRORS``, ValueError: it is cut, or has others than usual bodies.
    """
    parts = data_lines(response) if streamed else [response]
    if not parts or (streamed and parts.pop() != b"[DONE]") or not parts:
        raise ValueError("cut, or none")
    bodies: list[_UsualBody] = list(map(_read_usual if request.taken is None else _read_taken, parts))
    sent = next((body.prompt_token_ids for body in bodies if body.prompt_token_ids is not None), None)
    if request.taken is None:
        return bodies, None if sent is None else array_of(sent, "i")
    if isinstance(ids := request.taken.get(sent), list):
        raise ValueError("the ids that were taken are others")
    return bodies, ids


def _choice_of(index: int, part: _Merged, prompt: Any, *, done: bool) -> ChoiceFacts:
    """The facts of a choice but its extras.

    Args:
        index: its number.
        part: its only part, or what all chunks make.
        prompt: the ids of its prompt.
        done: the answer reached its end.
    """
    choice, entries = part.choice, part.entries
    finish_reason = choice.finish_reason or None
    found = ChoiceFacts(
        index=index,
        completion=completion_of(choice.message or {}),
        finish_reason=finish_reason,
        stop_reason=None if choice.stop_reason == "" else choice.stop_reason,
        prompt_token_ids=prompt,
        completion_token_ids=choice.token_ids,
        token_source=None if choice.token_ids is None else "engine",
        complete=done or finish_reason is not None,
        error=error_of_choice(choice.error, finish_reason) if choice.error or finish_reason == "error" else None,
        uneven=part.uneven,
    )
    if entries is not None:
        found.logprobs = [entry.logprob for entry in entries]
        found.token_texts = texts_of([entry.token for entry in entries], RawsOf(entries))
    return found


class _Merged(Struct, gc=False):
    choice: _Choice | _UsualChoice
    entries: list[Any] | None
    """Of ``Entry``, or of ``_UsualEntry``."""
    uneven: bool
    """Some part holds another number of ids than of logprobs."""


def _merged(parts: Sequence[_Choice | _UsualChoice]) -> _Merged:
    """One choice of its only part, or of all chunks."""
    if len(parts) == 1 and parts[0].delta is None:
        (only,) = parts
        entries = _entries_of(only.logprobs)
        return _Merged(only, entries, len(only.token_ids or ()) != len(entries or ()))
    token_ids, columns = [part.token_ids for part in parts], [_entries_of(part.logprobs) for part in parts]
    whole = [part.message for part in parts if part.message is not None]
    choice = _Choice(
        message=whole[-1] if whole else merged_deltas([part.delta for part in parts if part.delta]),
        finish_reason=last([part.finish_reason for part in parts]),
        stop_reason=last([part.stop_reason for part in parts]),
        token_ids=joined(token_ids),
        error=next((part.error for part in parts if part.error), None),
        weight_versions=last([part.weight_versions for part in parts]),
    )
    # Chunk by chunk: totals can agree although ids and logprobs of different tokens are missing.
    uneven = [len(one or ()) for one in token_ids] != [len(one or ()) for one in columns]
    return _Merged(choice, joined(columns), uneven)


def _entries_of(logprobs: _Logprobs | _UsualLogprobs | float | None) -> list[Any] | None:
    if logprobs is None or isinstance(logprobs, float):
        return None
    return logprobs.content if logprobs.refusal is None else extended(logprobs.content, logprobs.refusal)


def _lacks_any(choice: ChoiceFacts) -> bool:
    return choice.completion_token_ids is None or choice.prompt_token_ids is None or choice.logprobs is None


class _Reader:
    """The parts of one choice."""

    __slots__ = ("entries", "extras", "parts")

    def __init__(self) -> None:
        self.parts: list[_Choice] = []
        self.entries: list[Entry] = []
        self.extras = PartExtras(_CHOICE_NAMES)


class _Answer:
    """The choices of one answer."""

    def __init__(self, facts: ResponseFacts, request: RequestFacts, *, streamed: bool) -> None:
        self._facts = facts
        self._request = request
        self._streamed = streamed
        self._readers: dict[int, _Reader] = {}
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
            reader = reader_for(self._readers, choice.index, position, _Reader, streamed=self._streamed)
            reader.parts.append(choice)
            reader.extras.add(choice)
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
            self._extras.settle(choice, reader.extras, sampling, more_of(reader.entries))

    def _choice(self, index: int, reader: _Reader, *, done: bool) -> ChoiceFacts:
        part = _merged(reader.parts)
        reader.entries = part.entries or []
        choice = _choice_of(index, part, self._request.ids(self._prompt_token_ids), done=done)
        tops = [entry.top_logprobs for entry in reader.entries]
        choice.top_logprobs = top_logprobs_of(tops)
        if choice.top_logprobs is not None:
            reader.extras.tops = tops
        return choice


def _fill_from_places(parts: list[Event], facts: ResponseFacts, request: RequestFacts) -> None:
    """Fills missing ids, logprobs and texts from the places of other engines than vLLM."""
    incomplete = [choice for choice in facts.choices if _lacks_any(choice)]
    if not incomplete:
        return
    parts = [Event(part.type, without_experts(part.data), part.complete) for part in parts]
    if not any(places.may_hold_ids(part.data) for part in parts):
        return
    bodies = plain_bodies(parts)
    for choice in incomplete:
        if choice.prompt_token_ids is None:
            choice.prompt_token_ids = request.ids(places.prompt_ids(bodies, choice.index))
        if choice.completion_token_ids is None:
            found = places.completion_ids(bodies, choice.index, len(facts.choices))
            _set_found_ids(choice, found, counted=_is_counted(facts))
        if choice.logprobs is None:
            choice.logprobs = _floats(places.first_at(places.LOGPROBS, bodies, choice.index))
        if choice.token_texts is None:
            texts = places.first_at(places.TEXTS, bodies, choice.index)
            choice.token_texts = None if texts is None else texts_of(texts)


def _use_sent_ids(facts: ResponseFacts, request: RequestFacts) -> None:
    """Ids of the prompt from the request: SGLang takes ``input_ids`` in place of its chat template's, NVIDIA Dynamo
    ``nvext.token_data``.

    Only where the usage counts as many. A server that has no such field ignores it, and one that expands images would
    count more.
    """
    asked = request.sampling or {}
    if "input_ids" not in asked and "nvext" not in asked:
        return
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
