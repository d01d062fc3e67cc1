"""Token counts of OpenAI's protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from rollout_trace.data.model import Usage

if TYPE_CHECKING:
    from rollout_trace.wire.facts import ResponseFacts

_DETAILS = ("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details")


def usage_of(counts: dict[str, Any]) -> Usage:
    """Usage in OpenAI's names (of /responses too). A count that is null, missing or no whole number is None."""
    rest = {name: value for name, value in counts.items() if value is not None and name != "total_tokens"}
    details: dict[str, Any] = {}
    for name in _DETAILS:
        if isinstance(rest.get(name), dict):
            details.update((key, value) for key, value in rest.pop(name).items() if value is not None)
    return Usage(
        input=pop_count(rest, "prompt_tokens" if "prompt_tokens" in rest else "input_tokens"),
        output=pop_count(rest, "completion_tokens" if "completion_tokens" in rest else "output_tokens"),
        cache_read=pop_count(details, "cached_tokens"),
        cache_write=pop_count(details, "cache_write_tokens"),
        reasoning=pop_count(details, "reasoning_tokens"),
        extra={**rest, **details} or None,
    )


def add_usage(facts: ResponseFacts, counts: Any) -> None:
    """Adds the counts of a body, in OpenAI's names, to those of the bodies before it; nothing that is no object."""
    if isinstance(counts, dict):
        facts.counts = larger(facts.counts, counts)
        facts.usage = usage_of(facts.counts)


def larger(before: dict[str, Any], counts: dict[str, Any]) -> dict[str, Any]:
    """Counts of a stream so far, field by field: those of each chunk are totals, so that the larger one holds.

    A later chunk may leave some out, or repeat them as zeros. Of what is no number the later one holds.
    """
    found = dict(before)
    for name, value in counts.items():
        known = found.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            found[name] = larger(known, value)
        elif value is not None and not (is_count(value) and is_count(known) and known > value):
            found[name] = value
    return found


def is_count(value: Any) -> TypeGuard[float]:
    """Whether a value is a whole number of tokens. Gateways that compute counts send 5 as 5.0."""
    return type(value) in (int, float) and value >= 0 and value == value // 1


def pop_count(counts: dict[str, Any], name: str) -> int | None:
    """Takes a count out; None where it is null, missing or no whole number, which stays."""
    value = counts.get(name)
    if not is_count(value):
        return None
    del counts[name]
    return int(value)
