"""Whether the extras of a step fit its token ids, and what of them a row uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.extras import PolicySpan, TopTokenRows
from rollout_trace.data.model import shared
from rollout_trace.train.sequence import Placeholder

if TYPE_CHECKING:
    from rollout_trace.data.extras import SamplingMask, TopTokens
    from rollout_trace.data.model import Step
    from rollout_trace.data.rows import RowSpan
    from rollout_trace.data.tokens import FloatArray

    TopStored: TypeAlias = TopTokenRows | TopTokens
    Stored: TypeAlias = RowSpan | FloatArray


def has_extras(step: Step) -> bool:
    """Returns whether a step has anything that a row carries beside ids and logprobs. Nothing is decoded."""
    return (
        step.policy_version is not None
        # Most answers of vLLM have some `extra`: only this of it is carried on.
        or (step.extra is not None and "mm_placeholders" in step.extra)
        or step.top_tokens is not None
        or step.sampling_mask is not None
        or step.policy_spans is not None
        or shared(step, "routed_experts") is not None
        or shared(step, "prompt_logprobs") is not None
        or shared(step, "prompt_top_tokens") is not None
    )


def misfit(step: Step, name: str, n_prompt: int, n_completion: int) -> str | None:
    """How an extra does not fit the ids of its step, as a phrase; None where it fits, or the step has none."""
    value = shared(step, name)
    if value is None:
        return None
    if name in ("prompt_logprobs", "prompt_top_tokens"):
        return _counts(name, len(_ids(value)), n_prompt, "prompt ids") or _unequal(name, value)
    if name == "routed_experts":
        most = n_prompt + n_completion - 1
        # Fewer rows than tokens are no fault: the engine was asked to leave the first ones out.
        return f"{len(value)} rows of routed_experts for at most {most} positions" if len(value) > most else None
    if name == "top_tokens":
        return _counts(name, len(value), n_completion, "completion ids") or _unequal(name, value)
    if name == "sampling_mask":
        return _counts(name, len(value), n_completion, "completion ids") or _bad_mask(value, step)
    return None if _covers(value, n_completion) else f"policy_spans {list(map(tuple, value))} of {n_completion} ids"


def has_rows(step: Step, name: str) -> bool:
    """Returns whether an extra that is not None is of at least one position."""
    return len(_ids(shared(step, name))) > 0


def _ids(value: Any) -> Any:
    return value.ids if isinstance(value, TopTokenRows) or hasattr(value, "ids") else value


def _counts(name: str, found: int, wanted: int, of: str) -> str | None:
    return None if found == wanted else f"{found} rows of {name} for {wanted} {of}"


def _unequal(name: str, value: Any) -> str | None:
    if not hasattr(value, "ids"):
        return None
    shapes = [_shape(value.ids), _shape(value.logprobs)]
    if shapes[0] == shapes[1] and len(shapes[0]) == 2:
        return None
    return f"{name} with ids of shape {list(shapes[0])} and logprobs of shape {list(shapes[1])}"


def _shape(rows: Any) -> tuple[int, ...]:
    return (len(rows), *row_kind(rows)[0])


def row_kind(rows: Any) -> tuple[tuple[int, ...], Any]:
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
    named = np.zeros(len(sampled), np.bool_)
    named[np.repeat(np.arange(len(sampled)), mask.counts)[mask.ids == np.repeat(sampled, mask.counts)]] = True
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

    A ``policy_version`` that somebody set after the recording counts for the whole completion: the engine's own label
    may be ``default`` for all.
    """
    spans, version = step.policy_spans, step.policy_version
    if spans and _covers(spans, n_completion) and _is_of(version, [span.version for span in spans]):
        return list(spans)
    return [] if version is None else [PolicySpan(0, n_completion, version)]


def _is_of(version: str | int | None, versions: list[str | int]) -> bool:
    """Returns whether a step's version is what its spans give: those of all spans, or each once, joined by commas."""
    if version is None:
        return True
    texts = list(map(str, versions))
    return str(version) in (",".join(texts), ",".join(dict.fromkeys(texts)))


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
