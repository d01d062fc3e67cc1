"""Extras of SGLang (0.5.23, from its source), and of LMDeploy, which has the same ``/generate``: in ``meta_info``.

``/generate`` has it in each sample, chat and completions in each choice where ``return_meta_info`` asks for it, else a
few of its fields around the choices. What no field of a step has is in ``extra``.

Scores of a prompt begin at the request's ``logprob_start_len`` and go to its end. Routed experts are the bytes of an
int32 array; neither layers nor k are in the answer: they come out as one layer with layers * k columns,
[positions, 1, layers * k], to be reshaped with the model's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Raw, Struct, ValidationError
from msgspec.json import Decoder, decode

from rollout_trace.data.extras import ExtraIssue, SamplingMask, TopTokens
from rollout_trace.data.tokens import id_array
from rollout_trace.wire.align import FoundExtras, missing_ids, settle
from rollout_trace.wire.extras import (
    MAX_FILL,
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
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL, loads, raw_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.tokens import FloatArray, IntArray

Meta: TypeAlias = Mapping[str, "list[Raw]"]
"""What came under each name: of an incremental stream the parts of its growing lists, else one value."""

_TRIPLES = Decoder(list[tuple[float | None, int, Any]])
_PAIRS = Decoder(list[tuple[float | None, int]])
_ITEMS = Decoder(list[Raw])


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
    """Returns the top tokens of a prompt's last positions: none before ``logprob_start_len``."""
    found = _likeliest(meta, "input_top_logprobs")
    # More rows than tokens are left as they are: they do not align.
    return None if found is None else _after_empty_rows(found, max(size - len(found), 0))


@returns_issue("top_tokens")
def top_tokens(meta: Meta) -> TopTokens | None:
    """Returns the top tokens at the positions of a completion."""
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
    shape = decode(meta[f"{name}_shape"][-1], type=list[int]) if f"{name}_shape" in meta else []
    before = decode(meta[f"{name}_null_prefix"][-1], type=int) if f"{name}_null_prefix" in meta else 0
    if len(shape) != 2 or min(*shape, before) < 0:
        raise UnusableError(f"{name}_shape is {shape!s:.60}, {name}_null_prefix {before}.")
    return shape, before


def _numbers(meta: Meta, name: str, kind: str) -> npt.NDArray[Any]:
    """A list of numbers, or base64 of little-endian bytes under ``NAME_b64``, as float32 or int32."""
    import numpy as np

    dtype = np.dtype(kind)
    if name in meta:
        values = decode(meta[name][-1], type=list[float] if dtype.kind == "f" else list[int])
        with np.errstate(over="ignore"):
            return np.array(values, dtype)
    if f"{name}_b64" not in meta:
        raise UnusableError(f"{name} is missing.")
    marked = decode(meta[f"{name}_b64_dtype"][-1]) if f"{name}_b64_dtype" in meta else dtype.name
    if marked != dtype.name:
        raise UnusableError(f"{name}_b64 is of type {marked!r:.40}; expected {dtype.name}.")
    data = base64_of(meta[f"{name}_b64"][-1])
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)


def _after_empty_rows(found: TopTokens, count: int) -> TopTokens:
    import numpy as np

    rows, width = found.ids.shape
    if not count:
        return found
    # Short answers must not take all memory.
    if count * max(width, 1) > 2 * found.ids.size + MAX_FILL:
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
        raise UnusableError(f"{len(data)} bytes do not hold int32 rows of {rows} tokens.", "not_aligned")
    return experts_from(data, "<i4", (rows, 1, len(data) // (4 * rows)))


_READ: Final = frozenset(
    {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "weight_version"}
    | {"prompt_token_ids", "output_token_logprobs", "output_token_logprobs_length", "output_token_sampling_mask_length"}
)
"""Names of ``meta_info`` whose values are in other fields of a step."""
_GROWING: Final = frozenset(
    {"output_top_logprobs", "output_token_sampling_mask", "output_token_sampling_logprobs", "output_token_ids_logprobs"}
)
"""Lists with an item for each token: of an incremental stream each chunk has its own part."""
_SOURCES: Final = {
    "prompt_logprobs": "input_token_logprobs",
    "prompt_top_tokens": "input_top_logprobs",
    "top_tokens": "output_top_logprobs",
    "sampling_mask": "output_token_sampling_mask",
    "routed_experts": "routed_experts",
    "policy_spans": "weight_versions",
}
"""The name in ``meta_info`` of each extra. The names of flat forms of likeliest tokens begin with that of the list."""


_NOTHING: Final = (NULL, Raw(b"[]"))


class _HasMeta(Struct):
    meta_info: dict[str, Raw] | None = None


class _Samples(_HasMeta):
    answers: list[_HasMeta] | None = None


_SAMPLES = Decoder(_Samples)
_HAS_GROWING = re.compile(rb'"(?:%s)"' % b"|".join(sorted(name.encode() for name in _GROWING)))


class MetaReader:
    """The extras of one sample, from the ``meta_info`` of its chunks."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[tuple[bytes, int]] = []

    def add(self, data: bytes, position: int) -> None:
        """Keeps the next chunk, or the only body. ``position``: of the sample among the body's ``answers``."""
        # Everything but the growing lists is in the latest chunk.
        if self._chunks and not _HAS_GROWING.search(self._chunks[-1][0]):
            self._chunks.pop()
        self._chunks.append((data, position))

    def settle(self, choice: ChoiceFacts, *, incremental: bool = False, start: Any = None) -> None:
        """Sets the extras of a choice whose ids have been checked.

        Args:
            incremental: the growing lists of each chunk have new tokens only.
            start: ``routed_experts_start_len`` of the request: the tokens before it have no experts.
        """
        meta: dict[str, list[Raw]] = {}
        for data, position in self._chunks if incremental else self._chunks[-1:]:
            for name, value in _info_of(data, position).items():
                if name in _READ or value in _NOTHING:
                    continue
                if name in _GROWING:
                    meta.setdefault(name, []).append(value)
                else:
                    meta[name] = [value]
        settle_meta(choice, meta, start)


def _info_of(data: bytes, position: int) -> dict[str, Raw]:
    try:
        body = _SAMPLES.decode(data)
        one = body.answers[position] if body.answers is not None else body
        return one.meta_info or {}
    except (*DECODE_ERRORS, IndexError):
        return _plain_info(data, position)


def _plain_info(data: bytes, position: int) -> dict[str, Raw]:
    """The same of a body that the strict reader refuses: a part of another type, a NaN."""
    body = loads(data)
    answers = body.get("answers") if isinstance(body, dict) else None
    one = answers[position] if isinstance(answers, list) and position < len(answers) else body
    info = one.get("meta_info") if isinstance(one, dict) else None
    return {name: raw_of(value) for name, value in info.items()} if isinstance(info, dict) else {}


def settle_meta(choice: ChoiceFacts, meta: Meta, start: Any) -> None:
    """Sets the extras of a choice, and what else ``meta_info`` holds in its ``extra``."""
    settle(choice, _found(choice, meta, start))
    # An extra that was unusable in another place of the answer, and is not here.
    choice.extra_issues = tuple(one for one in choice.extra_issues if getattr(choice, one.field, None) is None)
    # Experts that no field can hold are kept as they came: the key of an object store, or numbers of unknown shape.
    kept = {"routed_experts"} if choice.routed_experts is None else set()
    taken = {name for field, source in _SOURCES.items() if field not in kept for name in _names(meta, source)}
    if choice.sampling_mask is not None and choice.sampling_mask.logprobs is not None:
        taken.add("output_token_sampling_logprobs")
    rest = {name: _value_of(values) for name, values in meta.items() if name not in taken}
    if rest:
        choice.extra = {**(choice.extra or {}), **rest}


def _names(meta: Meta, source: str) -> list[str]:
    if source.endswith("_top_logprobs"):
        return [name for name in meta if name == source or name.startswith(f"{source}_")]
    return [source] if source in meta else []


def _value_of(values: list[Raw]) -> Any:
    found = [loads(bytes(value)) for value in values]
    if len(found) > 1 and all(isinstance(one, list) for one in found):
        return [item for one in found for item in one]
    return found[-1]


def _found(choice: ChoiceFacts, meta: Meta, start: Any) -> FoundExtras:
    found = FoundExtras()
    has_prompt, has_ids = choice.prompt_token_ids is not None, choice.completion_token_ids is not None
    if "input_token_logprobs" in meta:
        raw = meta["input_token_logprobs"][-1]
        missing = missing_ids("prompt_logprobs", "prompt")
        found.prompt_logprobs = prompt_logprobs(raw, id_array(choice.prompt_token_ids)) if has_prompt else missing
    if _names(meta, "input_top_logprobs"):
        missing = missing_ids("prompt_top_tokens", "prompt")
        found.prompt_top_tokens = prompt_top_tokens(meta, len(choice.prompt_token_ids)) if has_prompt else missing
    if _names(meta, "output_top_logprobs"):
        found.top_tokens = top_tokens(meta)
    if "output_token_sampling_mask" in meta:
        found.sampling_mask = sampling_mask(meta)
    if "routed_experts" in meta:
        missing = missing_ids("routed_experts", "completion" if has_prompt else "prompt")
        found.routed_experts = missing
        if has_prompt and has_ids:
            total = len(choice.prompt_token_ids) + len(choice.completion_token_ids)
            # SGLang refuses a negative start, and cuts one beyond the last row.
            found.experts_start = max(min(start, total - 1), 0) if type(start) is int else 0
            found.routed_experts = experts(meta["routed_experts"][-1], total - 1, found.experts_start)
    if "weight_versions" in meta:
        found.policy_spans = spans_of(loads(bytes(meta["weight_versions"][-1])))
    return found


def settle_openai(choices: Sequence[ChoiceFacts], sampling: Mapping[str, Any] | None, *, streamed: bool) -> None:
    """Sets the extras of SGLang's chat and completions, whose fields are in ``extra`` already.

    With ``return_meta_info`` they are in ``meta_info`` of each choice; else ``sglext`` of the answer has the experts of
    its first choice, and ``metadata`` the versions of the weights that sampled it.
    """
    start = (sampling or {}).get("routed_experts_start_len")
    for at, choice in enumerate(choices):
        if choice.extra is None or _OPENAI_NAMES.isdisjoint(choice.extra):
            continue
        extra = dict(choice.extra)
        # In a stream, ``sglext`` is of the choice that began first, which is not always the first one.
        is_certain = not streamed or len(choices) == 1
        meta = _taken(extra, "metadata", "weight_version", "weight_versions")
        experts = _taken(extra, "sglext", "routed_experts") if is_certain else {}
        meta = {**meta, **experts} if at == 0 else {name: meta[name] for name in ("weight_version",) if name in meta}
        info = extra.get("meta_info")
        if isinstance(info, dict):
            meta.update(info)
            del extra["meta_info"]
        version = meta.get("weight_version")
        if choice.policy_version is None and type(version) in (str, int):
            choice.policy_version = str(version)
        choice.extra = extra or None
        found = {name: value for name, value in meta.items() if name not in _READ and value is not None}
        settle_meta(choice, {name: [raw_of(value)] for name, value in found.items()}, start)


_OPENAI_NAMES: Final = frozenset({"meta_info", "sglext", "metadata"})


def _taken(extra: dict[str, Any], name: str, *fields: str) -> dict[str, Any]:
    """Takes fields out of an object in ``extra``, and the object where nothing else is in it."""
    values = extra.get(name)
    if not isinstance(values, dict):
        return {}
    rest = {field: value for field, value in values.items() if field not in fields and value is not None}
    if rest:
        extra[name] = rest
    else:
        del extra[name]
    return {field: values[field] for field in fields if values.get(field) is not None}
