"""Storage for token ids: prefixes that prompts share are stored once.

A store is a radix tree of segments. A segment holds its own ids and continues another segment after that one's first
``start`` ids. Two prompts share all segments up to the token where they differ, so memory grows by the tokens that are
new in each turn.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from rollout_trace.data.id_text import IdText
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int32]
    FloatArray: TypeAlias = npt.NDArray[np.float32]
    MaskArray: TypeAlias = npt.NDArray[np.int8]

INT32_MAX: Final = 2**31 - 1
_COMMA: Final = ord(",")
_ZERO: Final = ord("0")
_NINE: Final = ord("9")
FLOAT32_MAX = 3.4028234663852886e38
"""The largest finite float32."""
_DIGITS: Final = len(str(INT32_MAX))
_FIRST_BLOCK = 4096
"""Length of the first block of ids that ``common_prefix`` compares."""


class Stored:
    """A form in which a field of a step is stored; it does not change."""

    __slots__ = ()

    def get(self) -> Any:
        """The field's value, made anew each time."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        names: tuple[str, ...] = self.__slots__
        return type(self), tuple([getattr(self, name) for name in names])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self  # A copy would store once more what others share.


class GrowingArray:
    """An array to which rows are appended in place. Views that were handed out keep their values."""

    __slots__ = ("_buffer", "length")

    def __init__(self, rows: Any) -> None:
        self._buffer = rows
        self.length = len(rows)

    def rows(self, first: int = 0, end: int | None = None) -> Any:
        """The rows ``[first, end)``, a read-only view."""
        return readonly(self._buffer[first : self.length if end is None else end])

    def extend(self, rows: Any) -> None:
        """Appends rows."""
        import numpy as np

        used, needed = self.length, self.length + len(rows)
        if needed > len(self._buffer):
            # Growing by half keeps appending linear in time and leaves at most a third of the buffer unused.
            grown = np.empty((max(needed, used + used // 2), *self._buffer.shape[1:]), self._buffer.dtype)
            grown[:used] = self._buffer[:used]
            self._buffer = grown
        # In place is safe: views handed out so far end at `used` or before.
        self._buffer[used:needed] = rows
        self.length = needed

    def trim(self) -> None:
        """Frees the part of the buffer reserved for growth."""
        if self.length < len(self._buffer):
            self._buffer = self._buffer[: self.length].copy()


class Segment(GrowingArray):
    """Ids ``[start, end)`` of a sequence whose first ``start`` ids are those of ``base``."""

    __slots__ = ("base", "children", "depth", "end", "jump", "start", "text", "tree")

    def __init__(self, tree: Tree, base: Segment | None, start: int, ids: IntArray) -> None:
        self._buffer = ids
        self.length = len(ids)
        self.tree = tree
        self.base = base
        self.depth: int = 0 if base is None else base.depth + 1
        # Myers' skew-binary jump pointer: an ancestor chosen so that any of n ancestors is reached in O(log n) steps.
        self.jump: Segment | None = None if base is None else _jump_of(base)
        self.start = start
        self.end = start + len(ids)
        self.children: dict[tuple[int, int], Segment] = {}
        self.text: IdText | None = None
        """Of its own ids, once a prompt was compared with them."""

    @property
    def own_ids(self) -> IntArray:
        """The ids stored in this segment, without those of its bases: int32 [end - start], read-only."""
        own: IntArray = self._buffer[: self.length]
        own.flags.writeable = False
        return own

    def extend(self, ids: IntArray) -> None:
        """Appends ids in place."""
        super().extend(ids)
        self.end = self.start + self.length

    def ending_segment(self, stop: int) -> Segment:
        """The segment, this one or a base, that holds id ``stop - 1`` of this sequence."""
        segment = self
        while segment.base is not None and segment.start >= stop:
            segment = segment.jump if segment.jump is not None and segment.jump.start >= stop else segment.base
        return segment

    def pieces(self, start: int, stop: int) -> list[IntArray]:
        """The ids ``[start, stop)`` of the whole sequence, as views in order."""
        pieces: list[IntArray] = []
        segment: Segment | None = self
        while segment is not None and stop > start:
            if stop > segment.start:
                pieces.append(segment._buffer[max(start, segment.start) - segment.start : stop - segment.start])
                stop = segment.start
            segment = segment.base
        return pieces[::-1]

    def ids(self, start: int, stop: int) -> IntArray:
        """The ids ``[start, stop)`` of the whole sequence: int32, read-only; a view where they lie in one segment."""
        import numpy as np

        pieces = self.pieces(start, stop)
        found: IntArray = pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty(0, np.int32)])
        found.flags.writeable = False
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # `jump` is recomputed on restore. Pickled before `base`, it bounds the recursion depth of pickle: bases alone
        # would nest as deep as the chain is long.
        return _restore_segment, (self.tree, self.jump, self.base, self.start, self.own_ids.tobytes())


def _jump_of(base: Segment) -> Segment:
    jump = base.jump
    if jump is not None and jump.jump is not None and base.depth - jump.depth == jump.depth - jump.jump.depth:
        return jump.jump
    return base


def _restore_segment(tree: Tree, _: Segment | None, base: Segment | None, start: int, ids: bytes) -> Segment:
    import numpy as np

    return Segment(tree, base, start, np.frombuffer(ids, np.int32))


class PromptIds:
    """The ids of a prompt that were read from its text: the first ``start`` are those of a segment's sequence."""

    __slots__ = ("ids", "segment", "start")

    def __init__(self, segment: Segment | None, start: int, ids: IntArray) -> None:
        self.segment = segment
        self.start = start
        self.ids = ids
        """Those behind them, which alone were read: int32, read-only."""

    def __len__(self) -> int:
        return self.start + len(self.ids)

    def equals(self, other: Any) -> bool:
        """Whether an array, or other ids that were read beside these, are known to be the same."""
        if isinstance(other, PromptIds) and (self.segment, self.start) == (other.segment, other.start):
            return same_array(self.ids, other.ids)
        return same_array(self.get(), id_array(other))

    def get(self) -> IntArray:
        """All ids, int32, read-only."""
        import numpy as np

        if self.segment is None:
            return self.ids
        ids: IntArray = readonly(np.concatenate([*self.segment.pieces(0, self.start), self.ids]))
        return ids


def id_array(ids: Any) -> Any:
    """The array of a prompt's ids, where they are ``PromptIds``; any other value itself."""
    return ids.get() if isinstance(ids, PromptIds) else ids


def id_list(ids: Any) -> Any:
    """The ids of a prompt as a list; a value that is no array, and no ``PromptIds``, itself."""
    ids = id_array(ids)
    return ids.tolist() if hasattr(ids, "dtype") else ids


class Tree:
    """Identifies the store of a segment: without a cycle, never freed in trainers that switch the collector off."""

    __slots__ = ()


class Span(Stored):
    """Ids ``[start, stop)`` of the sequence that a segment and its bases form."""

    __slots__ = ("segment", "start", "stop")

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        self.segment = segment
        self.start = start
        self.stop = stop

    def get(self) -> IntArray:
        """The ids, int32 [stop - start], read-only; a view where they lie in one segment, else a copy."""
        return self.segment.ids(self.start, self.stop)


@dataclass(slots=True, eq=False)
class TokenStore:
    """The segments of one trajectory. Not thread safe: callers hold the trajectory's lock."""

    long_text: ClassVar[int] = 1024
    """Bytes of a list of ids from which on its text is compared."""
    segments: list[Segment] = field(default_factory=list)
    tree: Tree = field(default_factory=Tree)
    _roots: dict[int, Segment] = field(default_factory=dict)

    def read(self, text: bytes, begin: int, end: int) -> PromptIds | None:
        """The ids of a prompt from its text: the inside of a list of JSON, ``text[begin:end]``.

        Read are only those behind the ids that are stored already. None as of ``ids_in``, and of a short one, which
        costs less to read as any other list.
        """
        if end - begin < self.long_text:
            return None
        segment, start, at = None, 0, begin
        while True:
            comma = text.find(b",", at, min(end, at + _DIGITS + 1))
            digits = text[at : max(comma, at)]
            if not digits.isdigit():
                break
            first = int(digits)
            found = self._roots.get(first) if segment is None else segment.children.get((start, first))
            if found is None:
                break
            found.text = found.text or IdText()
            same, at = found.text.match(found.own_ids, text, at, end)
            # None, where the first one is spelled otherwise.
            if not same:
                break
            segment, start = found, found.start + same
        ids = ids_in(text[at:end])
        return None if ids is None else PromptIds(segment, start, ids)

    def add(self, prompt: IntArray | PromptIds | None, completion: IntArray | None) -> tuple[Span | None, Span | None]:
        """Stores a prompt and its completion and returns their spans; None for None.

        A completion without its prompt gets a separate segment: its position in a sequence is unknown, so equal ids
        need not be the same tokens.
        """
        if prompt is None:
            if completion is None:
                return None, None
            segment = self._new(None, 0, completion)
            return None, Span(segment, 0, len(completion))
        length = len(prompt)
        ids = prompt.ids if isinstance(prompt, PromptIds) else prompt
        if isinstance(prompt, PromptIds) and prompt.segment is not None:
            segment = self.attach(prompt.segment, prompt.start, ids)
        elif completion is None or (length and ids.item(0) in self._roots):
            segment = self._insert(ids)
        elif not length:
            # After an empty prompt the completion begins a sequence: there is no id to continue.
            segment = self._insert(completion)
            return Span(segment, 0, 0), Span(segment, 0, len(completion))
        else:
            import numpy as np

            # A new sequence: in one array, copied once.
            segment = self._roots[ids.item(0)] = self._new(None, 0, np.concatenate((ids, completion)))
            return Span(segment, 0, length), Span(segment, length, length + len(completion))
        if completion is None:
            return Span(segment, 0, length), None
        segment = self._continue(segment, length, completion)
        return Span(segment, 0, length), Span(segment, length, length + len(completion))

    def attach(self, base: Segment | None, start: int, ids: IntArray) -> Segment:
        """Stores ids that continue the first ``start`` ids of ``base``, and returns the segment in which they end.

        That segment may hold more than ``ids``, or only their end: other writers may store equal ids twice, or split
        them anywhere. Equal prefixes become the same segments here, because sequences compare segments to find the
        step that a prompt continues.
        """
        if base is None or not start:
            return self._insert(ids)
        return self._continue(base.ending_segment(start), start, ids)

    def finish(self) -> None:
        """Frees growth buffers and child tables. Nothing can be stored afterwards."""
        for segment in self.segments:
            segment.trim()
            segment.children.clear()
            segment.text = None

    def _insert(self, ids: IntArray) -> Segment:
        if not len(ids):
            return self._new(None, 0, ids)
        first = ids.item(0)
        root = self._roots.get(first)
        if root is None:
            root = self._roots[first] = self._new(None, 0, ids)
            return root
        return self._continue(root, 0, ids)

    def _continue(self, segment: Segment, at: int, ids: IntArray) -> Segment:
        """Walks down from position ``at`` of ``segment`` along ``ids`` and stores those not in the tree yet."""
        done = 0
        while done < len(ids):
            position = at + done
            if position < segment.end:
                done += common_prefix(segment.own_ids[position - segment.start :], ids[done:])
                position = at + done
                if done == len(ids):
                    break
            child = segment.children.get((position, int(ids[done])))
            if child is not None:
                segment = child
            elif position == segment.end:
                # Nothing continues the segment here yet: children are made only inside of one.
                segment.extend(ids[done:])
                break
            else:
                child = segment.children[position, int(ids[done])] = self._new(segment, position, ids[done:])
                return child
        return segment

    def _new(self, base: Segment | None, start: int, ids: IntArray) -> Segment:
        # Copied where it is a view, which would keep the whole array under it alive.
        segment = Segment(self.tree, base, start, ids if ids.base is None else ids.copy())
        self.segments.append(segment)
        return segment


def common_prefix(one: IntArray, other: IntArray) -> int:
    """Length of the longest common prefix of two id arrays."""
    import numpy as np

    length, done, step = min(len(one), len(other)), 0, _FIRST_BLOCK
    # In blocks that double: comparing whole arrays would cost their full length even where they differ early.
    while done < length:
        differs = one[done : min(done + step, length)] != other[done : min(done + step, length)]
        if differs.any():
            return done + int(np.argmax(differs))
        done, step = done + step, 2 * step
    return length


def as_int32(values: Any, name: str = "token ids") -> IntArray:
    """Token ids as a read-only int32 array. Raises ValueError for what is no flat list of ids from 0 to 2**31 - 1."""
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name}: expected a flat list of whole numbers, got {printable(repr(values), 80)}.")
    if array.size and (int(array.min()) < 0 or int(array.max()) > INT32_MAX):
        bad = next(value for value in array.tolist() if not 0 <= value <= INT32_MAX)
        raise ValueError(f"{name}: expected ids from 0 to 2147483647, got {bad!r}.")
    ids: IntArray = readonly(array.astype(np.int32))
    return ids


def as_float32(values: Any, name: str = "logprobs") -> FloatArray:
    """Numbers as a read-only float32 array. Raises ValueError for what is no flat list of numbers within its range."""
    import numpy as np

    try:
        # By default numpy turns a number too large for float32 into infinity, with a warning only.
        with np.errstate(over="raise"):
            array = np.array(values, np.float32)
    except FloatingPointError:
        given = np.asarray(values, np.float64).ravel()
        bad = given[np.isfinite(given) & (np.abs(given) > FLOAT32_MAX)][0].item()
        raise ValueError(f"{name}: expected numbers from {-FLOAT32_MAX} to {FLOAT32_MAX}, got {bad!r}.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a flat list of numbers, got {printable(repr(values), 80)}.") from None
    if array.ndim != 1:
        raise ValueError(f"{name}: expected a flat list of numbers, got {printable(repr(values), 80)}.")
    numbers: FloatArray = readonly(array)
    return numbers


def same_array(one: Any, other: Any) -> bool:
    """Equality for arrays (same dtype, shape and values) and other objects. NaN, a missing logprob, equals NaN."""
    if hasattr(one, "dtype") or hasattr(other, "dtype"):
        if getattr(one, "dtype", None) != getattr(other, "dtype", None) or one.shape != other.shape:
            return False
        same = one == other
        return bool(same.all() or (same | ((one != one) & (other != other))).all())
    return bool(one == other)


def readonly(array: Any) -> Any:
    """The array itself if it is read-only, else a read-only view of it."""
    if array.flags.writeable:
        array = array[:]
        array.flags.writeable = False
    return array


def array_of(values: Sequence[float], kind: Literal["i", "f"]) -> Any:
    """int32 (``i``) or float32 (``f``) of numbers, read-only: its memory is of bytes.

    Raises struct.error for what is no number or no int32, OverflowError for what is beyond float32.
    """
    import numpy as np

    # Twice as fast as `np.fromiter`. Without "=", a number beyond float32 would be packed as infinity.
    return np.frombuffer(struct.pack(f"={len(values)}{kind}", *values), kind)


def ids_in(text: bytes) -> IntArray | None:
    """Token ids from the inside of a list of JSON: int32, read-only.

    None where it is to be read otherwise: where it holds anything but digits and commas, lacks a number, or has one
    that is no int32 or that JSON would refuse.
    """
    import numpy as np

    # Numpy reads other texts too, and where a number is missing it raises an error, or warns, depending on its version.
    if not _is_of_ids(np.frombuffer(b",%b," % text, np.uint8)):
        return None
    numbers = np.fromstring(text, np.int64, sep=",")
    # What is too large for numpy is read as the largest number.
    if np.bitwise_or.reduce(numbers) > INT32_MAX:
        return None
    ids: IntArray = numbers.astype(np.int32)
    ids.flags.writeable = False
    return ids


def _is_of_ids(text: Any) -> bool:
    """Returns whether characters, which begin and end with a comma, are numbers without a sign, as JSON spells them."""
    import numpy as np

    # Each a pass over all characters at once, faster than anything that looks at the numbers one by one.
    commas = text == _COMMA
    if np.count_nonzero(text < _ZERO) != np.count_nonzero(commas) or text.max() > _NINE:
        return False
    if (commas[:-1] & commas[1:]).any():
        return False
    # A number that begins with 0 is that 0 alone.
    return not (commas[:-2] & (text[1:-1] == _ZERO) & ~commas[2:]).any()
