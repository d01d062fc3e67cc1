"""Fields of an answer that have no place of their own in a step: they go to ``Step.extra``, under their names.

Left out on purpose, beside what became a field of the step: nulls; ``object``, the kind of the answer, which its
protocol implies; ``index`` of a choice; ``obfuscation``, padding against guesses from packet sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Raw, Struct, json

from rollout_trace.wire.lenient import DECODE_ERRORS, NULL, loads
from rollout_trace.wire.places import COMPLETION_IDS, PROMPT_IDS

NO_EXTRA: Final = frozenset({"object", "index", "obfuscation"})
_FIELDS = json.Decoder(dict[str, Raw])
_CHOICES = json.Decoder(list[dict[str, Raw]])
_LISTS = ("choices", "answers")
"""Names of the list of choices; ``answers`` is that of generate.py."""


class OtherFields:
    """Values by name, of a choice or of the answer around the choices. In a stream the last value that is no null."""

    __slots__ = ("_names", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        """``names``: the fields of a struct that have no place of their own."""
        self._names = names
        self.values: dict[str, Any] = {}

    def add(self, part: Struct) -> None:
        """Reads the declared fields of the next part."""
        for name in self._names:
            value = getattr(part, name)
            if value is not None:
                self.values[name] = value

    def update(self, values: Mapping[str, Any]) -> None:
        """Sets fields that were read elsewhere."""
        self.values.update(values)


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
    """As ``undeclared`` decodes, of bytes that the strict decoder refuses."""
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


_Paths = dict[str, Any]
"""By name: the places inside a field, or an empty dict for one that is a place itself."""


def _token_paths() -> _Paths:
    """Where places.py finds ids and logprobs, up to the first list on the way."""
    rows = (*COMPLETION_IDS, *PROMPT_IDS)
    # `completion_logprobs` are read from answers of Anthropic's shape alone, but stand there in all.
    paths = [row.ids for row in rows] + [row.logprobs for row in rows if row.logprobs]
    found: _Paths = {}
    for path in [*paths, ("raw_output", "completion_logprobs")]:
        inside = found
        for name in _until_list(path):
            inside = inside.setdefault(name, {})
    return found


def _until_list(path: Iterable[str | int]) -> Iterable[str]:
    for step in path:
        if not isinstance(step, str):
            return
        yield step


_TOKEN_PATHS: Final = _token_paths()


def _without_tokens(name: str, value: Any, paths: _Paths = _TOKEN_PATHS) -> Any:
    """A field without the ids and logprobs that become arrays of the step; None where nothing else is in it."""
    inside = paths.get(name)
    if inside is None:
        return value
    if not isinstance(value, dict):
        return None
    rest = {key: _without_tokens(key, item, inside) for key, item in value.items()}
    return {key: item for key, item in rest.items() if item is not None} or None
