"""Types of a step's extras: what engines send about tokens besides ids and logprobs.

Arrays are read-only, and aligned to the token ids. Missing is None, NaN or -1 as each field describes, never zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from rollout_trace._field_docs import document_fields
from rollout_trace.data.tokens import Stored, readonly, same_array

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rollout_trace.data.rows import RowSpan
    from rollout_trace.data.tokens import FloatArray, IntArray

    ExpertArray: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.int32]

EXTRAS = ("prompt_logprobs", "prompt_top_tokens", "top_tokens", "sampling_mask", "routed_experts", "policy_spans")
"""The fields of ``Step`` that are aligned to its token ids, beside ``logprobs``: without the ids they mean nothing."""


class Arrays:
    """A group of arrays that belong together; equal if all arrays are."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(value, (list, tuple)):
                object.__setattr__(self, one.name, _as_array(value, f"{type(self).__name__}.{one.name}"))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(same_array(getattr(self, one.name), getattr(other, one.name)) for one in fields(self))  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays come writable from a pickle.
        return _unpickled, (type(self), *(getattr(self, one.name) for one in fields(self)))  # type: ignore[arg-type]


def _unpickled(kind: type[Arrays], *arrays: Any) -> Arrays:
    return kind(*(readonly(one) if hasattr(one, "flags") else one for one in arrays))


def _as_array(values: Any, name: str) -> Any:
    """Lists set by hand as a read-only array: float32 of logprobs, otherwise int32. Raises ValueError for others."""
    import numpy as np

    is_float = name.endswith(("logprobs", "entropy", "weights"))
    try:
        array = np.asarray(values, np.float32 if is_float else None)
        if is_float or not array.size or array.dtype.kind in "iu":
            return readonly(array if is_float else np.asarray(values, np.int32))
    except (TypeError, ValueError, OverflowError):
        pass
    expected = "numbers" if is_float else "whole numbers of int32"
    raise ValueError(f"{name}: expected an array or lists of one length of {expected}, got {str(values)[:60]}.")


@document_fields
@dataclass(frozen=True, slots=True, eq=False)
class TopTokens(Arrays):
    """The likeliest tokens at each position, in the order in which the engine lists them.

    vLLM lists the position's own token first, then the others by rank. With ``k`` requested, a position has all k
    likeliest tokens if its own token is among them; otherwise the least likely of the k is missing.
    """

    ids: IntArray
    """int32 [positions, k]; -1 where the engine lists fewer than k tokens, or none, at a position."""
    logprobs: FloatArray
    """float32 [positions, k], natural logarithm, as the engine sends them; NaN where ``ids`` is -1. vLLM sends -9999.0
    for minus infinity: a grammar or a filter excluded the token."""

    def __len__(self) -> int:
        return len(self.ids)


@document_fields
@dataclass(frozen=True, slots=True, eq=False)
class SamplingMask(Arrays):
    """The ids that could be sampled at each position, after top-k, top-p, min-p, grammars and bans.

    ``mask[i]`` has the ids of position i, which are ``mask.ids[mask.offsets[i]:mask.offsets[i + 1]]``.
    """

    ids: IntArray
    """int32 [sum of counts]: the ids of all positions, one after the other, in the engine's order."""
    counts: IntArray
    """int32 [positions]: number of ids at each position; 0 where nothing is known (in a sequence: nothing sampled)."""
    logprobs: FloatArray | None = None
    """float32 [sum of counts]: logprob of each of the ids, among those of its position; None where the engine sends
    none."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 [positions + 1]: the index in ``ids`` at which each position begins, and the end of the last."""
        import numpy as np

        return np.concatenate(([0], np.cumsum(self.counts, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, position: int) -> IntArray:
        count = len(self.counts)
        if not -count <= position < count:
            raise IndexError(f"there is no position {position} in a sampling mask of {count} positions.")
        end = int(self.counts[: position % count + 1].sum())
        ids: IntArray = self.ids[end - int(self.counts[position]) : end]
        return ids

    def __iter__(self) -> Iterator[IntArray]:
        return (self.ids[begin:end] for begin, end in pairwise(self.offsets.tolist()))


def hold_sampled(mask: SamplingMask, sampled: IntArray) -> npt.NDArray[np.bool_]:
    """bool [positions]: whether the ids of each position have the one that was sampled there."""
    import numpy as np

    found = np.zeros(len(sampled), np.bool_)
    found[np.repeat(np.arange(len(sampled)), mask.counts)[mask.ids == np.repeat(sampled, mask.counts)]] = True
    return found


class PolicySpan(NamedTuple):
    """Positions ``[begin, end)`` of a completion that one version of the weights sampled."""

    begin: int
    """The first position."""
    end: int
    """The position after the last one."""
    version: str | int
    """Version of the weights, as the engine names it."""


def as_policy_spans(values: Any, name: str = "policy_spans") -> tuple[PolicySpan, ...]:
    """Spans set by hand, as ``PolicySpan`` or any three values. Raises ValueError for anything else."""
    try:
        return tuple(
            PolicySpan(index(begin), index(end), version if isinstance(version, str) else index(version))
            for begin, end, version in values
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: expected (begin, end, version) of each span, version a text or an int, got {str(values)[:60]}."
        ) from None


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraIssue:
    """Why an extra of a step is missing or withheld, although it was requested or sent. The ids are not affected."""

    field: str
    """The field of ``Step``: ``routed_experts``, ..."""
    code: str
    """``malformed``: not the expected shape; ``not_aligned``: the number of positions differs from the number of
    tokens, or the tokens are not the sampled ones; ``ids_missing``: the step has no ids to align it with;
    ``not_in_this_form``: the engine never sends it in answers of this kind (streamed or unstreamed); ``refused``: the
    server rejects requests for it; ``not_sent``: requested, but not in the answer."""
    message: str
    """A sentence with what was found."""


def as_experts(values: Any, name: str = "routed_experts") -> ExpertArray:
    """Routed experts as a read-only array [positions, layers, k]; other whole numbers than the three types as int32.

    Raises ValueError for what is no such array, or beyond int32.
    """
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 3 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: expected whole numbers [positions, layers, experts per token], got {array.dtype} of shape "
            f"{list(array.shape)}."
        )
    if array.dtype not in (np.uint8, np.uint16, np.int32):
        if array.size and not -0x80000000 <= int(array.min()) <= int(array.max()) <= 0x7FFFFFFF:
            raise ValueError(f"{name}: expected int32, got {int(array.min())} to {int(array.max())}.")
        array = array.astype(np.int32)
    experts: ExpertArray = readonly(array)
    return experts


class TopTokenRows(Stored):
    """``TopTokens`` of a prompt, whose rows are shared with other prompts."""

    __slots__ = ("ids", "logprobs")

    def __init__(self, ids: RowSpan, logprobs: RowSpan) -> None:
        self.ids = ids
        self.logprobs = logprobs

    def get(self) -> TopTokens:
        """The arrays."""
        return TopTokens(self.ids.get(), self.logprobs.get())


class JSONText(Stored):
    """A value as the bytes of its JSON, decoded whenever it is read.

    For large values that few read: as objects they take ten times the memory, and every pass of the garbage collector
    visits them.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self) -> Any:
        """The value; a new one each time."""
        try:
            return msgspec.json.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # As tolerant as SDKs, which is what the bytes were taken from: NaN, lone surrogates, bytes of no UTF-8.
            return json.loads(self.data.decode("utf-8", "replace"))

    def items(self) -> Iterator[Any]:
        """The items of a list, decoded one at a time: objects for all of them would be many at once."""
        try:
            parts = _list.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield from self.get() or ()
            return
        for part in parts:
            yield JSONText(bytes(part)).get()


_list = msgspec.json.Decoder(list[msgspec.Raw])
