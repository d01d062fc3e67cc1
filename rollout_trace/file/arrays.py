"""Arrays of a line: base64 of their little-endian bytes with dtype and shape, stored once where steps share their rows.

The table ``arrays`` of a line has the blocks; a step refers to runs of their rows. Both directions are here.
"""

from __future__ import annotations

import binascii
import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rollout_trace.data.extras import TopTokenRows
from rollout_trace.data.model import Step, amend, shared
from rollout_trace.data.rows import Block, RowSpan, RowStore
from rollout_trace.data.tokens import INT32_MAX, readonly
from rollout_trace.file.distinct import merged
from rollout_trace.file.line_format import BadLine

if TYPE_CHECKING:
    from rollout_trace.data.rows import AnyArray, Run
    from rollout_trace.file.records import ArrayRecord, ArrayRun

INTEGERS, IDS, FLOATS = ("uint8", "uint16", "int32"), ("int32",), ("float32",)
"""The dtypes of a field; all that the format has."""


class Form(NamedTuple):
    """The form of a field's array: its dtypes and its axes."""

    dtypes: tuple[str, ...]
    axes: tuple[str, ...]


ROWS = {
    "routed_experts": Form(INTEGERS, ("positions", "layers", "experts per token")),
    "prompt_logprobs": Form(FLOATS, ("positions",)),
    "prompt_top_tokens.ids": Form(IDS, ("positions", "k")),
    "prompt_top_tokens.logprobs": Form(FLOATS, ("positions", "k")),
}
"""The fields whose rows are in the table, in its order."""


def fragment(array: AnyArray) -> dict[str, Any]:
    """The record of an array."""
    data = orjson.Fragment(b'"%s"' % encoded(array))
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def encoded(array: AnyArray) -> bytes:
    """Base64 of the elements, C order, little-endian."""
    import numpy as np

    array = np.ascontiguousarray(array)
    if sys.byteorder == "big":
        array = array.astype(array.dtype.newbyteorder("<"))
    # An array without elements cannot be viewed as bytes.
    data: Any = array.reshape(-1).view(np.uint8) if array.size else b""
    return binascii.b2a_base64(data, newline=False)


def decoded(record: ArrayRecord, form: Form | None = None) -> AnyArray:
    """The array of a record, read-only: a view of its bytes.

    Args:
        form: what the field needs; None: any array.

    Raises:
        BadLine: it is none, or another than the field needs.
    """
    import numpy as np

    known = {*INTEGERS, *IDS, *FLOATS}
    if record.dtype not in known:
        raise BadLine(
            "",
            f"expected one of the dtypes {', '.join(sorted(known))}, got {record.dtype!r}: a newer version may have "
            "written it. Upgrade in a newer checkout, with: pip install .",
            "array-dtype",
        )
    dtype, shape = np.dtype(record.dtype), record.shape
    # Before anything is made of the shape: it must not ask for more memory than the line itself takes.
    # Of arrays without elements, the length of the data does not bound it.
    if len(shape) > 3 or any(not 0 <= size <= INT32_MAX for size in shape):
        raise BadLine("", f"expected a shape of at most 3 numbers from 0 to {INT32_MAX}, got {shape}", "array-shape")
    if math.prod(shape) * dtype.itemsize != len(record.data):
        needed = f"{math.prod(shape) * dtype.itemsize} bytes ({record.dtype}, shape {shape})"
        raise BadLine("", f"expected {needed}, got {len(record.data)}", "array-data")
    try:
        array: AnyArray = np.frombuffer(record.data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    except ValueError as error:
        problem = f"expected a shape that an array can have, got {shape}: {error}"
        raise BadLine("", problem, "array-shape") from error
    if form is not None:
        check_form(record.dtype, array.shape, form)
    whole: AnyArray = readonly(array)
    return whole


def check_form(dtype: str, shape: Sequence[int], form: Form) -> None:
    """Raises BadLine where an array is not of the form."""
    if dtype not in form.dtypes or len(shape) != len(form.axes):
        expected = f"{' or '.join(form.dtypes)} [{', '.join(form.axes)}]"
        raise BadLine("", f"expected an array {expected}, got {dtype} of shape {list(shape)}", "array-form")


class ArrayTable:
    """The arrays of a line that was read."""

    __slots__ = ("_blocks",)

    def __init__(self, records: Iterable[ArrayRecord]) -> None:
        self._blocks: list[Block] = []
        for at, record in enumerate(records):
            try:
                if not record.shape:
                    problem = f"expected a shape that begins with a number of rows, got {record.shape}"
                    raise BadLine("", problem, "array-shape")
                self._blocks.append(Block(decoded(record)))
            except BadLine as error:
                raise BadLine("", f"$.arrays[{at}]: {error}", error.code) from error

    def rows(self, runs: list[ArrayRun], form: Form) -> RowSpan:
        """The rows that runs refer to. Nothing is copied: a run may be repeated any number of times.

        Raises:
            BadLine: they are not rows of the table, or not of this form.
        """
        found: list[Run] = []
        for index, first, end in runs:
            if not 0 <= index < len(self._blocks) or not 0 <= first <= end <= self._blocks[index].length:
                sizes = f", and array {index} has {self._blocks[index].length}" if 0 <= index < len(self) else ""
                raise BadLine(
                    "",
                    f"expected [array, first, end], rows of $.arrays, which has {len(self)} arrays{sizes}, got "
                    f"{[index, first, end]}",
                    "array-runs",
                )
            found.append((self._blocks[index], first, end))
        if not found:
            raise BadLine("", "expected at least one run [array, first, end], got []", "array-runs")
        first_rows = found[0][0].rows(0, 0)
        for block, _, _ in found:
            rows = block.rows(0, 0)
            check_form(rows.dtype.name, rows.shape, form)
            if rows.dtype != first_rows.dtype or rows.shape[1:] != first_rows.shape[1:]:
                kinds = [f"{one.dtype} {list(one.shape[1:])}" for one in (first_rows, rows)]
                problem = f"expected runs of rows of one dtype and shape, got {kinds[0]} and {kinds[1]}"
                raise BadLine("", problem, "array-runs")
        return RowSpan(tuple(found))

    def __len__(self) -> int:
        return len(self._blocks)


class DistinctRows:
    """The table of arrays that the steps of a line share, with no more rows of each than are used."""

    __slots__ = ("_blocks", "_places", "_spans")

    def __init__(self, steps: Sequence[Step]) -> None:
        """``steps``: all of the line. Needed beforehand, so that the used part of each block is stored in one piece."""
        own = RowStore()
        self._spans = [_spans_of(step, own) for step in steps]
        used: dict[str, dict[int, tuple[Block, list[tuple[int, int]]]]] = {}
        for spans in self._spans:
            for name, span in spans.items():
                for block, first, end in span.runs:
                    used.setdefault(name, {}).setdefault(id(block), (block, []))[1].append((first, end))
        self._blocks: dict[str, list[tuple[Block, list[tuple[int, int]]]]] = {}
        """By field: its blocks, each with the ranges of rows that are used."""
        # By `id`: the spans keep the blocks alive.
        self._places: dict[tuple[str, int], _Place] = {}
        for name in ROWS:
            for key, (block, ranges) in used.get(name, {}).items():
                parts = list(merged(ranges))
                self._places[name, key] = _Place(len(self._places), parts)
                self._blocks.setdefault(name, []).append((block, parts))

    def runs(self, at: int) -> dict[str, list[list[int]]]:
        """For a step, by its position: the runs of each field that it has."""
        found: dict[str, list[list[int]]] = {}
        for name, span in self._spans[at].items():
            places = [(self._places[name, id(block)], first, end) for block, first, end in span.runs]
            runs = [[place.index, place.row(first), place.row(first) + end - first] for place, first, end in places
                    if first < end]  # fmt: skip
            # An empty one only where there is no other, for its dtype and shape.
            found[name] = runs or [[places[0][0].index, 0, 0]]
        return found

    def table(self, name: str) -> list[AnyArray]:
        """The arrays of one field. Those of all fields, in the order of ``ROWS``, are the table."""
        import numpy as np

        found = []
        for block, ranges in self._blocks.get(name, ()):
            parts = [block.rows(first, end) for first, end in ranges] or [block.rows(0, 0)]
            found.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return found


class _Place:
    """The places of a block's used rows: the index of their array, and each range's first row in block and array."""

    __slots__ = ("_firsts", "_moved", "index")

    def __init__(self, index: int, ranges: list[tuple[int, int]]) -> None:
        self.index = index
        self._firsts = [first for first, _ in ranges]
        self._moved: list[int] = []
        """For each range, how many rows before it are left out."""
        done = 0
        for first, end in ranges:
            self._moved.append(first - done)
            done += end - first

    def row(self, row: int) -> int:
        """The row of the array that holds a used row of the block."""
        return row - self._moved[bisect_right(self._firsts, row) - 1]


def share_rows(steps: Iterable[Step]) -> None:
    """Stores the rows of steps once that come from several places, each with blocks of its own."""
    store = RowStore()
    for step in steps:
        spans = {name: span.get() for name, span in _spans_of(step, RowStore()).items()}
        if "routed_experts" in spans:
            experts = spans["routed_experts"]
            amend(step, routed_experts=store.add("routed_experts", experts, _experts_start(step, experts)))
        if "prompt_logprobs" in spans:
            amend(step, prompt_logprobs=store.add("prompt_logprobs", spans["prompt_logprobs"]))
        if "prompt_top_tokens.ids" in spans:
            parts = (store.add(name, spans[name]) for name in ("prompt_top_tokens.ids", "prompt_top_tokens.logprobs"))
            amend(step, prompt_top_tokens=TopTokenRows(*parts))
    store.finish()


def _spans_of(step: Step, own: RowStore) -> dict[str, RowSpan]:
    """The rows of a step by field. Arrays that were set by hand have no blocks: ``own`` takes them."""
    experts, scores = shared(step, "routed_experts"), shared(step, "prompt_logprobs")
    top = shared(step, "prompt_top_tokens")
    found: dict[str, RowSpan] = {}
    if experts is not None:
        found["routed_experts"] = _span(experts, "routed_experts", own, _experts_start(step, experts))
    if scores is not None:
        found["prompt_logprobs"] = _span(scores, "prompt_logprobs", own)
    if top is not None:
        ids, logprobs = top.ids, top.logprobs
        is_shared = isinstance(top, TopTokenRows)
        for name, part in (("prompt_top_tokens.ids", ids), ("prompt_top_tokens.logprobs", logprobs)):
            found[name] = _span(part if is_shared else as_form(part, name, ROWS[name]), name, own)
    return found


def _span(value: Any, name: str, own: RowStore, start: int = 0) -> RowSpan:
    return value if isinstance(value, RowSpan) else own.add(name, value, start)


def _experts_start(step: Step, experts: Any) -> int:
    """The position of the first row; rows of steps are compared by their positions."""
    prompt, completion = step.prompt_token_ids, step.completion_token_ids
    if prompt is None or completion is None:
        return 0
    return max(0, len(prompt) + len(completion) - 1 - len(experts))


def as_form(values: Any, name: str, form: Form) -> AnyArray:
    """An array of a field that was set by hand, in its dtype.

    Raises:
        ValueError: it has other axes, or numbers that the dtype cannot hold.
    """
    import numpy as np

    array = np.asarray(values)
    if array.dtype.name not in form.dtypes:
        wanted = np.dtype(form.dtypes[-1])
        with np.errstate(over="ignore", invalid="ignore"):
            changed = array.astype(wanted) if array.dtype.kind in "iuf" else None
        # A float is rounded, as everywhere; a whole number stays the same or is refused.
        if changed is None or (wanted.kind != "f" and not np.array_equal(changed, array)):
            raise ValueError(
                f"{name}: expected {' or '.join(form.dtypes)}, got {array.dtype} with values that it cannot hold."
            )
        array = changed
    try:
        check_form(array.dtype.name, array.shape, form)
    except BadLine as error:
        raise ValueError(f"{name}: {error}.") from error
    return array
