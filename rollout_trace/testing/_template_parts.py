"""Finds the fields of an assistant message in the text that a chat template makes of it, and in its ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .tokenizer import Part


class Field(NamedTuple):
    """Where a field of the message is in the text of the template."""

    kind: Any
    call: int
    begin: int
    end: int
    shown: str  # what a client sees of it


def fields_of(message: Mapping[str, Any], text: str) -> list[Field] | None:
    """The fields in their order; None where one is not found."""
    wanted: list[tuple[Any, int, list[str], str]] = []
    for kind, value in (("reasoning", message.get("reasoning")), ("content", message.get("content"))):
        if value:
            wanted.append((kind, 0, [str(value)], str(value)))
    for at, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"].get("arguments") or ""
        wanted.append(("call_name", at, [name], name))
        wanted.append(("call_arguments", at, _spellings(arguments), arguments))
    found: list[Field] = []
    cursor = 0
    for kind, number, spellings, shown in wanted:
        places = [(text.find(one, cursor), one) for one in spellings if text.find(one, cursor) >= 0]
        if not places:
            return None
        begin, spelling = min(places, key=lambda place: (place[0], -len(place[1])))
        cursor = begin + len(spelling)
        found.append(Field(kind, number, begin, cursor, shown))
    return found


def _spellings(arguments: str) -> list[str]:
    """How templates write arguments: as they are, or as JSON again."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return [arguments]
    dense = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return list(dict.fromkeys([arguments, json.dumps(value, ensure_ascii=False), dense]))


def parts_of(ids: Sequence[int], pieces: Sequence[str], fields: Sequence[Field]) -> list[Part] | None:
    """Runs of ids by field. A token that is in a field and beside it belongs to the field, with its own text of it.
    None where two fields share a token, or a call has no token before or after it."""
    run = _Run(ids, pieces)
    parts: list[Part] = []
    for field in fields:
        between = run.up_to(field.begin)
        if field.kind == "call_name" and not _split(parts, between, field.call):
            return None
        if field.kind != "call_name" and between:
            parts.append(Part("template", between))
        first = run.at
        own = run.until(field.end)
        if run.begins[first : first + 1] > [field.begin] or not own:
            return None
        spans = list(zip(run.begins, pieces, strict=True))[first : run.at]
        parts.append(Part(field.kind, own, field.call, _shown(field, spans)))
    rest = list(ids[run.at :])
    if fields and fields[-1].kind == "call_arguments":
        if not rest:
            return None
        parts.append(Part("call_end", [rest.pop(0)], fields[-1].call, [""]))
    return [*parts, Part("template", rest)] if rest else parts


class _Run:
    """Takes ids from the left, by the place of their texts."""

    def __init__(self, ids: Sequence[int], pieces: Sequence[str]) -> None:
        self._ids = ids
        self.ends = list(accumulate(map(len, pieces)))
        self.begins = [end - len(piece) for end, piece in zip(self.ends, pieces, strict=True)]
        self.at = 0

    def up_to(self, place: int) -> list[int]:
        """The ids whose texts end there or before."""
        return self._take(lambda at: self.ends[at] <= place)

    def until(self, place: int) -> list[int]:
        """The ids whose texts begin before it."""
        return self._take(lambda at: self.begins[at] < place)

    def _take(self, is_taken: Callable[[int], bool]) -> list[int]:
        first = self.at
        while self.at < len(self._ids) and is_taken(self.at):
            self.at += 1
        return list(self._ids[first : self.at])


def _split(parts: list[Part], between: list[int], call: int) -> bool:
    """Add the ids before a call: the end of the call before it, and its own beginning. False: there are too few."""
    if len(between) < (2 if call else 1):
        return False
    if call:
        parts.append(Part("call_end", [between.pop(0)], call - 1, [""]))
    parts.append(Part("call_begin", between, call, ["", *[None] * (len(between) - 1)]))
    return True


def _shown(field: Field, spans: Sequence[tuple[int, str]]) -> list[str]:
    """What each token adds to the field. One that is spelled anew comes whole, with its last token."""
    own = [text[max(0, field.begin - begin) : field.end - begin] for begin, text in spans]
    if field.kind == "call_name" or "".join(own) != field.shown:
        return [*[""] * (len(own) - 1), field.shown]
    return own
