"""``openai.completions``: /completions of OpenAI and of engines with the same API, streamed or not.

Where the ids are: vLLM, SGLang and Fireworks put ``token_ids`` and ``prompt_token_ids`` on each choice (streamed: a
delta, and the prompt on the first chunk), TensorRT-LLM ``token_ids`` where it was asked not to detokenize. Among the
logprobs Together has ``token_ids``, llama-server an ``id`` in each entry of ``content``, vLLM ``token_id:N`` as the
tokens. Ids of a prompt that was sent as ids are in the request. The places of other engines are in places.py, those of
extras in vllm_extras.py; the logprobs of an echoed prompt are prompt logprobs too. What has no place of its own goes to
``extra`` (answer_extras.py); of the logprobs, ``text_offset`` is left out: it counts characters of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from rollout_trace.data.model import Completion
from rollout_trace.wire import align, places
from rollout_trace.wire.answer_extras import AnswerExtras, BodyExtras, OtherNames, PartExtras, fields_from
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import LenientDecoder, later, loads
from rollout_trace.wire.logprobs import (
    ArrayLogprobs,
    Columns,
    columns_of,
    extended,
    integral_ids,
    number_of,
)
from rollout_trace.wire.reading import (
    UNCONFIRMED,
    error_of_choice,
    error_without_choices,
    events_of,
    holds_choices,
    mark_malformed,
    read_answer_fields,
    read_bodies,
    reader_for,
    report_clash,
    set_issue,
    withhold,
)
from rollout_trace.wire.request import Prompts, messages_of
from rollout_trace.wire.sglang_extras import settle_openai
from rollout_trace.wire.sse import Event
from rollout_trace.wire.vllm_extras import ChoiceExtras, without_experts


class _Delta(Struct):
    content: str | None = None


class _Choice(ChoiceExtras):
    index: int | None = None
    text: str | None = None
    delta: _Delta | None = None
    logprobs: ArrayLogprobs | float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
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
    prompt: Any = None
    error: Any = None
    obfuscation: Any = None


class _StrictChoice(_Choice, forbid_unknown_fields=True):
    pass


class _StrictBody(_Body, forbid_unknown_fields=True):
    choices: list[_StrictChoice] | None = None  # type: ignore[assignment]


_BODY = LenientDecoder(_Body, _StrictBody)
_BODY_NAMES = OtherNames(_Body, ("prompt_logprobs",), BodyExtras.__struct_fields__[1:])
_CHOICE_NAMES = OtherNames(_Choice, ChoiceExtras.__struct_fields__, fields_from(_Choice, "content_filter_results"))
_PROTOCOL = "openai.completions"
_COMPLETION_IDS = tuple(row for row in places.COMPLETION_IDS if _PROTOCOL in row.protocols)
_PROMPT_IDS = tuple(row for row in places.PROMPT_IDS if _PROTOCOL in row.protocols)


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    parts = events_of(response, streamed=streamed)
    answer = _Answer(facts, request, response, streamed=streamed)
    done = read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    facts.choices = answer.choices(done=done)
    # Before the checks: a field that was dropped is the cause of what they would find.
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    answer.add_extras()
    settle_openai(facts.choices, request.sampling, streamed=streamed)
    if not facts.choices and facts.error is None:
        facts.error = error_without_choices(parts, response, status, partial(holds_choices, _BODY), streamed=streamed)
    return facts


class _Reader:
    """One choice, from its only body or from all its chunks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.error: Any = None
        self.prompt_token_ids: list[int] | None = None
        self.token_ids: list[int] | None = None
        self.columns: Columns | None = None
        self.echoed: Columns | None = None
        """The logprobs of the echoed prompt, once they were removed from those of the completion."""
        self.extras = PartExtras(_CHOICE_NAMES)
        self._sizes: list[tuple[int, int]] = []
        """Numbers of logprobs and of ids in each chunk."""

    def add(self, choice: _Choice, plain: Any = None) -> str | None:
        """Reads the next part, ``plain`` as well where other engines' places are in it. Gives what is wrong there."""
        text = (choice.delta or _Delta()).content if choice.text is None else choice.text
        if text is not None:
            self.texts.append(text)
        self.finish_reason = later(self.finish_reason, choice.finish_reason)
        for reason in (choice.matched_stop, choice.stop_reason):
            self.stop_reason = later(self.stop_reason, reason)
        self.error = self.error or choice.error
        ids, problem = choice.token_ids, None
        if plain is not None and ids is None:
            ids, problem, *_ = places.ids_of_part(_COMPLETION_IDS, plain)
        prompt, prompt_problem = choice.prompt_token_ids, None
        if plain is not None and not prompt:
            prompt, prompt_problem, *_ = places.ids_of_part(_PROMPT_IDS, plain)
        self.prompt_token_ids = self.prompt_token_ids or prompt
        columns = columns_of(choice.logprobs)
        self._sizes.append((0 if columns is None else len(columns), len(ids or ())))
        self.token_ids = extended(self.token_ids, ids)
        self.extras.add(choice)
        self.columns = extended(self.columns, columns)
        return problem or prompt_problem

    @property
    def surpluses(self) -> list[int]:
        """Logprobs minus ids, for each chunk where the numbers differ."""
        return [logprobs - ids for logprobs, ids in self._sizes if logprobs != ids]


class _Answer:
    """The choices of one answer, and the prompts of its request."""

    def __init__(self, facts: ResponseFacts, request: RequestFacts, response: bytes, *, streamed: bool) -> None:
        self._facts = facts
        self._request = request
        self._response = response
        self._may_have_places: bool | None = None
        """Whether ids may be in other places than vLLM's; None until it is asked."""
        self._sampling = request.sampling or {}
        self._prompts = Prompts(messages_of(request), self._sampling.get("n"))
        self._streamed = streamed
        self._readers: dict[int, _Reader] = {}
        self._prompt_token_ids: list[int] | None = None
        self._extras = AnswerExtras(_BODY_NAMES, _StrictBody)
        self._echoed: list[Any] = []
        self._whole = places.PartIds()
        """Of the only choice, from a place of the whole body."""

    def add(self, body: _Body, part: Event) -> None:
        """Reads the next body."""
        read_answer_fields(self._facts, body)
        self._prompt_token_ids = self._prompt_token_ids or body.prompt_token_ids
        if isinstance(body.prompt, list):
            self._echoed = self._echoed or body.prompt
        choices = body.choices or ()
        others = self._extras.add(body, part.data, len(choices), _Choice)
        plain = self._plain_choices(choices, part)
        for position, choice in enumerate(choices):
            reader = reader_for(self._readers, choice.index, position, _Reader, streamed=self._streamed)
            problem = reader.add(choice, plain[position] if plain else None)
            self._facts.malformed = self._facts.malformed or problem
            if others:
                reader.extras.update(others[position])

    def _plain_choices(self, choices: Sequence[_Choice], part: Event) -> list[Any] | None:
        """The choices of a body as plain values, where other engines than vLLM may have put ids in them or beside."""
        has_all = all(one.token_ids is not None and one.prompt_token_ids is not None for one in choices)
        # A body without choices, the last one of a stream, may have ids beside them.
        if choices and has_all:
            return None
        if self._may_have_places is None:
            # Once for all chunks of a stream.
            self._may_have_places = _mentions_ids(without_experts(self._response))
        if not self._may_have_places:
            return None
        data = without_experts(part.data)
        if not _mentions_ids(data):
            return None
        body = loads(data)
        whole = places.ids_of_part(_COMPLETION_IDS, body, of_body=True)
        prompt = places.ids_of_part(_PROMPT_IDS, body, of_body=True)
        if whole.ids:
            before = self._whole.ids if whole.in_parts else None
            self._whole = whole._replace(ids=extended(before, whole.ids))
        self._prompt_token_ids = self._prompt_token_ids or prompt.ids
        self._facts.malformed = self._facts.malformed or whole.problem or prompt.problem
        plain = body.get("choices")
        # A choice that could not be read at all is in the one list alone: then none can be matched.
        return plain if isinstance(plain, list) and len(plain) == len(choices) else None

    def choices(self, *, done: bool) -> list[ChoiceFacts]:
        """The facts of each choice, by index. ``done``: the answer reached its end."""
        self._extras.add_usage(self._facts, [reader.extras for reader in self._readers.values()])
        found = [self._choice(index, self._readers[index], done=done) for index in sorted(self._readers)]
        if not self._is_counted(found):
            for choice in found:
                columns = self._readers[choice.index].columns
                if columns is not None and columns.lossy and choice.token_source == "logprobs":
                    withhold(choice, "ids_unconfirmed", UNCONFIRMED)
        return found

    def add_extras(self) -> None:
        """Adds to the choices, whose ids have been checked, what came beside ids and logprobs."""
        for choice in self._facts.choices:
            reader = self._readers[choice.index]
            if reader.echoed is not None:
                reader.extras.echoed = reader.echoed.logprobs, reader.echoed.tops
            more = {} if reader.columns is None else reader.columns.more
            has_prompt = len(self._readers) == 1
            self._extras.settle(choice, reader.extras, self._sampling, more, has_prompt=has_prompt)

    def _is_counted(self, choices: list[ChoiceFacts]) -> bool:
        """True where a usage counts the only choice. Of several, llama-server counts just one, and sums can deceive."""
        if len(choices) != 1 or self._facts.usage is None or self._facts.usage.output is None:
            return False
        return choices[0].complete and choices[0].completion_token_ids is not None

    def _choice(self, index: int, reader: _Reader, *, done: bool) -> ChoiceFacts:
        prompt = self._prompts.at(index, len(self._readers), whole=done)
        is_only = len(self._readers) == 1
        whole = self._whole if reader.token_ids is None and is_only else places.PartIds()
        ids = reader.token_ids if whole.ids is None else whole.ids
        choice = ChoiceFacts(
            index=index,
            messages=[prompt] if len(self._prompts.all) > 1 and prompt is not None else None,
            completion=Completion(content="".join(reader.texts) if reader.texts else None),
            finish_reason=reader.finish_reason,
            stop_reason=reader.stop_reason,
            prompt_token_ids=self._request.ids(self._prompt_ids(reader, prompt)),
            completion_token_ids=ids,
            token_source=None if ids is None else "engine",
            complete=done or reader.finish_reason is not None,
            error=error_of_choice(reader.error, reader.finish_reason),
            uneven=whole.ids is None and bool(reader.surpluses),
        )
        if reader.columns is not None:
            self._add_columns(choice, reader, reader.columns)
        if whole.logprobs is not None and len(choice.logprobs or ()) != len(whole.logprobs):
            choice.logprobs, choice.top_logprobs = list(map(number_of, whole.logprobs)), None
        return choice

    def _prompt_ids(self, reader: _Reader, prompt: Any) -> Any:
        if reader.prompt_token_ids:
            return reader.prompt_token_ids
        if len(self._prompts.all) < 2:
            if self._prompt_token_ids:
                return self._prompt_token_ids
            echoed = _echoed_ids(self._echoed)
            if echoed is not None:
                return echoed
        counted = None if self._facts.usage is None else self._facts.usage.input
        return self._prompts.sent_ids(prompt, counted)

    def _add_columns(self, choice: ChoiceFacts, reader: _Reader, columns: Columns) -> None:
        """Sets the logprobs of a choice, and the ids among them where it has no others."""
        if self._sampling.get("echo") and not self._remove_echo(choice, reader, columns):
            return
        ids = choice.completion_token_ids
        if ids is not None and report_clash(choice, columns.clash(ids)):
            return
        choice.logprobs, choice.top_logprobs = columns.logprobs, columns.alternatives()
        choice.token_texts = columns.texts()
        if choice.top_logprobs is not None:
            reader.extras.tops = columns.tops
        if ids is not None:
            return
        choice.completion_token_ids, choice.uneven = columns.token_ids(), False
        if choice.completion_token_ids is not None:
            choice.token_source = "logprobs"

    def _remove_echo(self, choice: ChoiceFacts, reader: _Reader, columns: Columns) -> bool:
        """Removes the echoed prompt's logprobs where their number is certain; else sets an issue and returns False."""
        inputs, outputs = self._sizes(choice)
        # Only a prompt begins with a token without a logprob, as nothing precedes it.
        found, echoed = len(columns), columns.logprobs[:1] == [None]
        if found == outputs and not echoed:
            return True
        if found == inputs and echoed and self._sampling.get("max_tokens") == 0:
            reader.echoed = columns.cut(found)
            set_issue(choice, "nothing_sampled", f"max_tokens is 0: all {found} logprobs are of the echoed prompt.")
            return False
        if inputs is not None and outputs is not None and found == inputs + outputs:
            head = reader.echoed = columns.cut(inputs)
            if choice.prompt_token_ids is None:
                choice.prompt_token_ids = head.token_ids()
            # The first chunk also had the logprobs of the prompt: that surplus is no gap.
            choice.uneven = reader.surpluses != [inputs]
            return True
        sizes = f"{_count_or_unknown(inputs)} of the prompt and {_count_or_unknown(outputs)} of the completion"
        set_issue(choice, "echo_unresolved", f"the prompt was to be echoed: {found} logprobs are not {sizes}.")
        return False

    def _sizes(self, choice: ChoiceFacts) -> tuple[int | None, int | None]:
        """Numbers of tokens of prompt and completion, from their ids or, for a single choice, from the usage."""
        usage = self._facts.usage if len(self._readers) == 1 and choice.complete else None
        inputs, outputs = (None, None) if usage is None else (usage.input, usage.output)
        if choice.prompt_token_ids is not None:
            inputs = len(choice.prompt_token_ids)
        if choice.completion_token_ids is not None:
            outputs = len(choice.completion_token_ids)
        return inputs, outputs


def _mentions_ids(body: bytes) -> bool:
    return any(name in body for name in places.id_fields(_PROTOCOL))


def _count_or_unknown(number: int | None) -> str:
    return "an unknown number" if number is None else str(number)


def _echoed_ids(prompts: list[Any]) -> list[int] | None:
    """The ids of the one prompt that Together echoes beside the choices."""
    if len(prompts) != 1 or not isinstance(prompts[0], dict):
        return None
    logprobs = prompts[0].get("logprobs")
    ids = logprobs.get("token_ids") if isinstance(logprobs, dict) else None
    if not isinstance(ids, list) or not all(type(value) in (int, float) for value in ids):
        return None
    return integral_ids(ids)
