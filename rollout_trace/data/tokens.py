"""Token ids that prompts share are stored once.

A store is a radix tree of segments: a segment holds its own ids and continues another segment from a length on. Two
prompts share all segments up to the token where they part: a rollout of many turns costs the tokens new in each turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int32]
    FloatArray: TypeAlias = npt.NDArray[np.float32]
    MaskArray: TypeAlias = npt.NDArray[np.int8]

FLOAT32_MAX = 3.4028234663852886e38
"""The largest finite float32."""
_COMPARED = 4096
"""Ids that are compared at once, at first."""


class Segment:
    """Ids ``[start, end)`` of a sequence whose first ``start`` ids are those of ``base``."""

    __slots__ = ("_buffer", "base", "children", "depth", "end", "far", "start", "tree")

    def __init__(self, tree: Tree, base: Segment | None, start: int, ids: IntArray) -> None:
        self.tree = tree
        self.base = base
        self.depth: int = 0 if base is None else base.depth + 1
        # One further base, chosen so that any of n bases is reached in O(log n): Myers' skew-binary jump pointers.
        self.far: Segment | None = None if base is None else _far(base)
        self.start = start
        self.end = start + len(ids)
        self._buffer = ids
        self.children: dict[tuple[int, int], Segment] = {}

    @property
    def own(self) -> IntArray:
        """The ids stored here, int32 [end - start]; read-only."""
        own: IntArray = readonly(self._buffer[: self.end - self.start])
        return own

    def extend(self, ids: IntArray) -> None:
        """Appends ids. Spans already taken keep their values."""
        import numpy as np

        used, needed = self.end - self.start, self.end - self.start + len(ids)
        if needed > len(self._buffer):
            # Growth by half keeps appending linear in time and the slack a third at the most.
            grown = np.empty(max(needed, used + used // 2), np.int32)
            grown[:used] = self._buffer[:used]
            self._buffer = grown
        self._buffer[used:needed] = ids
        self.end += len(ids)

    def trim(self) -> None:
        """Gives back the room kept for growth."""
        used = self.end - self.start
        if used < len(self._buffer):
            self._buffer = self._buffer[:used].copy()

    def holding(self, stop: int) -> Segment:
        """The segment of this sequence in which its first ``stop`` ids end."""
        segment = self
        while segment.base is not None and segment.start >= stop:
            segment = segment.far if segment.far is not None and segment.far.start >= stop else segment.base
        return segment

    def pieces(self, start: int, stop: int) -> list[IntArray]:
        """The ids ``[start, stop)`` of the whole sequence, as views in order."""
        found: list[IntArray] = []
        segment: Segment | None = self
        while segment is not None and stop > start:
            if stop > segment.start:
                found.append(segment.own[max(start, segment.start) - segment.start : stop - segment.start])
                stop = segment.start
            segment = segment.base
        return found[::-1]

    def __reduce__(self) -> tuple[Any, ...]:
        # `far` is not needed to restore it. Written first, it bounds how deep the bases nest in each other in a pickle.
        return _unpickled, (self.tree, self.far, self.base, self.start, self.own.tobytes())


def _far(base: Segment) -> Segment:
    far = base.far
    if far is not None and far.far is not None and base.depth - far.depth == far.depth - far.far.depth:
        return far.far
    return base


def _unpickled(tree: Tree, _: Segment | None, base: Segment | None, start: int, ids: bytes) -> Segment:
    import numpy as np

    return Segment(tree, base, start, np.frombuffer(ids, np.int32))


class Tree:
    """Stands for the store that segments are of. Not the store itself: that would be a cycle, which trainers that
    switch the collector off would never get rid of."""

    __slots__ = ()


class Span:
    """Ids ``[start, stop)`` of the sequence that ends in a segment."""

    __slots__ = ("segment", "start", "stop")

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        self.segment = segment
        self.start = start
        self.stop = stop

    def get(self) -> IntArray:
        """int32 [stop - start], read-only; a view where the ids lie in one segment."""
        import numpy as np

        pieces = self.segment.pieces(self.start, self.stop)
        if len(pieces) == 1:
            return pieces[0]
        whole: IntArray = readonly(np.concatenate(pieces) if pieces else np.empty(0, np.int32))
        return whole

    def __reduce__(self) -> tuple[Any, ...]:
        return Span, (self.segment, self.start, self.stop)

    def __deepcopy__(self, memo: dict[int, Any]) -> Span:
        return self  # Its ids never change.


class TokenStore:
    """The segments of one trajectory. Not thread safe: the trajectory's lock guards it."""

    __slots__ = ("_roots", "segments", "tree")

    def __init__(self) -> None:
        self._roots: dict[int, Segment] = {}
        self.segments: list[Segment] = []
        self.tree = Tree()

    def add(self, prompt: IntArray | None, completion: IntArray | None) -> tuple[Span | None, Span | None]:
        """Stores a prompt and its completion and gives their spans. None stays None.

        A completion whose prompt is not known shares nothing: where it stands is not known either.
        """
        if prompt is None:
            if completion is None:
                return None, None
            segment = self._new(None, 0, completion)
            return None, Span(segment, 0, len(completion))
        length = len(prompt)
        if completion is None:
            return Span(self._insert(prompt), 0, length), None
        # A completion of nothing begins where its prompt does: at the root.
        segment = self._continue(self._insert(prompt), length, completion) if length else self._insert(completion)
        return Span(segment, 0, length), Span(segment, length, length + len(completion))

    def attach(self, base: Segment | None, start: int, ids: IntArray) -> Segment:
        """Stores ids that continue the first ``start`` ids of ``base``, and gives the segment in which they end.

        A file of another writer's may hold them more than once, or begin a segment where one could go on. Here equal
        ids from the start on become the same segments all the same: that is how sequences find what a prompt continues.
        """
        if base is None or not start:
            return self._insert(ids)
        return self._continue(base.holding(start), start, ids)

    def finish(self) -> None:
        """Gives back the room kept for growth, and the way down the tree: nothing is stored any more."""
        for segment in self.segments:
            segment.trim()
            segment.children.clear()

    def _insert(self, ids: IntArray) -> Segment:
        if not len(ids):
            return self._new(None, 0, ids)
        root = self._roots.get(int(ids[0]))
        if root is None:
            root = self._roots[int(ids[0])] = self._new(None, 0, ids)
            return root
        return self._continue(root, 0, ids)

    def _continue(self, segment: Segment, at: int, ids: IntArray) -> Segment:
        """Walks down from position ``at`` of ``segment`` along ``ids``, and stores what is not there yet."""
        done = 0
        while done < len(ids):
            position = at + done
            if position < segment.end:
                done += common_prefix(segment.own[position - segment.start :], ids[done:])
                position = at + done
                if done == len(ids):
                    break
            child = segment.children.get((position, int(ids[done])))
            if child is not None:
                segment = child
            elif position == segment.end:
                segment.extend(ids[done:])
                break
            else:
                child = segment.children[position, int(ids[done])] = self._new(segment, position, ids[done:])
                return child
        return segment

    def _new(self, base: Segment | None, start: int, ids: IntArray) -> Segment:
        # A view would keep the larger array that it is part of alive.
        segment = Segment(self.tree, base, start, ids if ids.base is None else ids.copy())
        self.segments.append(segment)
        return segment


def common_prefix(one: IntArray, other: IntArray) -> int:
    """Length of the longest common prefix of two id arrays."""
    import numpy as np

    length, done, step = min(len(one), len(other)), 0, _COMPARED
    # In steps that double: long arrays that part early would otherwise cost their whole length each time.
    while done < length:
        differs = one[done : min(done + step, length)] != other[done : min(done + step, length)]
        if differs.any():
            return done + int(np.argmax(differs))
        done, step = done + step, 2 * step
    return length


def as_int32(values: Any, name: str = "token ids") -> IntArray:
    """Token ids as a read-only int32 array.

    Raises:
        ValueError: an id is not a whole number from 0 to 2**31 - 1, or the array is not one-dimensional.
    """
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name}: expected a flat list of whole numbers, got {_brief(values)}.")
    if array.size and (int(array.min()) < 0 or int(array.max()) > 0x7FFFFFFF):
        bad = next(value for value in array.tolist() if not 0 <= value <= 0x7FFFFFFF)
        raise ValueError(f"{name}: expected ids from 0 to 2147483647, got {bad!r}.")
    ids: IntArray = readonly(array.astype(np.int32))
    return ids


def as_float32(values: Any, name: str = "logprobs") -> FloatArray:
    """Numbers as a read-only float32 array.

    Raises:
        ValueError: a value is no number, or one that float32 cannot hold, or the array is not one-dimensional.
    """
    import numpy as np

    try:
        with np.errstate(over="raise"):
            array = np.array(values, np.float32)
    except FloatingPointError:
        given = np.asarray(values, np.float64).ravel()
        bad = given[np.isfinite(given) & (np.abs(given) > FLOAT32_MAX)][0].item()
        raise ValueError(f"{name}: expected numbers from {-FLOAT32_MAX} to {FLOAT32_MAX}, got {bad!r}.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a flat list of numbers, got {_brief(values)}.") from None
    if array.ndim != 1:
        raise ValueError(f"{name}: expected a flat list of numbers, got {_brief(values)}.")
    numbers: FloatArray = readonly(array)
    return numbers


def same_array(one: Any, other: Any) -> bool:
    """Equality that also holds for arrays: same dtype, same length, same values; NaN (none given) equals NaN."""
    if hasattr(one, "dtype") or hasattr(other, "dtype"):
        if getattr(one, "dtype", None) != getattr(other, "dtype", None) or one.shape != other.shape:
            return False
        same = one == other
        return bool(same.all() or (same | ((one != one) & (other != other))).all())
    return bool(one == other)


def readonly(array: Any) -> Any:
    """The array itself, or a view of it that cannot be written to."""
    if array.flags.writeable:
        array = array[:]
        array.flags.writeable = False
    return array


def _brief(values: Any) -> str:
    text = repr(values)
    return text if len(text) <= 80 else text[:77] + "..."
