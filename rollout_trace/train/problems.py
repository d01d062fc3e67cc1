"""Looks for ids out of range, extras that are missing or do not fit, and fields of answers that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rollout_trace.data.costs import provider_cost
from rollout_trace.data.counts import amount_of, is_count
from rollout_trace.data.extras import EXTRAS
from rollout_trace.data.model import Usage, shared
from rollout_trace.data.tokens import Segment, Span
from rollout_trace.train.selection import n_prompt, n_sampled
from rollout_trace.train.step_extras import misfit

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray

_NOT_SENT = frozenset({"not_in_this_form", "refused", "not_sent"})
"""Codes of ``ExtraIssue`` for extras that did not come; those of the others came and were withheld."""
_DEPTH: Final = 3
_TOKENS: Final = re.compile("token", re.IGNORECASE)
_CACHED: Final = re.compile("cache.*token|token.*cache", re.IGNORECASE)
_REASONED: Final = re.compile("(reason|think|thought).*token|token.*(reason|think|thought)", re.IGNORECASE)
_COST: Final = re.compile(r"(^|_)costs?(_|$)|Cost", re.ASCII)
_ERROR: Final = re.compile(r"(\w+_)?err(or)?s?(_?(message|msg|code))?", re.IGNORECASE)
_CALLERS_OWN: Final = frozenset({"metadata"})


class InRange:
    """Called with the stored ids of a step, whether they are all in range. For the steps of one trajectory.

    Args:
        vocab_size: ids from 0 to below it are in range. None: all that are not negative.
    """

    def __init__(self, vocab_size: int | None) -> None:
        self.vocab_size = vocab_size
        self._sound: dict[Segment, int] = {}
        """Segments whose ids are in range, and those of their bases, up to this position."""

    def __call__(self, stored: Any) -> bool:
        """Returns whether ids are in range.

        Args:
            stored: what ``shared(step, ...)`` gives. False is certain for an array; for a span it may be due to an id
                before its start. None is in range.
        """
        if stored is None:
            return True
        return self._is_sound_span(stored) if isinstance(stored, Span) else self._is_sound(stored)

    def _is_sound_span(self, span: Span) -> bool:
        segment: Segment | None = span.segment
        stop, found = span.stop, []
        while segment is not None:
            known = self._sound.get(segment)
            if known is not None and known >= stop:
                break
            begin = segment.start if known is None else known
            if stop > begin:
                if not self._is_sound(segment.own_ids[begin - segment.start : stop - segment.start]):
                    return False
                found.append((segment, stop))
            if known is not None:
                break
            stop = min(stop, segment.start)
            segment = segment.base
        # Only now: one that is not in range, in a base, is in range for none of those above it.
        self._sound.update(found)
        return True

    def _is_sound(self, ids: IntArray) -> bool:
        import numpy as np

        if not len(ids):
            return True
        # Not the methods of the array, which take half as long again.
        least = np.minimum.reduce(ids)
        return bool(least >= 0 and (self.vocab_size is None or np.maximum.reduce(ids) < self.vocab_size))


def field_problems(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Yields code and message of each problem with extras and unread fields, with the number of steps that have it."""
    found: dict[tuple[str, str], tuple[str, dict[str, None]]] = {}
    for problems in (_extra_problems, _unread_problems):
        for step in steps:
            for code, field, text in problems(step):
                found.setdefault((code, field), (text, {}))[1][step.id] = None
    for (code, field), (text, ids) in found.items():
        first = next(iter(ids))
        where = f"step {first}" if len(ids) == 1 else f"{len(ids)} steps, the first {first}"
        yield code, f"{field} ({where}){text}"


def _extra_problems(step: Step) -> Iterator[tuple[str, str, str]]:
    """Yields the issues of ``Step.extra_issues``, and extras that do not fit the ids of their step."""
    for issue in step.extra_issues:
        code = "extra_not_sent" if issue.code in _NOT_SENT else "extra_withheld"
        yield code, f"{issue.field}, {issue.code}", f": {issue.message}"
    prompt, sampled = n_prompt(step), n_sampled(step)
    for name in EXTRAS:
        if shared(step, name) is None:
            continue
        if prompt is None or sampled is None:
            yield "extra_withheld", f"{name}, ids_missing", ": without token ids its positions are not known."
        elif (problem := misfit(step, name, prompt, sampled)) is not None:
            yield "extra_withheld", f"{name}, not_aligned", f": {problem}."


def _unread_problems(step: Step) -> Iterator[tuple[str, str, str]]:
    """Fields that look like a usage, a cost or an error, and stand in ``extra`` because no place for it is known."""
    for code, path in _unread(step) if step.status != "cached" else ():
        yield code, f"`{path}`", " is in no place that is known; please report the provider and the field."


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
