"""Token counts of OpenAI's protocols."""

from __future__ import annotations

from typing import Any

from rollout_trace.data.model import Usage

_DETAILS = ("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details")


def usage_of(counts: dict[str, Any]) -> Usage:
    """Usage in OpenAI's names (of /responses too). A count that is null, missing or no whole number is None."""
    rest = {name: value for name, value in counts.items() if value is not None and name != "total_tokens"}
    details: dict[str, Any] = {}
    for name in _DETAILS:
        if isinstance(rest.get(name), dict):
            details.update((key, value) for key, value in rest.pop(name).items() if value is not None)
    return Usage(
        input=_pop_count(rest, "prompt_tokens" if "prompt_tokens" in rest else "input_tokens"),
        output=_pop_count(rest, "completion_tokens" if "completion_tokens" in rest else "output_tokens"),
        cache_read=_pop_count(details, "cached_tokens"),
        cache_write=_pop_count(details, "cache_write_tokens"),
        reasoning=_pop_count(details, "reasoning_tokens"),
        extra={**rest, **details} or None,
    )


def _pop_count(counts: dict[str, Any], name: str) -> int | None:
    value = counts.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    del counts[name]
    return value
