"""Token counts of an answer. The places of each count are in ``rollout_trace/data/counts.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from rollout_trace.data.counts import COUNTS, USAGES, Shape, count_at, counts_from, value_at
from rollout_trace.data.model import Usage, new_usage

if TYPE_CHECKING:
    from rollout_trace.wire.facts import ResponseFacts

_SAMPLED: Final = frozenset(row.path for row in COUNTS if row.count in ("output", "reasoning"))
_OF_PROMPT: Final = {row.path for row in COUNTS if row.count in ("input", "tools", "cache_read", "cache_write")}
_DETAILS: Final = frozenset(row.path[0] for row in COUNTS if row.shape in ("openai", "anthropic") and row.path[1:])


def usage_of(counts: Mapping[str, Any], shape: Shape = "openai") -> Usage:
    """The usage that an object of counts makes. A count that is null, missing or no whole number is None.

    What has no field of its own is in ``extra``, that of OpenAI's details beside the rest.
    """
    rest = {name: value for name, value in counts.items() if value is not None}
    details = {name: dict(value) for name, value in rest.items() if name in _DETAILS and isinstance(value, dict)}
    rest |= details
    found, said = counts_from(shape, partial(count_at, rest))
    for *way, name in said:
        del value_at(rest, way)[name]
    for name, values in details.items():
        others = {key: value for key, value in values.items() if value is not None}
        del rest[name]
        rest |= others if shape == "openai" or not others else {name: others}
    return new_usage(**found, extra=rest or None)


def add_usage(facts: ResponseFacts, counts: Any) -> None:
    """Adds the counts of a body, in OpenAI's names, to those of the bodies before it; nothing that is no object."""
    if not isinstance(counts, dict):
        return
    read, written, total = counts.get("prompt_tokens"), counts.get("completion_tokens"), counts.get("total_tokens")
    is_usual = type(read) is type(written) is type(total) is int and read >= 0 <= written and total == read + written
    if is_usual and not facts.counts and len(counts) - list(counts.values()).count(None) == 3:
        # Of nearly all answers. The table would be searched for twenty names.
        facts.counts, facts.usage = counts, new_usage(input=read, output=written)
    else:
        facts.counts = merged(facts.counts, counts)
        facts.usage = usage_of(facts.counts) if facts.counts else None


def merged(before: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and costs of a stream so far, field by field: each chunk has totals, so that the later one holds.

    A later chunk may leave some out, or repeat them as zeros. A zero holds where the same chunk counts more of the
    prompt elsewhere: tokens that were to be written to a cache were read from it. Of sampled tokens the larger number
    holds.
    """
    if not before:
        return {name: value for name, value in counts.items() if value is not None}

    @cache
    def has_moved() -> bool:
        return any((count_at(counts, path) or 0) > (count_at(before, path) or 0) for path in _OF_PROMPT)

    return _merged(before, counts, (), has_moved)


def _merged(
    before: Mapping[str, Any], counts: Mapping[str, Any], way: tuple[str, ...], has_moved: Callable[[], bool]
) -> dict[str, Any]:
    found = dict(before)
    for name, value in counts.items():
        known, path = found.get(name), (*way, name)
        if isinstance(value, dict) and isinstance(known, dict):
            found[name] = _merged(known, value, path, has_moved)
        elif value is not None and not _is_less(value, known, path, has_moved):
            found[name] = value
    return found


def _is_less(value: Any, known: Any, path: tuple[str, ...], has_moved: Callable[[], bool]) -> bool:
    """Whether a number is no later total, but what a chunk has that does not count any more."""
    if not (_is_number(value) and _is_number(known) and known > value):
        return False
    return path in _SAMPLED or not (value or has_moved())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def take_usage(fields: dict[str, Any], *, of_choice: bool = False) -> dict[str, Any]:
    """Takes counts from where some providers put them among the fields of a body, or of a choice; empty without any."""
    found: dict[str, Any] = {}
    for place in USAGES:
        *way, name = place.path
        holder: Any = value_at(fields, way) if place.of_choice is of_choice else None
        counts = holder.get(name) if isinstance(holder, dict) else None
        # Something else may have the same name: in Groq's whole answers it is what its caches held.
        if isinstance(counts, dict) and usage_of(counts).output is not None:
            found = merged(found, counts)
            del holder[name]
            if way and not holder:
                del fields[way[0]]
    return found
