"""Extras: whether those of a step fit its ids, and those of a row, joined from its steps.

A step's prompt and completion are the row's first ids, so positions of a step are positions of the row. What is of a
completion comes from the step that sampled it. What is of all positions (experts, scores of prompts) comes from the
first step that gives it: for a prompt, the step whose forward pass filled the cache that the later ones read; for a
completion, the step that sampled it, whose arrays are the first to have these positions. The last sampled token has
no experts before the next step reads it. From where a row leaves a completion (``on_drift="mask"``) nothing comes from
the step that sampled it: the next one read what stands there.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from operator import attrgetter, is_not, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.extras import EXTRAS, PolicySpan, SamplingMask, TopTokens, hold_sampled
from rollout_trace.data.model import STORED, shared
from rollout_trace.data.rows import RowSpan
from rollout_trace.data.tokens import readonly
from rollout_trace.train.sequence import Placeholder

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

Read: TypeAlias = "tuple[Step, int, int]"
"""A step of a row, with begin and end of its whole completion."""
Placed: TypeAlias = "tuple[Step, int, int, int]"
"""The same, and the position up to which the row has the ids of its prompt and completion."""
LeftOut: TypeAlias = dict[str, list[str]]
"""Ids of steps whose extras are not used, by field and reason."""


# Of a step


_carried = attrgetter(
    "policy_version", "top_tokens", "sampling_mask", "policy_spans",
    *(STORED + name for name in ("routed_experts", "prompt_logprobs", "prompt_top_tokens")),
)  # fmt: skip


def has_extras(step: Step) -> bool:
    """Returns whether a step has anything that a row carries beside ids and logprobs. Nothing is decoded."""
    # Most answers of vLLM have some `extra`: only this of it is carried on.
    return any(map(is_not, _carried(step), repeat(None))) or "mm_placeholders" in (step.extra or ())


def misfit(step: Step, name: str, n_prompt: int, n_completion: int) -> str | None:
    """Returns a phrase on how an extra does not fit its step's ids; None if it fits, or the step has none."""
    value = shared(step, name)
    if value is None:
        return None
    if name == "policy_spans":
        is_whole = _covers(value, n_completion)
        return None if is_whole else f"policy_spans {list(map(tuple, value))} of {n_completion} ids"
    if name == "routed_experts":
        most = n_prompt + n_completion - 1
        # Fewer rows than tokens are no fault: the engine was asked to leave the first ones out.
        return f"{len(value)} rows of routed_experts for at most {most} positions" if len(value) > most else None
    of_prompt = name in ("prompt_logprobs", "prompt_top_tokens")
    wanted, of = (n_prompt, "prompt ids") if of_prompt else (n_completion, "completion ids")
    found = len(value if name == "sampling_mask" else getattr(value, "ids", value))
    if found != wanted:
        return f"{found} rows of {name} for {wanted} {of}"
    return _bad_mask(value, step) if name == "sampling_mask" else _unequal(name, value)


def _unequal(name: str, top: Any) -> str | None:
    """Returns a phrase on how the shapes of the alternatives' ids and logprobs differ."""
    if not hasattr(top, "ids"):
        return None
    ids, logprobs = [[len(rows), *_row_kind(rows)[0]] for rows in (top.ids, top.logprobs)]
    if ids == logprobs and len(ids) == 2:
        return None
    return f"{name} with ids of shape {ids} and logprobs of shape {logprobs}"


def _row_kind(rows: Any) -> tuple[tuple[int, ...], Any]:
    """Shape of one row, and dtype, of an array or a span of one."""
    runs = getattr(rows, "runs", None)
    array = rows if runs is None else runs[0][0].rows(0, 0)
    return array.shape[1:], array.dtype


def _bad_mask(mask: SamplingMask, step: Step) -> str | None:
    import numpy as np

    total = int(mask.counts.sum())
    are_flat = mask.ids.ndim == mask.counts.ndim == 1 and mask.counts.dtype.kind in "iu"
    if not are_flat or (mask.counts < 0).any() or total != len(mask.ids):
        return f"sampling_mask with {len(mask.ids)} ids for counts whose sum is {total}"
    if mask.logprobs is not None and len(mask.logprobs) != len(mask.ids):
        return f"sampling_mask with {len(mask.ids)} ids and {len(mask.logprobs)} logprobs"
    sampled = np.asarray(step.completion_token_ids)
    # As the decoders require of engines: over the ids of a position the sampled one must have a probability.
    named = hold_sampled(mask, sampled)
    if named.all():
        return None
    at = int(named.argmin())
    return f"sampling_mask without the sampled token {sampled[at]} at position {at}"


def _covers(spans: tuple[PolicySpan, ...], length: int) -> bool:
    """Returns whether spans are contiguous, from 0 to ``length``."""
    at = 0
    for begin, end, _ in spans:
        if begin != at or end < begin:
            return False
        at = end
    return at == length


def versions_of(step: Step, n_completion: int) -> list[PolicySpan]:
    """Which version of the weights sampled which positions of the completion; empty where it is not known.

    A ``policy_version`` that is not what the spans give, all of them or each once, joined by commas, was set after the
    recording, and counts for the whole completion: the engine's own label may be ``default`` for all.
    """
    spans, version = step.policy_spans, step.policy_version
    texts = [str(span.version) for span in spans or ()]
    is_own = version is None or str(version) in (",".join(texts), ",".join(dict.fromkeys(texts)))
    if spans and is_own and _covers(spans, n_completion):
        return list(spans)
    return [] if version is None else [PolicySpan(0, n_completion, version)]


def placeholders(step: Step) -> Iterator[Placeholder]:
    """The images and the like in a step's prompt, as vLLM sends them: ``mm_placeholders`` of the answer, with the
    hashes of the request's ``features``."""
    found = step.extra.get("mm_placeholders") if isinstance(step.extra, Mapping) else None
    if not isinstance(found, Mapping):
        return
    features = step.sampling.get("features") if isinstance(step.sampling, Mapping) else None
    hashes = features.get("mm_hashes") if isinstance(features, Mapping) else None
    for modality, ranges in found.items():
        names = hashes.get(modality) if isinstance(hashes, Mapping) else None
        named = isinstance(names, list) and isinstance(ranges, list) and len(names) == len(ranges)
        for at, one in enumerate(ranges if isinstance(ranges, list) else ()):
            offset, length = (one.get("offset"), one.get("length")) if isinstance(one, Mapping) else (None, None)
            if type(offset) is int and type(length) is int and offset >= 0 and length > 0:
                name = names[at] if named and names is not None else None
                yield Placeholder(modality, offset, length, name if isinstance(name, str) else None)


# Of a row


def row_extras(steps: list[Placed], read: list[Read], length: int, left_out: LeftOut) -> dict[str, Any]:
    """The fields of ``Sequence`` for the extras of a row's first ``length`` tokens. What is unused is in ``left_out``.

    ``steps``: those whose completions are in the row, at least in part; ``read``: those whose prompts are.
    """
    having = {name: _having(name, steps, left_out) for name in EXTRAS}
    fields = {
        "prompt_logprobs": _prompt_logprobs(having["prompt_logprobs"], length),
        "prompt_top_tokens": _prompt_top_tokens(having["prompt_top_tokens"], length),
        "top_tokens": _top_tokens(having["top_tokens"], length),
        "sampling_mask": _sampling_mask(having["sampling_mask"], len(steps), length, left_out),
        "policy_spans": _policy_spans(steps),
        "placeholders": _placeholders(read, length, left_out),
    }
    return {**fields, **_experts(having["routed_experts"], length, left_out)}


def _having(name: str, steps: list[Placed], left_out: LeftOut) -> list[Placed]:
    """The steps that have an extra which fits their ids."""
    found = []
    for one in steps:
        step, start, end, _ = one
        value = shared(step, name)
        if value is None:
            continue
        if misfit(step, name, start, end - start) is not None:
            left_out.setdefault(f"{name}: not aligned", []).append(step.id)
        elif len(getattr(value, "ids", value)):
            # Without rows it has no values, and its other axes, which no data bounds, must not size the row's array.
            found.append(one)
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
        """Reopens a range that was taken but has no value."""
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
    ranges: Iterable[tuple[int, int, tuple[Any, ...]]],
    targets: tuple[Any, ...],
    is_missing: Callable[[Any], Any] | None = None,
) -> Any:
    """Copies rows into the positions of ``targets`` that are still open; int8 [length]: 1 where rows were copied.

    ``ranges``: for each step the position of its first row, that before which its rows end at the latest, and its rows
    for each target. ``is_missing``: of rows in the first target; those at the beginning of a prompt that were not
    scored stay open for later steps.
    """
    import numpy as np

    length = len(targets[0])
    gaps, given = _Gaps(length), np.zeros(length, np.int8)
    for start, stop, arrays in ranges:
        for low, high in gaps.take(start, min(start + len(arrays[0]), stop)):
            for rows, target in zip(arrays, targets, strict=True):
                into = target[low:high]
                _copy(rows, low - start, high - start, into if into.ndim == 1 else into[..., : _row_kind(rows)[0][-1]])
            given[low:high] = 1
            if is_missing is not None and (missing := is_missing(targets[0][low:high])).any():
                given[low:high][missing] = 0
                gaps.open(low, high if missing.all() else low + int(np.argmin(missing)))
    return given


def _experts(steps: list[Placed], length: int, left_out: LeftOut) -> dict[str, Any]:
    import numpy as np

    found = [(step, end - 1, stop, shared(step, "routed_experts")) for step, _, end, stop in steps]
    kinds = {_row_kind(rows) for *_, rows in found}
    if len(kinds) != 1:
        if kinds:
            left_out.setdefault("routed_experts: shapes differ", []).extend(step.id for step, *_ in found)
        return {}
    ((shape, dtype),) = kinds
    experts = np.zeros((length, *shape), dtype)
    given = _fill([(end - len(rows), stop, (rows,)) for _, end, stop, rows in found], (experts,))
    return {"routed_experts": readonly(experts), "routed_experts_mask": readonly(given)} if given.any() else {}


def _prompt_logprobs(steps: list[Placed], length: int) -> Any:
    import numpy as np

    if not steps:
        return None
    values = np.full(length, np.nan, np.float32)
    _fill([(0, stop, (shared(step, "prompt_logprobs"),)) for step, _, _, stop in steps], (values,), np.isnan)
    return readonly(values)


def _prompt_top_tokens(steps: list[Placed], length: int) -> TopTokens | None:
    if not steps:
        return None
    found = [(stop, shared(step, "prompt_top_tokens")) for step, _, _, stop in steps]
    ids, logprobs = _filler(length, max(_row_kind(top.ids)[0][0] for _, top in found))
    ranges = [(0, stop, (top.ids, top.logprobs)) for stop, top in found]
    # A position that has no ids was not scored.
    _fill(ranges, (ids, logprobs), lambda rows: (rows < 0).all(axis=1))
    return TopTokens(readonly(ids), readonly(logprobs))


def _top_tokens(steps: list[Placed], length: int) -> TopTokens | None:
    found = [(step.top_tokens, start, stop) for step, start, _, stop in steps if step.top_tokens is not None]
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
            left_out.setdefault("sampling_mask: missing in another step", []).extend(step.id for step, *_ in steps)
        return None
    counts = np.zeros(length, np.int32)
    ids, logprobs = [], []
    for step, start, _, stop in steps:
        mask = step.sampling_mask
        assert mask is not None
        kept = mask.counts[: stop - start]
        counts[start : start + len(kept)] = kept
        total = int(kept.sum())
        ids.append(mask.ids[:total])
        logprobs.append(None if mask.logprobs is None else mask.logprobs[:total])
    known = [one for one in logprobs if one is not None]
    joined = readonly(np.concatenate(known)) if len(known) == len(ids) else None
    return SamplingMask(readonly(np.concatenate(ids)), readonly(counts), joined)


def _policy_spans(steps: list[Placed]) -> tuple[PolicySpan, ...] | None:
    found = []
    for step, start, end, stop in steps:
        for first, last, version in versions_of(step, end - start):
            if first < last and start + first < stop:
                found.append(PolicySpan(start + first, min(start + last, stop), version))
    return tuple(found) or None


def _placeholders(steps: list[Read], length: int, left_out: LeftOut) -> tuple[Placeholder, ...]:
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
