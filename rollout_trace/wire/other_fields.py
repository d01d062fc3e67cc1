"""Fields of an answer that have no place of their own in a step: they go to ``Step.extra``, under their names.

Left out on purpose, beside what became a field of the step: nulls; ``object``, the kind of the answer, which its
protocol implies; ``index`` of a choice; ``obfuscation``, padding against guesses from packet sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec import Raw, Struct, json

from rollout_trace.wire.lenient import DECODE_ERRORS, loads
from rollout_trace.wire.places import COMPLETION_IDS, PROMPT_IDS

NO_EXTRA: Final = frozenset({"object", "index", "obfuscation"})
_FIELDS = json.Decoder(dict[str, Raw])
_CHOICES = json.Decoder(list[dict[str, Raw]])
_LISTS = ("choices", "answers")
"""Names of the list of choices; ``answers`` is that of generate.py."""


class OtherFields:
    """Values by name, of a choice or of the answer around the choices. In a stream the last value that is no null."""

    __slots__ = ("_get", "_last", "_names", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        """``names``: at least two fields of the struct that ``add`` is given."""
        self._names = names
        self._get: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
        self._last: tuple[Any, ...] = (None,) * len(names)
        self.values: dict[str, Any] = {}

    def add(self, part: Struct) -> None:
        """Reads the declared fields of the next part."""
        found = self._get(part)
        # The chunks of a stream repeat these: compared as a whole, they cost next to nothing.
        if found == self._last:
            return
        self._last = found
        for name, value in zip(self._names, found, strict=True):
            if value is not None:
                self.values[name] = value

    def add_undeclared(
        self, data: bytes, body: Struct, strict: type[Struct], choice: type[Struct], size: int
    ) -> list[dict[str, Any]] | None:
        """Reads the fields of a body that its type does not have; returns those of its choices.

        Args:
            strict: the type of bodies that have none.
            choice: the type of its choices.
            size: the number of choices that were read.

        Returns:
            One dict for each choice; None where there is none, or where it is not certain whose they are.
        """
        if type(body) is strict:
            return None
        values, choices = undeclared(data, type(body), choice)
        self.values.update(values)
        return choices if len(choices) == size else None

    def update(self, values: Mapping[str, Any]) -> None:
        """Sets fields that were read elsewhere."""
        self.values.update(values)


def undeclared(data: bytes, body: type[Struct], choice: type[Struct]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields of a body, and of each of its choices, that these types do not have. Nulls are left out."""
    try:
        fields: Mapping[str, Any] = _FIELDS.decode(data)
        listed = next((fields[name] for name in _LISTS if name in fields), None)
        choices: Any = [] if listed is None else _CHOICES.decode(listed)
    except DECODE_ERRORS:
        fields, choices = _plain(data)
    return _others(fields, body), [_others(one, choice) for one in choices]


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
    found = {
        name: _without_tokens(name, _value(value))
        for name, value in fields.items()
        if name not in kind.__struct_fields__ and name not in NO_EXTRA
    }
    return {name: value for name, value in found.items() if value is not None}


def _value(value: Any) -> Any:
    if not isinstance(value, Raw):
        return value
    try:
        return loads(bytes(value))
    except ValueError:
        return None


def extra_of(*parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """One dict of several, the later ones counting where names are the same; None where all are empty."""
    found = {name: value for part in parts for name, value in part.items()}
    return found or None


def _token_paths() -> dict[str, list[tuple[str, ...]]]:
    """By the first name: where places.py finds ids and logprobs, up to the first list on the way."""
    rows = (*COMPLETION_IDS, *PROMPT_IDS)
    found: dict[str, list[tuple[str, ...]]] = {}
    for path in [row.ids for row in rows] + [row.logprobs for row in rows if row.logprobs]:
        names = tuple(_until_list(path))
        found.setdefault(names[0], []).append(names[1:])
    # `completion_logprobs` are read from answers of Anthropic's shape alone, but stand there in all.
    return {name: [*rest, ("completion_logprobs",)] if name == "raw_output" else rest for name, rest in found.items()}


def _until_list(path: Iterable[str | int]) -> Iterable[str]:
    for step in path:
        if not isinstance(step, str):
            return
        yield step


_TOKEN_PATHS: Final = _token_paths()


def _without_tokens(name: str, value: Any) -> Any:
    """A field without the ids and logprobs that become arrays of the step; None where nothing else is in it."""
    paths = _TOKEN_PATHS.get(name)
    if paths is None:
        return value
    if not isinstance(value, dict):
        return None
    inside = {path[0] for path in paths if path}
    return {key: item for key, item in value.items() if key not in inside and item is not None} or None
