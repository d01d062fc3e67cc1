"""``openai.completions``: /completions as OpenAI and the engines that follow it speak it, streamed or not.

Where the ids are: vLLM, SGLang and Fireworks put ``token_ids`` and ``prompt_token_ids`` on each choice (streamed: a
delta, and the prompt on the first chunk), TensorRT-LLM ``token_ids`` where it was asked not to detokenize. Among the
logprobs Together has ``token_ids``, llama-server an ``id`` in each entry of ``content``, vLLM ``token_id:N`` as the
tokens. Ids of a prompt that was sent as ids are in the request. Other engines' places are in places.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from rollout_trace.data.model import Completion
from rollout_trace.wire import align, places
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
    plain_bodies,
    read_bodies,
    reader_of,
    report,
    tell_clash,
    withhold,
)
from rollout_trace.wire.sse import Event


class _Delta(Struct):
    content: str | None = None


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


class _Body(Struct):
    id: Any = None
    model: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    prompt_token_ids: list[int] | None = None
    prompt: Any = None
    error: Any = None


_BODY = Typed(_Body)
_NAME = "openai.completions"


def decode(response: bytes, *, streamed: bool, status: int, asked: RequestFacts) -> ResponseFacts:
    """What an answer says. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    if status >= 400:
        facts.error = error_of(response, status)
        return facts
    parts = parts_of(response, streamed=streamed)
    answer = _Answer(facts, asked, streamed=streamed)
    done = read_bodies(parts, _BODY, facts, answer.add, streamed=streamed)
    answer.look_elsewhere(parts)
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
        self.exact: list[int] | None = None
        """Ids of the whole choice, apart from its chunks."""
        self._sizes: list[tuple[int, int]] = []
        """How many logprobs and how many ids each chunk brought."""

    def add(self, choice: _Choice) -> None:
        text = (choice.delta or _Delta()).content if choice.text is None else choice.text
        if text is not None:
            self.texts.append(text)
        self.finish_reason = self.finish_reason if choice.finish_reason is None else choice.finish_reason
        for reason in (choice.matched_stop, choice.stop_reason):
            self.stop_reason = self.stop_reason if reason is None else reason
        self.prompt_token_ids = self.prompt_token_ids or choice.prompt_token_ids
        columns = columns_of(choice.logprobs)
        self._sizes.append((0 if columns is None else len(columns), len(choice.token_ids or ())))
        self.token_ids = joined(self.token_ids, choice.token_ids)
        if self.columns is None or columns is None:
            self.columns = columns if self.columns is None else self.columns
        else:
            self.columns.extend(columns)

    def take(self, found: places.Found | None) -> None:
        """Takes ids that stand in another place."""
        if found is not None and found.sizes is None:
            self.exact = found.ids
        elif found is not None:
            self.token_ids = found.ids
            self._sizes = [(size, ids) for (size, _), ids in zip(self._sizes, found.sizes or (), strict=False)]

    @property
    def surpluses(self) -> list[int]:
        """By how many logprobs there were more than ids, for each chunk with another number of them."""
        return [logprobs - ids for logprobs, ids in self._sizes if logprobs != ids]


class _Answer:
    """The choices of one answer, and the prompts of its request."""

    def __init__(self, facts: ResponseFacts, asked: RequestFacts, *, streamed: bool) -> None:
        self._facts = facts
        self._sampling = asked.sampling or {}
        self._prompts = Prompts(messages_of(asked), self._sampling.get("n"))
        self._streamed = streamed
        self._readers: dict[int, _Reader] = {}
        self._prompt_token_ids: list[int] | None = None
        self._echoed: list[Any] = []

    def add(self, body: _Body, part: Event) -> None:
        """Takes the next body."""
        name_answer(self._facts, body)
        self._prompt_token_ids = self._prompt_token_ids or body.prompt_token_ids
        if isinstance(body.prompt, list):
            self._echoed = self._echoed or body.prompt
        for position, choice in enumerate(body.choices or ()):
            reader_of(self._readers, choice.index, position, _Reader, streamed=self._streamed).add(choice)

    def look_elsewhere(self, parts: list[Event]) -> None:
        """Fills the ids of engines that put them in another place than vLLM."""
        readers = self._readers
        wanting = [index for index, one in readers.items() if None in (one.token_ids, one.prompt_token_ids)]
        if not wanting or not any(places.names_a_place(_NAME, part.data) for part in parts):
            return
        bodies = plain_bodies(parts)
        for index in wanting:
            if not readers[index].prompt_token_ids:
                readers[index].prompt_token_ids = places.prompt_ids(_NAME, bodies, index)
            if readers[index].token_ids is None:
                readers[index].take(places.completion_ids(_NAME, bodies, index, len(readers)))

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
        ids = reader.token_ids if reader.exact is None else reader.exact
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
            uneven=reader.exact is None and bool(reader.surpluses),
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
