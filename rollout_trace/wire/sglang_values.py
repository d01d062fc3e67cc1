"""Values in the ``meta_info`` of SGLang and LMDeploy as arrays: scores of prompts, likeliest tokens, masks, experts.

Scores of a prompt begin at the request's ``logprob_start_len`` and go to its end. Routed experts are the bytes of an
int32 array; neither layers nor k are in the answer: they come out as one layer with layers * k columns,
[positions, 1, layers * k], to be reshaped with the model's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Raw, ValidationError, json

from rollout_trace.data.extras import ExtraIssue, SamplingMask, TopTokens
from rollout_trace.wire.extras import (
    TopRows,
    UnusableError,
    base64_of,
    checked_logprobs,
    experts_from,
    experts_of,
    mask_of,
    returns_issue,
    spans_of,
    starts_with,
)
from rollout_trace.wire.lenient import loads

if TYPE_CHECKING:
    import numpy.typing as npt

    from rollout_trace.data.extras import ExpertArray, PolicySpan
    from rollout_trace.data.tokens import FloatArray, IntArray

NULL: Final = Raw(b"null")
_MAX_FILL: Final = 1 << 20
"""Filler before the first row may be as much as the rows, and this: short answers must not take all memory."""

Meta: TypeAlias = Mapping[str, "list[Raw]"]
"""What came under each name: of an incremental stream the parts of its growing lists, else one value."""

_TRIPLES = json.Decoder(list[tuple[float | None, int, Any]])
_PAIRS = json.Decoder(list[tuple[float | None, int]])
_ITEMS = json.Decoder(list[Raw])


def _scores(raw: Raw) -> tuple[list[float], list[int]]:
    """Logprobs (NaN for null) and ids of ``[logprob, id, text]``; LMDeploy's are without the text."""
    found: Sequence[tuple[Any, ...]]
    try:
        found = _TRIPLES.decode(raw)
    except ValidationError:
        found = _PAIRS.decode(raw)
    return [float("nan") if one[0] is None else one[0] for one in found], [one[1] for one in found]


@returns_issue("prompt_logprobs")
def prompt_logprobs(raw: Raw, prompt: IntArray) -> FloatArray | None:
    """float32 [prompt]; NaN before ``logprob_start_len`` and at it."""
    import numpy as np

    values, listed = _scores(raw)
    if not values:
        return None
    ids, first = np.fromiter(listed, np.int64, len(listed)), len(prompt) - len(values)
    if first < 0:
        raise UnusableError(f"{len(values)} prompt logprobs for {len(prompt)} prompt tokens.", "not_aligned")
    # SGLang sends 0 for the last id of the vocabulary, and for the placeholders of images.
    differs = np.flatnonzero((ids != prompt[first:]) & (ids != 0))
    if len(differs):
        at = int(differs[0])
        raise UnusableError(
            f"the prompt's token {int(prompt[first + at])} at position {first + at} has a logprob of {int(ids[at])}.",
            "not_aligned",
        )
    found: FloatArray = np.full(len(prompt), np.nan, np.float32)
    with np.errstate(over="ignore"):  # What is beyond float32 becomes infinite, which is refused.
        found[first:] = values
    return checked_logprobs(found, "prompt")


@returns_issue("prompt_top_tokens")
def prompt_top_tokens(meta: Meta, size: int) -> TopTokens | None:
    """Of the last positions of a prompt: none before ``logprob_start_len``."""
    found = _likeliest(meta, "input_top_logprobs")
    # More rows than tokens are left as they are: they do not align.
    return None if found is None else _after_empty_rows(found, max(size - len(found), 0))


@returns_issue("top_tokens")
def top_tokens(meta: Meta) -> TopTokens | None:
    """Of the positions of a completion."""
    return _likeliest(meta, "output_top_logprobs")


def _likeliest(meta: Meta, name: str) -> TopTokens | None:
    if name in meta:
        rows = TopRows()
        for row in (row for chunk in meta[name] for row in _ITEMS.decode(chunk)):
            values, ids = ([], []) if row == NULL else _scores(row)
            rows.add(ids, values)
        found = rows.get()
    else:
        found = _flat(meta, name)
    checked_logprobs(found.logprobs.ravel(), "list of likeliest tokens")
    return found if found.ids.size else None


def _flat(meta: Meta, name: str) -> TopTokens:
    """From flat lists, or their bytes: ``_shape`` is that of the rows after the ``_null_prefix`` without any."""
    shape, before = _sizes(meta, name)
    values, ids = _numbers(meta, f"{name}_val_flat", "<f4"), _numbers(meta, f"{name}_idx_flat", "<i4")
    if not len(values) == len(ids) == shape[0] * shape[1]:
        raise UnusableError(f"{len(values)} logprobs and {len(ids)} ids for the shape {shape}.")
    if len(ids) and ids.min() < 0:
        raise UnusableError(f"a likely token has the id {int(ids.min())}; ids are not negative.")
    return _after_empty_rows(TopTokens(ids.reshape(shape), values.reshape(shape)), before)


def _sizes(meta: Meta, name: str) -> tuple[list[int], int]:
    shape = json.decode(meta[f"{name}_shape"][-1], type=list[int]) if f"{name}_shape" in meta else []
    before = json.decode(meta[f"{name}_null_prefix"][-1], type=int) if f"{name}_null_prefix" in meta else 0
    if len(shape) != 2 or min(*shape, before) < 0:
        raise UnusableError(f"{name}_shape is {shape!s:.60}, {name}_null_prefix {before}.")
    return shape, before


def _numbers(meta: Meta, name: str, kind: str) -> npt.NDArray[Any]:
    """A list of numbers, or base64 of little-endian bytes under ``NAME_b64``, as float32 or int32."""
    import numpy as np

    dtype = np.dtype(kind)
    if name in meta:
        values = json.decode(meta[name][-1], type=list[float] if dtype.kind == "f" else list[int])
        with np.errstate(over="ignore"):
            return np.array(values, dtype)
    if f"{name}_b64" not in meta:
        raise UnusableError(f"{name} is missing.")
    marked = json.decode(meta[f"{name}_b64_dtype"][-1]) if f"{name}_b64_dtype" in meta else dtype.name
    if marked != dtype.name:
        raise UnusableError(f"{name}_b64 is of type {marked!r:.40}; expected {dtype.name}.")
    data = base64_of(meta[f"{name}_b64"][-1])
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)


def _after_empty_rows(found: TopTokens, count: int) -> TopTokens:
    import numpy as np

    rows, width = found.ids.shape
    if not count:
        return found
    if count * max(width, 1) > 2 * found.ids.size + _MAX_FILL:
        raise UnusableError(f"{rows} rows of {width} tokens come after {count} without any.")
    return TopTokens(
        np.vstack((np.full((count, width), -1, np.int32), found.ids)),
        np.vstack((np.full((count, width), np.nan, np.float32), found.logprobs)),
    )


def sampling_mask(meta: Meta) -> SamplingMask | ExtraIssue:
    """The rows of ids, with their logprobs where these are rows too (``sampling_logprobs_mode`` is "support")."""
    logprobs = meta.get("output_token_sampling_logprobs", [])
    # In the mode "selected" they are of the sampled tokens alone: one number a position.
    are_rows = any(bytes(memoryview(chunk)[:64]).replace(b" ", b"").startswith(b"[[") for chunk in logprobs)
    return _checked_mask(mask_of(meta["output_token_sampling_mask"], logprobs if are_rows else ()))


@returns_issue("sampling_mask")
def _checked_mask(found: SamplingMask | ExtraIssue) -> SamplingMask | ExtraIssue:
    if isinstance(found, SamplingMask) and found.logprobs is not None:
        checked_logprobs(found.logprobs, "mask")
    return found


@returns_issue("routed_experts")
def experts(raw: Raw, rows: int, start: int) -> ExpertArray | ExtraIssue | None:
    """SGLang's bytes, or LMDeploy's lists. ``rows``: of all tokens but the last; ``start``: not sent of so many."""
    if starts_with(raw, b"["):
        found = experts_of(raw)
        # LMDeploy may send a row for the last token too. No other engine has one, and a step no place for it.
        return found[:rows] if not isinstance(found, ExtraIssue) and len(found) == rows + 1 else found
    data = base64_of(raw)
    rows -= start
    if not data and rows <= 0:
        return None
    if rows <= 0 or not data or len(data) % (4 * rows):
        raise UnusableError(f"{len(data)} bytes are no int32 rows of {rows} tokens.", "not_aligned")
    return experts_from(data, "<i4", (rows, 1, len(data) // (4 * rows)))


def policy_spans(raw: Raw) -> tuple[PolicySpan, ...] | ExtraIssue:
    """The versions of the weights."""
    return spans_of(loads(bytes(raw)))
