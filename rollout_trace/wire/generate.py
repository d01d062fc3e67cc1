"""``sglang.generate`` (/generate) and ``vllm.generate`` (/inference/v1/generate): token ids in and out.

One decoder reads both: files of older releases name vLLM's answers ``sglang.generate``, too.

SGLang sends ``output_ids``, and ``[logprob, id, text]`` for each token in ``meta_info``; one object, or a list of them
for several prompts or samples. Each chunk of its streams repeats the earlier ones unless the server was started with
``--incremental-streaming-output``; older releases then still repeated the text and the logprobs. vLLM sends
``choices``, streamed as deltas. The ids of a prompt that was sent as ids are read from the request. The places of
vLLM's extras are in vllm_extras.py; what has no place of its own goes to ``extra`` (answer_extras.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rollout_trace.data.tokens import INT32_MAX, id_list
from rollout_trace.wire import align
from rollout_trace.wire.answer_extras import AnswerExtras, OtherNames, fields_from
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.generated import Choice, MetaInfo, Sample, SampleReader, total_usage
from rollout_trace.wire.lenient import LenientDecoder
from rollout_trace.wire.reading import (
    add_usage,
    error_without_choices,
    events_of,
    is_read,
    mark_malformed,
    read_bodies,
    reader_for,
    text_of,
)
from rollout_trace.wire.request import Prompts, ids_of, messages_of
from rollout_trace.wire.sse import Event


class _Body(Sample):
    """An object of SGLang is a sample itself, one of vLLM has ``choices``; ``answers`` is SGLang's list of samples."""

    request_id: Any = None
    id: Any = None
    model: Any = None
    choices: list[Choice] | None = None
    answers: list[Sample] | None = None
    usage: Any = None
    error: Any = None
    created: Any = None
    system_fingerprint: Any = None
    output_mode: Any = None
    metrics: Any = None
    mm_placeholders: Any = None
    prompt_token_id_logprobs: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None


class _StrictSample(Sample, forbid_unknown_fields=True):
    pass


class _StrictChoice(Choice, forbid_unknown_fields=True):
    pass


class _StrictBody(_Body, forbid_unknown_fields=True):
    choices: list[_StrictChoice] | None = None  # type: ignore[assignment]
    answers: list[_StrictSample] | None = None  # type: ignore[assignment]


_BODY = LenientDecoder(_Body, _StrictBody)
_BODY_NAMES = OtherNames(_Body, ("prompt_logprobs",), fields_from(_Body, "created"))


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    parts = [_wrap_list(part) for part in events_of(response, streamed=streamed)]
    answer = _Answer(facts, request, streamed=streamed)
    done = read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    answer.finish(done=done)
    mark_malformed(facts, streamed=streamed)
    answer.add_extras()
    if not facts.choices and facts.error is None:
        is_known = partial(is_read, _BODY, test=_is_answer, whole=True)
        facts.error = error_without_choices(parts, response, status, is_known, streamed=streamed)
    return facts


def _wrap_list(part: Event) -> Event:
    """A list of answers wrapped in an object, so that one decoder reads both and its messages have a path."""
    is_list = part.data.lstrip()[:1] == b"[" and not part.data.startswith(b"[DONE]")
    return Event(part.type, b'{"answers":' + part.data + b"}", part.complete) if is_list else part


def _is_answer(body: _Body) -> bool:
    return _is_sample(body) or body.choices is not None or body.usage is not None


def _is_sample(body: Sample) -> bool:
    return body.text is not None or body.output_ids is not None or body.meta_info is not None


class _Answer:
    """The samples of one answer, and the prompts of its request."""

    def __init__(self, facts: ResponseFacts, request: RequestFacts, *, streamed: bool) -> None:
        sampling = self._sampling = request.sampling or {}
        self._facts = facts
        self._request = request
        self._texts = messages_of(request)
        sent = self._texts or sampling.get("input_ids") or sampling.get("token_ids")
        parameters = sampling.get("sampling_params")
        parameters = parameters[0] if isinstance(parameters, list) and parameters else parameters
        self._prompts = Prompts(sent, parameters.get("n") if isinstance(parameters, dict) else None)
        self._streamed = streamed
        self._readers: dict[int, SampleReader] = {}
        self._prompt_token_ids: list[int] | None = None
        self._extras = AnswerExtras(_BODY_NAMES, _StrictBody)

    def add(self, body: _Body, part: Event) -> None:
        """Reads the next body."""
        facts = self._facts
        samples: Sequence[Sample] = [body] if _is_sample(body) else []
        if body.choices is not None or body.answers is not None:
            samples = (body.answers or []) if body.choices is None else body.choices
        first = next((sample.meta_info for sample in samples if sample.meta_info is not None), MetaInfo())
        facts.response_id = facts.response_id or text_of(body.request_id or body.id or first.id)
        facts.model = facts.model or text_of(body.model)
        add_usage(facts, body.usage)
        if body.choices is not None:
            self._prompt_token_ids = self._prompt_token_ids or body.prompt_token_ids
        others = self._extras.add(body, part.data, len(samples), Sample if body.choices is None else Choice)
        for position, sample in enumerate(samples):
            reader = reader_for(self._readers, sample.index, position, SampleReader, streamed=self._streamed)
            reader.add(sample, part.data, position)
            if others:
                reader.extras.update(others[position])

    def finish(self, *, done: bool) -> None:
        """Writes each sample to the facts, and checks its ids and logprobs. ``done``: the answer reached its end."""
        facts, readers = self._facts, [self._readers[index] for index in sorted(self._readers)]
        self._extras.add_usage(facts, [reader.extras for reader in readers])
        firsts: dict[int | None, SampleReader] = {}
        for index in sorted(self._readers):
            reader = self._readers[index]
            position = self._prompts.position(index, len(readers), whole=done)
            firsts.setdefault(position, reader)
            choice = self._choice(index, reader, position, done=done)
            facts.choices.append(choice)
            facts.error = facts.error or reader.error
            # SGLang counts each sample by itself, which confirms more than a sum over all.
            if facts.usage is None:
                align.check([choice], reader.counts)
        if facts.usage is not None:
            align.check(facts.choices, facts.usage)
        else:
            facts.usage = total_usage(readers, [] if None in firsts else list(firsts.values()))

    def add_extras(self) -> None:
        """Adds to the choices, whose ids have been checked, what came beside ids and logprobs."""
        for choice in self._facts.choices:
            reader = self._readers[choice.index]
            self._extras.settle(choice, reader.extras, self._sampling, reader.more)
            reader.settle_meta(choice, self._sampling)

    def _choice(self, index: int, reader: SampleReader, position: int | None, *, done: bool) -> ChoiceFacts:
        prompts = self._prompts.all
        prompt = prompts[position] if position is not None and position < len(prompts) else None
        choice = reader.facts(index, done=done)
        if len(self._texts) > 1 and prompt is not None:
            choice.messages = [prompt]
        if choice.prompt_token_ids is None:
            choice.prompt_token_ids = self._prompt_token_ids
        if choice.prompt_token_ids is None:
            choice.prompt_token_ids = _known_prompt_ids(prompt, reader)
        choice.prompt_token_ids = self._request.ids(choice.prompt_token_ids)
        return choice


def _known_prompt_ids(prompt: Any, reader: SampleReader) -> Any:
    """Ids of a prompt from the request, or from beside the logprobs of the answer."""
    sent, listed = ids_of(prompt), reader.listed_prompt_ids
    # Another count means that the server changed the prompt (an image becomes many tokens): these are not its ids.
    if sent is None or reader.counts.input not in (None, len(sent)):
        return listed
    # SGLang lists 0 for some ids: those sent are exact, unless others differ too. What can be no id is none.
    agree = listed is None or all(two in (one, 0) for one, two in zip(id_list(sent), listed, strict=True))
    return sent if agree or not all(0 <= one <= INT32_MAX for one in listed or ()) else listed
