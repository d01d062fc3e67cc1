"""``openai.completions``: /completions as OpenAI and the engines that follow it speak it, streamed or not.

Where the ids are: vLLM, SGLang and Fireworks put ``token_ids`` and ``prompt_token_ids`` on each choice (streamed: a
delta, and the prompt on the first chunk), TensorRT-LLM ``token_ids`` where it was asked not to detokenize, Fireworks
also ``raw_output``, LiteLLM ``provider_specific_fields``; Together ``logprobs.token_ids`` (streamed:
``delta.token_id`` beside one logprob), llama-server ``__verbose.tokens``, and an ``id`` in each entry of
``logprobs.content``, vLLM ``token_id:N`` as the tokens. Ids of a prompt that was sent as ids are in the request.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct, field

from rollout_trace.data.model import Completion
from rollout_trace.wire import align
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import Typed
from rollout_trace.wire.logprobs import ArrayLogprobs, Columns, columns_of, joined, whole_ids
from rollout_trace.wire.prompts import Prompts, messages_of
from rollout_trace.wire.reading import (
    UNCONFIRMED,
    holds_choices,
    mark_malformed,
    name_answer,
    nothing_read,
    parts_of,
    read_bodies,
    reader_of,
    report,
    tell_clash,
    withhold,
)
from rollout_trace.wire.sse import Event


class _Delta(Struct):
    content: str | None = None
    token_id: int | None = None


class _RawOutput(Struct):
    completion_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Provider(Struct):
    token_ids: list[int] | None = None


class _Verbose(Struct):
    tokens: list[int] | None = None


class _Choice(Struct):
    index: int | None = None
    text: str | None = None
    delta: _Delta | None = None
    logprobs: ArrayLogprobs | float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    raw_output: _RawOutput | None = None
    provider_specific_fields: _Provider | None = None


class _Body(Struct):
    id: Any = None
    model: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    prompt_token_ids: list[int] | None = None
    prompt: Any = None
    verbose: _Verbose | None = field(default=None, name="__verbose")
    error: Any = None


_BODY = Typed(_Body)


def decode(response: bytes, *, streamed: bool, status: int, asked: RequestFacts) -> ResponseFacts:
    """What an answer says. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    if status >= 400:
        facts.error = error_of(response, status)
        return facts
    parts = parts_of(response, streamed=streamed)
    answer = _Answer(facts, asked, streamed=streamed)
    done = read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    facts.choices = answer.choices(done=done)
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    if not facts.choices and facts.error is None:
        facts.error = nothing_read(parts, response, status, partial(holds_choices, _BODY), streamed=streamed)
    return facts


class _Reader:
    """One choice, from its only body or from all its chunks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.prompt_token_ids: list[int] | None = None
        self.token_ids: list[int] | None = None
        self.columns: Columns | None = None
        self.surpluses: list[int] = []
        """By how many logprobs there were more than ids, for each chunk with another number of them."""

    def add(self, choice: _Choice) -> None:
        delta, raw = choice.delta or _Delta(), choice.raw_output or _RawOutput()
        text = delta.content if choice.text is None else choice.text
        if text is not None:
            self.texts.append(text)
        self.finish_reason = self.finish_reason if choice.finish_reason is None else choice.finish_reason
        for reason in (choice.matched_stop, choice.stop_reason):
            self.stop_reason = self.stop_reason if reason is None else reason
        self.prompt_token_ids = self.prompt_token_ids or choice.prompt_token_ids or raw.prompt_token_ids
        ids = raw.completion_token_ids if choice.token_ids is None else choice.token_ids
        if ids is None and choice.provider_specific_fields is not None:
            ids = choice.provider_specific_fields.token_ids
        if ids is None and delta.token_id is not None:
            ids = [delta.token_id]
        columns = columns_of(choice.logprobs)
        surplus = (0 if columns is None else len(columns)) - len(ids or ())
        if surplus:
            self.surpluses.append(surplus)
        self.token_ids = joined(self.token_ids, ids)
        if self.columns is None or columns is None:
            self.columns = columns if self.columns is None else self.columns
        else:
            self.columns.extend(columns)


class _Answer:
    """The choices of one answer, and what they are told by the request."""

    def __init__(self, facts: ResponseFacts, asked: RequestFacts, *, streamed: bool) -> None:
        self._facts = facts
        self._sampling = asked.sampling or {}
        self._prompts = Prompts(messages_of(asked), self._sampling.get("n"))
        self._streamed = streamed
        self._readers: dict[int, _Reader] = {}
        self._prompt_token_ids: list[int] | None = None
        self._echoed: list[Any] = []
        self._verbose: list[int] | None = None

    def add(self, body: _Body, part: Event) -> None:
        """Takes the next body."""
        name_answer(self._facts, body)
        self._prompt_token_ids = self._prompt_token_ids or body.prompt_token_ids
        if body.verbose is not None:
            self._verbose = body.verbose.tokens or self._verbose
        if isinstance(body.prompt, list):
            self._echoed = self._echoed or body.prompt
        for position, choice in enumerate(body.choices or ()):
            reader_of(self._readers, choice.index, position, _Reader, streamed=self._streamed).add(choice)

    def choices(self, *, done: bool) -> list[ChoiceFacts]:
        """What was read of each, by index."""
        found = [self._choice(index, self._readers[index], done=done) for index in sorted(self._readers)]
        if not self._counted(found):
            for choice in found:
                columns = self._readers[choice.index].columns
                if columns is not None and columns.lossy and choice.token_source == "logprobs":
                    withhold(choice, "ids_unconfirmed", UNCONFIRMED)
        return found

    def _counted(self, choices: list[ChoiceFacts]) -> bool:
        """Whether a usage counts the only choice. Of several llama-server counts one alone, and sums can deceive."""
        if len(choices) != 1 or self._facts.usage is None or self._facts.usage.output is None:
            return False
        return choices[0].complete and choices[0].completion_token_ids is not None

    def _choice(self, index: int, reader: _Reader, *, done: bool) -> ChoiceFacts:
        prompt = self._prompts.at(index, len(self._readers), whole=done)
        exact = self._verbose if reader.token_ids is None and len(self._readers) == 1 else None
        ids = reader.token_ids if exact is None else exact
        choice = ChoiceFacts(
            index=index,
            messages=[prompt] if len(self._prompts.all) > 1 and prompt is not None else None,
            completion=Completion(content="".join(reader.texts) if reader.texts else None),
            finish_reason=reader.finish_reason,
            stop_reason=reader.stop_reason,
            prompt_token_ids=self._prompt_ids(reader, prompt),
            completion_token_ids=ids,
            token_source=None if ids is None else "engine",
            complete=done or reader.finish_reason is not None,
            uneven=exact is None and bool(reader.surpluses),
        )
        if reader.columns is not None:
            self._add_columns(choice, reader, reader.columns)
        return choice

    def _prompt_ids(self, reader: _Reader, prompt: Any) -> list[int] | None:
        if reader.prompt_token_ids:
            return reader.prompt_token_ids
        if len(self._prompts.all) < 2:
            if self._prompt_token_ids:
                return self._prompt_token_ids
            echoed = _echoed_ids(self._echoed)
            if echoed is not None:
                return echoed
        counted = None if self._facts.usage is None else self._facts.usage.input
        return self._prompts.ids_at(prompt, counted)

    def _add_columns(self, choice: ChoiceFacts, reader: _Reader, columns: Columns) -> None:
        """Gives a choice its logprobs, and the ids that stand among them where it has no others."""
        if self._sampling.get("echo") and not self._cut_echo(choice, reader, columns):
            return
        ids = choice.completion_token_ids
        if ids is not None and tell_clash(choice, columns.clash(ids)):
            return
        choice.logprobs, choice.top_logprobs = columns.logprobs, columns.alternatives()
        if ids is not None:
            return
        choice.completion_token_ids, choice.uneven = columns.token_ids(), False
        if choice.completion_token_ids is not None:
            choice.token_source = "logprobs"

    def _cut_echo(self, choice: ChoiceFacts, reader: _Reader, columns: Columns) -> bool:
        """Removes the echoed prompt's logprobs, where it is certain how many they are; False where it is not."""
        inputs, outputs = self._sizes(choice)
        found, echoed = len(columns), columns.logprobs[:1] == [None]
        if found == outputs and not echoed:
            return True
        if found == inputs and echoed and self._sampling.get("max_tokens") == 0:
            report(choice, "nothing_sampled", f"max_tokens is 0: all {found} logprobs are of the echoed prompt.")
            return False
        if inputs is not None and outputs is not None and found == inputs + outputs:
            self._split(choice, reader, columns, inputs)
            return True
        sizes = f"{_count(inputs)} of the prompt and {_count(outputs)} of the completion"
        report(choice, "echo_unresolved", f"the prompt was to be echoed: {found} logprobs are not {sizes}.")
        return False

    def _sizes(self, choice: ChoiceFacts) -> tuple[int | None, int | None]:
        """How many tokens the prompt and the completion have, by their ids or, of a single choice, by the usage."""
        usage = self._facts.usage if len(self._readers) == 1 and choice.complete else None
        inputs, outputs = (None, None) if usage is None else (usage.input, usage.output)
        if choice.prompt_token_ids is not None:
            inputs = len(choice.prompt_token_ids)
        if choice.completion_token_ids is not None:
            outputs = len(choice.completion_token_ids)
        return inputs, outputs

    def _split(self, choice: ChoiceFacts, reader: _Reader, columns: Columns, length: int) -> None:
        head = columns.cut(length)
        if choice.prompt_token_ids is None:
            choice.prompt_token_ids = head.token_ids()
        # The prompt came with the first chunk, which is no gap.
        choice.uneven = reader.surpluses != [length]


def _count(number: int | None) -> str:
    return "an unknown number" if number is None else str(number)


def _echoed_ids(prompts: list[Any]) -> list[int] | None:
    """The ids of the one prompt that Together echoes beside the choices."""
    if len(prompts) != 1 or not isinstance(prompts[0], dict):
        return None
    logprobs = prompts[0].get("logprobs")
    ids = logprobs.get("token_ids") if isinstance(logprobs, dict) else None
    if not isinstance(ids, list) or not all(type(value) in (int, float) for value in ids):
        return None
    return whole_ids(ids)
