"""The extras of a row, joined from those of its steps: routed experts, scores of prompts, sampling masks, versions.

A step's prompt and completion are the row's first ids, so positions of a step are positions of the row. What is of a
completion comes from the step that sampled it. What is of all positions (experts, scores of prompts) comes from the
first step that gives it: for a prompt, the step whose forward pass filled the cache that the later ones read; for a
completion, the step that sampled it, whose arrays are the first to have these positions. The last sampled token has
no experts before the next step reads it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.extras import EXTRAS, PolicySpan, SamplingMask, TopTokens
from rollout_trace.data.model import shared
from rollout_trace.data.rows import RowSpan
from rollout_trace.data.tokens import readonly
from rollout_trace.train.step_extras import has_rows, misfit, placeholders, row_kind, versions_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.train.sequence import Placeholder

Placed: TypeAlias = "tuple[Step, int, int]"
"""A step of a row, with begin and end of its whole completion."""
LeftOut: TypeAlias = dict[str, list[str]]
"""Ids of steps whose extras are not used, by field and reason."""


def row_extras(steps: list[Placed], read: list[Placed], length: int, left_out: LeftOut) -> dict[str, Any]:
    """The fields of ``Sequence`` for the extras of a row's first ``length`` tokens.

    Args:
        steps: those whose completions are in the row, at least in part.
        read: those whose prompts are: the last one's completion may lie behind the cut.
        left_out: what is not used is added here.
    """
    having = {name: _having(name, steps, left_out) for name in EXTRAS}
    fields = {
        "prompt_logprobs": _prompt_logprobs(having["prompt_logprobs"], length),
        "prompt_top_tokens": _prompt_top_tokens(having["prompt_top_tokens"], length),
        "top_tokens": _top_tokens(having["top_tokens"], length),
        "sampling_mask": _sampling_mask(having["sampling_mask"], len(steps), length, left_out),
        "policy_spans": _policy_spans(steps, length),
        "placeholders": _placeholders(read, length, left_out),
    }
    return {**fields, **_experts(having["routed_experts"], length, left_out)}


def _having(name: str, steps: list[Placed], left_out: LeftOut) -> list[Placed]:
    """The steps that have an extra which fits their ids."""
    found = []
    for step, start, end in steps:
        if shared(step, name) is None:
            continue
        if misfit(step, name, start, end - start) is not None:
            left_out.setdefault(f"{name}: not aligned", []).append(step.id)
        elif has_rows(step, name):
            # Without rows it has no values, and its other axes, which no data bounds, must not size the row's array.
            found.append((step, start, end))
    return found


class _Gaps:
    """The positions of a row that no step has given yet."""

    def __init__(self, length: int) -> None:
        self._open = [(0, length)]

    def take(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The open ranges within ``[start, stop)``, which are then closed."""
        first = at = bisect_right(self._open, start, key=itemgetter(1))
        found: list[tuple[int, int]] = []
        rest: list[tuple[int, int]] = []
        while at < len(self._open) and self._open[at][0] < stop:
            begin, end = self._open[at]
            low, high = max(begin, start), min(end, stop)
            found.append((low, high))
            rest += [part for part in ((begin, low), (high, end)) if part[0] < part[1]]
            at += 1
        self._open[first:at] = rest
        return found

    def open(self, start: int, stop: int) -> None:
        """Opens a range again that was taken, and for which there is no value."""
        if start < stop:
            insort(self._open, (start, stop))


def _copy(rows: Any, first: int, end: int, into: Any) -> None:
    """Copies the rows ``[first, end)`` of an array, or of a span of one: of a span these rows alone are read."""
    if not isinstance(rows, RowSpan):
        into[:] = rows[first:end]
        return
    at = 0
    for block, begin, stop in rows.part(first, end):
        into[at : at + stop - begin] = block.rows(begin, stop)
        at += stop - begin


def _fill(
    ranges: Iterable[tuple[int, tuple[Any, ...]]],
    targets: tuple[Any, ...],
    is_missing: Callable[[Any], Any] | None = None,
) -> Any:
    """Copies rows into the positions of ``targets`` that are still open; int8 [length]: 1 where rows were copied.

    Args:
        ranges: for each step, in order, the position of its first row, and its rows for each target.
        is_missing: bool [rows] of rows copied to the first target: those at the beginning of a prompt that were not
            scored stay open for later steps.
    """
    import numpy as np

    length = len(targets[0])
    gaps, given = _Gaps(length), np.zeros(length, np.int8)
    for start, arrays in ranges:
        for low, high in gaps.take(start, min(start + len(arrays[0]), length)):
            for rows, target in zip(arrays, targets, strict=True):
                into = target[low:high]
                _copy(rows, low - start, high - start, into if into.ndim == 1 else into[..., : row_kind(rows)[0][-1]])
            given[low:high] = 1
            if is_missing is not None and (missing := is_missing(targets[0][low:high])).any():
                given[low:high][missing] = 0
                gaps.open(low, high if missing.all() else low + int(np.argmin(missing)))
    return given


def _experts(steps: list[Placed], length: int, left_out: LeftOut) -> dict[str, Any]:
    import numpy as np

    found = [(step, end - 1, shared(step, "routed_experts")) for step, _, end in steps]
    kinds = {row_kind(rows) for _, _, rows in found}
    if len(kinds) != 1:
        if kinds:
            left_out.setdefault("routed_experts: shapes differ", []).extend(step.id for step, _, _ in found)
        return {}
    ((shape, dtype),) = kinds
    experts = np.zeros((length, *shape), dtype)
    given = _fill([(end - len(rows), (rows,)) for _, end, rows in found], (experts,))
    return {"routed_experts": readonly(experts), "routed_experts_mask": readonly(given)} if given.any() else {}


def _prompt_logprobs(steps: list[Placed], length: int) -> FloatArray | None:
    import numpy as np

    if not steps:
        return None
    values = np.full(length, np.nan, np.float32)
    _fill([(0, (shared(step, "prompt_logprobs"),)) for step, _, _ in steps], (values,), np.isnan)
    array: FloatArray = readonly(values)
    return array


def _prompt_top_tokens(steps: list[Placed], length: int) -> TopTokens | None:
    if not steps:
        return None
    found = [shared(step, "prompt_top_tokens") for step, _, _ in steps]
    ids, logprobs = _filler(length, max(row_kind(one.ids)[0][0] for one in found))
    _fill([(0, (one.ids, one.logprobs)) for one in found], (ids, logprobs), _has_no_ids)
    return TopTokens(readonly(ids), readonly(logprobs))


def _has_no_ids(ids: Any) -> Any:
    """bool [rows]: whether a position has no ids."""
    return (ids < 0).all(axis=1)


def _top_tokens(steps: list[Placed], length: int) -> TopTokens | None:
    found = [(step.top_tokens, start, min(end, length)) for step, start, end in steps if step.top_tokens is not None]
    if not found:
        return None
    ids, logprobs = _filler(length, max(top.ids.shape[1] for top, _, _ in found))
    for top, start, end in found:
        k = top.ids.shape[1]
        ids[start:end, :k] = top.ids[: end - start]
        logprobs[start:end, :k] = top.logprobs[: end - start]
    return TopTokens(readonly(ids), readonly(logprobs))


def _filler(length: int, k: int) -> tuple[Any, Any]:
    """Arrays [length, k] of ids -1 and logprobs NaN."""
    import numpy as np

    return np.full((length, k), -1, np.int32), np.full((length, k), np.nan, np.float32)


def _sampling_mask(steps: list[Placed], wanted: int, length: int, left_out: LeftOut) -> SamplingMask | None:
    import numpy as np

    if len(steps) < wanted:
        # With counts of 0 on sampled tokens a trainer would renormalise some of them and not others.
        if steps:
            left_out.setdefault("sampling_mask: missing in another step", []).extend(step.id for step, _, _ in steps)
        return None
    counts = np.zeros(length, np.int32)
    ids, logprobs = [], []
    for step, start, end in steps:
        mask = step.sampling_mask
        assert mask is not None
        kept = mask.counts[: min(end, length) - start]
        counts[start : start + len(kept)] = kept
        total = int(kept.sum())
        ids.append(mask.ids[:total])
        logprobs.append(None if mask.logprobs is None else mask.logprobs[:total])
    known = [one for one in logprobs if one is not None]
    joined = readonly(np.concatenate(known)) if len(known) == len(ids) else None
    return SamplingMask(readonly(np.concatenate(ids)), readonly(counts), joined)


def _policy_spans(steps: list[Placed], length: int) -> tuple[PolicySpan, ...] | None:
    found = []
    for step, start, end in steps:
        for begin, stop, version in versions_of(step, end - start):
            if begin < stop and start + begin < length:
                found.append(PolicySpan(start + begin, min(start + stop, length), version))
    return tuple(found) or None


def _placeholders(steps: list[Placed], length: int, left_out: LeftOut) -> tuple[Placeholder, ...]:
    """Those of the prompts; an item that several prompts repeat once, with the first hash that one of them names."""
    found: dict[tuple[str, int], Placeholder] = {}
    for step, start, _ in steps:
        for one in placeholders(step):
            if one.offset + one.length > start:
                left_out.setdefault("placeholders: not aligned", []).append(step.id)
                continue
            place = (one.modality, one.offset)
            if one.offset < length and (place not in found or found[place].hash is None):
                found[place] = one._replace(length=min(one.length, length - one.offset))
    return tuple(sorted(found.values(), key=itemgetter(1)))
