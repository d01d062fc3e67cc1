"""Collects for ``Step.extra`` what an answer holds besides text, ids and logprobs, under its own names.

Left out on purpose, beside what became a field of the step: nulls; ``object``, the kind of the answer, which its
protocol implies; ``index`` of a choice; ``obfuscation``, padding against guesses from packet sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec import Raw, Struct, json

from rollout_trace.wire.facts import ChoiceFacts, ResponseFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL, loads
from rollout_trace.wire.places import COMPLETION_IDS, PROMPT_IDS
from rollout_trace.wire.reading import add_usage, merged, take_usage
from rollout_trace.wire.vllm_extras import ChoiceExtras, PromptScores, RawExtras

NO_EXTRA: Final = frozenset({"object", "index", "obfuscation"})
_FIELDS = json.Decoder(dict[str, Raw])
_CHOICES = json.Decoder(list[dict[str, Raw]])
_LISTS = ("choices", "answers")
"""Names of the list of choices; ``answers`` is that of generate.py."""


def fields_from(kind: type[Struct], first: str) -> tuple[str, ...]:
    """The names of a struct's last fields, from ``first`` on."""
    return kind.__struct_fields__[kind.__struct_fields__.index(first) :]


def undeclared(data: bytes, body: type[Struct], choice: type[Struct]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields of a body, and of each of its choices, that these types do not have. Nulls are left out."""
    try:
        fields: Mapping[str, Any] = _FIELDS.decode(data)
        listed = next((fields[name] for name in _LISTS if name in fields), None)
        choices: Any = [] if listed is None else _CHOICES.decode(listed)
    except DECODE_ERRORS:
        fields, choices = _plain(data)
    return _others(fields, body), [_others(one, choice) for one in choices]


def fields_without(data: bytes, names: frozenset[str], inside: str | None = None) -> dict[str, Any]:
    """The fields of a body, or of the object in its field ``inside``, without some names. Nulls are left out."""
    try:
        fields: Mapping[str, Any] = _FIELDS.decode(data)
        fields = fields if inside is None else _FIELDS.decode(fields.get(inside, b"{}"))
    except DECODE_ERRORS:
        fields = _plain(data)[0]
        fields = fields if inside is None else fields.get(inside) or {}
        fields = fields if isinstance(fields, dict) else {}
    return _kept(fields, names)


def _plain(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Decodes like ``undeclared``, for bytes that the strict decoder rejects."""
    try:
        fields = loads(data)
    except ValueError:
        return {}, []
    if not isinstance(fields, dict):
        return {}, []
    choices = next((fields[name] for name in _LISTS if name in fields), None)
    if isinstance(choices, list) and all(isinstance(one, dict) for one in choices):
        return fields, choices
    # A choice that is no object was dropped: then none can be matched by its position.
    return fields, []


def _others(fields: Mapping[str, Any], kind: type[Struct]) -> dict[str, Any]:
    return _kept(fields, NO_EXTRA.union(kind.__struct_fields__))


def _kept(fields: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The fields but those of these names, without nulls and what became arrays of the step."""
    found = {
        name: _without_tokens(name, _value(value))
        for name, value in fields.items()
        if name not in names and value != NULL
    }
    return {name: value for name, value in found.items() if value is not None}


def _value(value: Any) -> Any:
    if not isinstance(value, Raw):
        return value
    try:
        return json.decode(value)
    except DECODE_ERRORS:
        return _tolerant(bytes(value))


def _tolerant(data: bytes) -> Any:
    try:
        return loads(data)
    except ValueError:
        return None


def extra_of(*parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """One dict of several, the later ones counting where names are the same; None where all are empty."""
    found: dict[str, Any] = {}
    for part in parts:
        found.update(part)
    return found or None


def _token_paths() -> dict[str, Any]:
    """Where places.py finds ids and logprobs, up to the first list on the way.

    By name: the places inside a field, or an empty dict for one that is a place itself.
    """
    rows = (*COMPLETION_IDS, *PROMPT_IDS)
    # `completion_logprobs` are read from answers of Anthropic's shape alone, but stand there in all.
    paths = [row.ids for row in rows] + [row.logprobs for row in rows if row.logprobs]
    found: dict[str, Any] = {}
    for path in [*paths, ("raw_output", "completion_logprobs")]:
        inside = found
        for name in path:
            if not isinstance(name, str):
                break
            inside = inside.setdefault(name, {})
    return found


_TOKEN_PATHS: Final = _token_paths()


def _without_tokens(name: str, value: Any, paths: Mapping[str, Any] = _TOKEN_PATHS) -> Any:
    """A field without the ids and logprobs that become arrays of the step; None where nothing else is in it."""
    inside = paths.get(name)
    if inside is None:
        return value
    if not isinstance(value, dict):
        return None
    rest = {key: _without_tokens(key, item, inside) for key, item in value.items()}
    return {key: item for key, item in rest.items() if item is not None} or None


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

    def add_to(self, values: dict[str, Any], part: Struct) -> None:
        """Sets the fields of the next part that are not null."""
        for name in self.names:
            value = getattr(part, name)
            if value is not None:
                values[name] = value


class PartExtras(RawExtras):
    """Extras of one choice, from its only body or from all its chunks."""

    __slots__ = ("_kind", "counts", "values")

    def __init__(self, kind: OtherNames) -> None:
        """``kind``: of the type of the choices, whose base is ``ChoiceExtras``."""
        super().__init__()
        self._kind = kind
        self.counts: Mapping[str, Any] = _EMPTY
        """Of the answer, where they stand on the choice."""
        self.values: dict[str, Any] = {}
        """The fields that have no place of their own, by name. In a stream the last value that is no null."""

    def add(self, choice: ChoiceExtras) -> None:
        # Tested as a whole, the fields cost next to nothing.
        if self._kind.fields_of(choice) != self._kind.nothing:
            super().add(choice)
            self._kind.add_to(self.values, choice)

    def update(self, fields: dict[str, Any]) -> None:
        """Reads the undeclared fields of the next chunk."""
        self.counts = merged(self.counts, take_usage(fields, of_choice=True))
        self.values.update(fields)


class AnswerExtras:
    """Extras of an answer, apart from its choices."""

    __slots__ = ("_counts", "_kind", "_prompt_logprobs", "_rest", "_scores", "_strict", "_values")

    def __init__(self, kind: OtherNames, strict: type[Struct]) -> None:
        """
        Args:
            kind: of the type of the bodies; its one extra is ``prompt_logprobs``.
            strict: the type of bodies that have no other fields than declared.
        """
        self._kind, self._strict = kind, strict
        self._rest = kind.nothing
        self._values: dict[str, Any] = {}
        self._counts: dict[str, Any] = {}
        self._prompt_logprobs = NULL
        self._scores = PromptScores()

    def add(self, body: Any, data: bytes, size: int, choice: type[Struct]) -> list[dict[str, Any]] | None:
        """Reads the next body. Returns the undeclared fields of each of its ``size`` choices, if there may be any.

        Args:
            choice: the type of its choices.
        """
        rest = self._kind.fields_of(body)
        # The chunks of a stream repeat these: compared as a whole, they cost next to nothing.
        if rest != self._rest:
            self._rest = rest
            self._kind.add_to(self._values, body)
            self._prompt_logprobs = self._prompt_logprobs if rest[0] == NULL else rest[0]
        if type(body) is self._strict:
            return None
        values, found = undeclared(data, type(body), choice)
        self._counts = merged(self._counts, take_usage(values))
        self._values.update(values)
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
                part.values["usage"] = part.counts

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
        if has_prompt and part.prompt_logprobs == NULL:
            part.prompt_logprobs = self._prompt_logprobs
        part.settle(choice, sampling, self._scores)
        choice.extra = extra_of(self._values, part.values, *more)
