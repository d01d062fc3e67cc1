"""Findings on what looks like a usage, a cost or an error, and stands in ``extra`` because no place for it is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rollout_trace.data.costs import provider_cost
from rollout_trace.data.counts import amount_of, is_count
from rollout_trace.data.model import Usage

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_DEPTH: Final = 3
_TOKENS: Final = re.compile("token", re.IGNORECASE)
_CACHED: Final = re.compile("cache.*token|token.*cache", re.IGNORECASE)
_REASONED: Final = re.compile("(reason|think|thought).*token|token.*(reason|think|thought)", re.IGNORECASE)
_COST: Final = re.compile(r"(^|_)costs?(_|$)|Cost", re.ASCII)
_ERROR: Final = re.compile(r"(\w+_)?err(or)?s?(_?(message|msg|code))?", re.IGNORECASE)
_CALLERS_OWN: Final = frozenset({"metadata"})


def unread_problems(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Code and message of each finding: one for each field, with the number of steps."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in steps:
        for code, path in _unread(step) if step.status != "cached" else ():
            found.setdefault((code, path), []).append(step.id)
    for (code, path), ids in found.items():
        where = f"step {ids[0]}" if len(ids) == 1 else f"{len(ids)} steps, the first {ids[0]}"
        yield code, f"`{path}` ({where}) is in no place that is known; please report the provider and the field."


def _unread(step: Step) -> Iterator[tuple[str, str]]:
    usage, completion = step.usage or Usage(), step.completion
    counts, rest = list(_fields("usage.extra", usage.extra)), list(_fields("extra", step.extra))
    rest += _fields("completion.extra", None if completion is None else completion.extra)
    has_cache = usage.cache_read is not None or usage.cache_write is not None
    known = ((_TOKENS, usage.output is not None), (_CACHED, has_cache), (_REASONED, usage.reasoning is not None))
    names = [pattern for pattern, is_known in known if not is_known]
    # Counts are seldom beside the usage where there is one.
    for path, name, value in counts if usage.output is not None else [*counts, *rest]:
        if is_count(value) and value and any(pattern.search(name) for pattern in names):
            yield "usage_unread", path
    # With one's own key OpenRouter's fee is no cost of the call: read, and not known.
    is_own_key = (usage.extra or {}).get("is_byok")
    if step.cost is None and step.choice == 0 and provider_cost(step) is None and not is_own_key:
        costs = (path for path, name, value in [*counts, *rest] if _COST.search(name) and amount_of(value))
        yield from (("usage_unread", path) for path in costs)
    if step.status == "ok" and step.error is None:
        yield from (("error_unread", path) for path, name, value in rest if _ERROR.fullmatch(name) and value)


def _fields(path: str, values: Any, depth: int = _DEPTH) -> Iterator[tuple[str, str, Any]]:
    """Path, name and value of each field of an object and of the objects in it."""
    for name, value in values.items() if isinstance(values, Mapping) and depth else ():
        if name not in _CALLERS_OWN:
            yield f"{path}.{name}", name, value
            yield from _fields(f"{path}.{name}", value, depth - 1)
