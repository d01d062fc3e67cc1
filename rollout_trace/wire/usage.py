"""Token counts of an answer. The places of each count are in ``rollout_trace/data/counts.py``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rollout_trace.data.counts import COUNTS, USAGES, Shape, count_at, counts_from, value_at
from rollout_trace.data.model import Usage, new_usage

if TYPE_CHECKING:
    from rollout_trace.wire.facts import ResponseFacts

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
    if isinstance(counts, dict):
        facts.counts = larger(facts.counts, counts)
        facts.usage = usage_of(facts.counts)


def larger(before: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and costs of a stream so far, field by field: each chunk has totals, so that the larger one holds.

    A later chunk may leave some out, or repeat them as zeros. Of what is no number the later one holds.
    """
    found = dict(before)
    for name, value in counts.items():
        known = found.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            found[name] = larger(known, value)
        elif value is not None and not (_is_number(value) and _is_number(known) and known > value):
            found[name] = value
    return found


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
            found = larger(found, counts)
            del holder[name]
            if way and not holder:
                del fields[way[0]]
    return found
