"""Gathers what an answer of chat, completions or generate holds beside text, ids and logprobs, over all its bodies.

``AnswerExtras`` is of the answer, ``PartExtras`` of one of its choices. In a stream each chunk is a body.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec import Raw, Struct

from rollout_trace.wire.facts import ChoiceFacts, ResponseFacts
from rollout_trace.wire.lenient import NULL
from rollout_trace.wire.other_fields import OtherFields, extra_of, undeclared
from rollout_trace.wire.usage import add_usage, merged, take_usage
from rollout_trace.wire.vllm_extras import ChoiceExtras, PromptScores, RawExtras

_EMPTY: Final[Mapping[str, Any]] = {}


class BodyExtras(Struct, gc=False):
    """The fields of a body of chat or completions that have no place of their own, and the scores of its prompt."""

    prompt_logprobs: Raw = NULL
    created: Any = None
    system_fingerprint: Any = None
    service_tier: Any = None
    metrics: Any = None
    prompt_text: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    timings: Any = None
    provider: Any = None


class OtherNames:
    """The fields of a struct that are read for extras, and their values in a part that has none of them."""

    __slots__ = ("fields_of", "names", "nothing")

    def __init__(self, kind: type[Struct], extras: tuple[str, ...], names: tuple[str, ...]) -> None:
        """``extras``: fields that are read as bytes; ``names``: fields that go to ``Step.extra``."""
        self.names = names
        self.fields_of = attrgetter(*extras, *names)
        self.nothing = self.fields_of(kind())


class PartExtras:
    """Of one choice, from its only body or from all its chunks."""

    __slots__ = ("_fields_of", "_names", "_nothing", "_others", "counts", "found")

    def __init__(self, kind: OtherNames) -> None:
        """``kind``: of the type of the choices, whose base is ``ChoiceExtras``."""
        self._fields_of, self._nothing, self._names = kind.fields_of, kind.nothing, kind.names
        self.counts: Mapping[str, Any] = _EMPTY
        """Of the answer, where they stand on the choice."""
        # Made when they are needed: nearly no choice has any extras.
        self.found: RawExtras | None = None
        self._others: OtherFields | None = None

    def add(self, choice: ChoiceExtras) -> None:
        """Reads the next chunk, or the only body."""
        # Tested as a whole, the fields cost next to nothing.
        if self._fields_of(choice) != self._nothing:
            self.raw.add(choice)
            self.others.add(choice)

    @property
    def raw(self) -> RawExtras:
        """The extras as they came."""
        if self.found is None:
            self.found = RawExtras()
        return self.found

    @property
    def others(self) -> OtherFields:
        """The fields that have no place of their own."""
        if self._others is None:
            self._others = OtherFields(self._names)
        return self._others

    def update(self, fields: dict[str, Any]) -> None:
        """Reads the undeclared fields of the next chunk."""
        self.counts = merged(self.counts, take_usage(fields, of_choice=True))
        self.others.update(fields)

    @property
    def other_values(self) -> Mapping[str, Any]:
        """The values of ``others``."""
        return _EMPTY if self._others is None else self._others.values


class AnswerExtras:
    """Of an answer, beside its choices."""

    __slots__ = ("_counts", "_fields_of", "_others", "_prompt_logprobs", "_rest", "_scores", "_strict")

    def __init__(self, kind: OtherNames, strict: type[Struct]) -> None:
        """
        Args:
            kind: of the type of the bodies; its one extra is ``prompt_logprobs``.
            strict: the type of bodies that have no other fields than declared.
        """
        self._fields_of, self._strict = kind.fields_of, strict
        self._rest = kind.nothing
        self._others = OtherFields(kind.names)
        self._counts: dict[str, Any] = {}
        self._prompt_logprobs = NULL
        self._scores = PromptScores()

    def add(self, body: Any, data: bytes, size: int, choice: type[Struct]) -> list[dict[str, Any]] | None:
        """Reads the next body. Returns the undeclared fields of each of its ``size`` choices, if there may be any.

        Args:
            choice: the type of its choices.
        """
        rest = self._fields_of(body)
        # The chunks of a stream repeat these: compared as a whole, they cost next to nothing.
        if rest != self._rest:
            self._rest = rest
            self._others.add(body)
            self._prompt_logprobs = self._prompt_logprobs if rest[0] == NULL else rest[0]
        if type(body) is self._strict:
            return None
        values, found = undeclared(data, type(body), choice)
        self._counts = merged(self._counts, take_usage(values))
        self._others.update(values)
        return found if len(found) == size else None

    def add_usage(self, facts: ResponseFacts, parts: list[PartExtras]) -> None:
        """Adds the counts that stood in other places than the usage. ``parts``: of all choices.

        Those of a choice are of the whole answer where there is one choice; of several they stay in the extras.
        """
        found = [self._counts, *(part.counts for part in parts if len(parts) == 1)]
        for counts in filter(None, found):
            add_usage(facts, counts)
        for part in parts:
            if part.counts and len(parts) > 1:
                part.others.update({"usage": part.counts})

    def settle(
        self,
        choice: ChoiceFacts,
        part: PartExtras,
        sampling: Mapping[str, Any] | None,
        *more: Mapping[str, Any],
        has_prompt: bool = True,
    ) -> None:
        """Sets the extras of a choice whose ids have been checked.

        Args:
            part: the choice's own.
            sampling: the parameters of the request.
            more: further fields for ``Step.extra``.
            has_prompt: whether the scores of a prompt beside the choices are of the choice's prompt.
        """
        if has_prompt and self._prompt_logprobs is not NULL and part.raw.prompt_logprobs == NULL:
            part.raw.prompt_logprobs = self._prompt_logprobs
        if part.found is not None:
            part.found.settle(choice, sampling, self._scores)
        choice.extra = extra_of(self._others.values, part.other_values, *more)
