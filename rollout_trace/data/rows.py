"""Storage for arrays with one row per token position (routed experts, logprobs of a prompt): equal rows stored once.

An engine sends the rows of a whole prompt with every answer, and most are those of the turn before. A new array is
compared, position by position, with the latest ones: equal rows refer to the blocks that hold them, the others become
a block, or extend one. Unlike token ids, rows at the same positions may differ between answers (another batch, another
kernel): then both are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.tokens import GrowingArray, Stored, readonly

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    AnyArray: TypeAlias = npt.NDArray[Any]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]

_CANDIDATES = 4
"""The latest arrays, with which a new one is compared as a whole."""
_KEPT = 64
"""The latest arrays, whose ends it is compared with: as many conversations can take turns in one trajectory."""
_SHORT_RUN = 16
"""Equal rows in fewer than so many positions are stored again: each run costs about as much as they do."""


class Block(GrowingArray):
    """Rows of one dtype and shape, stored once. Rows are only ever appended."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Block, (self.rows().copy(),)


Run: TypeAlias = "tuple[Block, int, int]"
"""Rows ``[first, end)`` of a block."""


class RowSpan(Stored):
    """An array with one row per position, as runs of rows of blocks."""

    __slots__ = ("runs",)

    def __init__(self, runs: tuple[Run, ...]) -> None:
        self.runs = runs
        """At least one; an array without rows has an empty run of a block, which has its dtype and shape."""

    def __len__(self) -> int:
        return sum(end - first for _, first, end in self.runs)

    def get(self) -> AnyArray:
        """The array, read-only; a view where it is one run, else a copy."""
        import numpy as np

        pieces = [block.rows(first, end) for block, first, end in self.runs]
        whole: AnyArray = pieces[0] if len(pieces) == 1 else readonly(np.concatenate(pieces))
        return whole

    def part(self, first: int, end: int) -> list[Run]:
        """The runs of rows ``[first, end)``."""
        found: list[Run] = []
        for block, begin, stop in self.runs:
            length = stop - begin
            low, high = max(first, 0), min(end, length)
            if low < high:
                found.append((block, begin + low, begin + high))
            first, end = first - length, end - length
        return found


@dataclass(slots=True, eq=False)
class RowStore:
    """The rows of one trajectory. Not thread safe: callers hold the trajectory's lock."""

    blocks: list[Block] = field(default_factory=list)
    _repeated: dict[tuple[str, str, bytes], Block] = field(default_factory=dict)
    """By kind, dtype and row: a block of that row alone."""
    _latest: dict[str, list[tuple[int, RowSpan]]] = field(default_factory=dict)
    """By kind: the latest arrays, with the position of their first row."""

    def add(self, kind: str, rows: AnyArray, start: int = 0) -> RowSpan:
        """Stores an array [positions, ...] whose first row is of position ``start``, and returns its span.

        Args:
            kind: arrays of one kind share rows.
        """
        latest = self._latest.setdefault(kind, [])
        # An engine that scores only what is new of a prompt sends many rows without a value before it. Compared with
        # the values that these positions had in an earlier answer, each answer would have one run more than that one.
        lead = _leading_repeats(rows)
        span = self._shared(rows[lead:], start + lead, latest)
        latest.insert(0, (start + lead, span))
        del latest[_KEPT:]
        return span if not lead else RowSpan((self._repeats(kind, rows[:lead]), *span.runs))

    def _repeats(self, kind: str, rows: AnyArray) -> Run:
        """The run of rows that are all the same."""
        key = kind, rows.dtype.str, rows[0].tobytes()
        block = self._repeated.get(key)
        if block is None:
            run = self._new(rows.copy())
            self._repeated[key] = run[0]
            return run
        if block.length < len(rows):
            block.extend(rows[block.length :])
        return block, 0, len(rows)

    def finish(self) -> None:
        """Frees growth buffers. Nothing can be stored afterwards."""
        for block in self.blocks:
            block.trim()
        self._latest.clear()
        self._repeated.clear()

    def _shared(self, rows: AnyArray, start: int, latest: list[tuple[int, RowSpan]]) -> RowSpan:
        best: BoolArray | None = None
        base: tuple[int, RowSpan] | None = None
        # First the one whose last rows it repeats: in its own conversation, the answer before.
        own = next((one for one in latest if _repeats_end(rows, start, *one)), None)
        others = [one for one in latest[:_CANDIDATES] if one is not own]
        for candidate in others if own is None else (own, *others):
            same = _same_rows(rows, start, *candidate)
            if same is not None and (best is None or same.sum() > best.sum()):
                best, base = same, candidate
                if same.all():
                    break
        if best is None or base is None or not best.any():
            return RowSpan((self._new(rows),))
        return self._merged(rows, start, base, best)

    def _merged(self, rows: AnyArray, start: int, base: tuple[int, RowSpan], same: BoolArray) -> RowSpan:
        """The span of an array of which some rows (``same``) are those of another one at the same positions."""
        import numpy as np

        base_start, span = base
        first = max(start, base_start) - start
        # Edges of the stretches of equal rows, in rows of the new array.
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0)) + first
        runs: list[Run] = []
        done = 0
        for low, high in edges.reshape(-1, 2).tolist():
            if high - low < _SHORT_RUN and high - low < len(rows):
                continue
            if low > done:
                runs.append(self._new(rows[done:low]))
            runs += span.part(low + start - base_start, high + start - base_start)
            done = high
        if done < len(rows):
            runs.append(self._continued(runs[-1] if runs else None, rows[done:]))
        return RowSpan(_joined(runs))

    def _continued(self, last: Run | None, rows: AnyArray) -> Run:
        """The run of rows that come after a run: at the end of its block if nothing follows it there yet."""
        if last is None or last[2] != last[0].length:
            return self._new(rows)
        block, begin = last[0], last[0].length
        block.extend(rows)
        return block, begin, block.length

    def _new(self, rows: AnyArray) -> Run:
        # Of a part, the rest of the array must not stay alive.
        block = Block(rows if rows.base is None or _owns(rows) else rows.copy())
        self.blocks.append(block)
        return block, 0, block.length


def _leading_repeats(rows: AnyArray) -> int:
    """The number of rows at the beginning that are the same, short of the last row; 0 where they are few."""
    import numpy as np

    first = rows[:1].tobytes()
    if len(rows) <= _SHORT_RUN or rows[:_SHORT_RUN].tobytes() != first * _SHORT_RUN:
        return 0
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    same = (flat[:-1] == flat[0]).all(axis=1)
    return len(same) if same.all() else int(np.argmin(same))


def _owns(rows: AnyArray) -> bool:
    """Returns whether an array is all of the memory under it, give or take a header."""
    base: Any = rows.base
    size = base.nbytes if hasattr(base, "nbytes") else len(base) if isinstance(base, (bytes, bytearray)) else 0
    return 0 < size <= rows.nbytes + 4096


def _same_rows(rows: AnyArray, start: int, other_start: int, other: RowSpan) -> BoolArray | None:
    """For each position that both arrays have, whether the rows are the same bits; None where there is none."""
    import numpy as np

    block = other.runs[0][0].rows()
    if block.dtype != rows.dtype or block.shape[1:] != rows.shape[1:]:
        return None
    low = max(start, other_start)
    high = min(start + len(rows), other_start + len(other))
    if low >= high:
        return None
    found = []
    at = low - start
    for held, first, end in other.part(low - other_start, high - other_start):
        found.append(_equal_bits(rows[at : at + end - first], held.rows(first, end)))
        at += end - first
    return found[0] if len(found) == 1 else np.concatenate(found)


def _repeats_end(rows: AnyArray, start: int, other_start: int, other: RowSpan) -> bool:
    """Returns whether an array has the last rows of another one, as far as their positions overlap."""
    end = min(start + len(rows), other_start + len(other))
    low = max(end - _SHORT_RUN, start)
    same = _same_rows(rows[low - start : end - start], low, other_start, other) if low < end else None
    return same is not None and bool(same.all())


def _equal_bits(one: AnyArray, other: AnyArray) -> BoolArray:
    """bool [rows]: whether rows are equal bit by bit. NaN, a missing value, equals NaN."""
    import numpy as np

    size = one[:1].nbytes
    flat, held = (np.ascontiguousarray(part).view(np.uint8).reshape(len(part), size) for part in (one, other))
    if np.array_equal(flat, held):
        return np.ones(len(one), np.bool_)
    same: BoolArray = (flat == held).all(axis=1)
    return same


def _joined(runs: list[Run]) -> tuple[Run, ...]:
    """The runs, with those made one that follow each other in a block."""
    found: list[Run] = []
    for block, first, end in runs:
        if found and found[-1][0] is block and found[-1][2] == first:
            found[-1] = block, found[-1][1], end
        else:
            found.append((block, first, end))
    return tuple(found)
