"""The long texts of a journal's records (requests, answers, redacted steps): written as what is new in each, and back.

Each is a difference of an earlier text of its trajectory, its base, which has a number. Bases are kept as long as they
may be needed, bounded over the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ref
from zlib import crc32

from rollout_trace._threads import renew_after_fork
from rollout_trace.file.difference import Arrays, Difference, arrays, difference, repeated, searched
from rollout_trace.file.encode import PARTS
from rollout_trace.file.journal import STEPS, Record

REQUEST, ANSWER = 0, -1
"""Kinds of texts; those of steps are numbered from 1. A text is a difference of one of its own kind."""
MOST = 4
"""Bases of a kind in a trajectory: as many agents may take turns in one, and each is still compared with itself."""
LIMIT = 64 * 1024 * 1024
"""Most bytes of bases in this process; past it the oldest are dropped, and the next texts are written whole."""
SHORT = 1024
"""Bytes below which a text is written whole, and is no base: to compare it would take longer than to write it."""
_SHORT_ANSWER = 2048
_SEARCHED = 4096
"""Bytes between what both begin and end with that are looked for elsewhere in the base."""
_LONG = 1 << 18
"""An answer of so many bytes is compared whatever it has. Others begin with an id of their own, and most are new."""


class _Numbers(NamedTuple):
    """Numbers of a text, with their checksum: that of more numbers, which begin with these, takes only the rest."""

    place: int
    length: int
    checksum: int


class _Base:
    """One earlier text."""

    __slots__ = ("__weakref__", "_arrays", "data", "kind", "number", "numbers")

    def __init__(self, number: int, kind: int, data: bytes, found: Arrays | None, numbers: _Numbers | None) -> None:
        self.number = number
        self.kind = kind
        self.data: bytes | None = data
        """None once it was dropped."""
        self.numbers = numbers
        self._arrays = found

    def arrays(self, data: bytes) -> Arrays:
        """Returns where the text has long arrays of numbers."""
        if self._arrays is None:
            self._arrays = arrays(data)
        return self._arrays


class Part(NamedTuple):
    """A text as it goes into a record."""

    middle: bytes
    reference: tuple[int, ...] | None = None
    """Number of the base, bytes of its beginning, bytes of its end; with copies the checksum of the whole text, by
    ``_checksum``, and ``copies`` of its ``Difference``. None: the text is whole."""
    is_base: bool = False
    """Whether later texts may be differences of this one."""
    replaced: _Base | None = None
    """The base that this one goes on with."""
    arrays: Arrays | None = None
    numbers: _Numbers | None = None
    """The numbers that begin with the first copy."""


class Bases:
    """The bases of one trajectory. Any thread, and the garbage collector: the tuple is replaced, never changed."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[_Base, ...] = ()

    def difference(self, text: bytes, kind: int = REQUEST) -> Part:
        """The text as a difference of the base that it has most in common with.

        Args:
            text: the text.
            kind: only bases of this kind are looked at.
        """
        size = len(text)
        if size < (_SHORT_ANSWER if kind == ANSWER else SHORT):
            return Part(text)
        own: Arrays | None = None
        if kind == ANSWER:
            own = arrays(text)
            if sum(end - start for start, end in own) * 4 < size < _LONG:
                return Part(text, is_base=bool(own), arrays=own)
        best: tuple[Difference, _Base] | None = None
        for base in self._kept:
            data = base.data
            if base.kind != kind or data is None:
                continue
            # Answers begin and end with little in common. What their arrays have is found from the beginnings of these.
            found = Difference(0, 0, text) if kind == ANSWER else difference(text, data)
            if len(found.middle) > _SEARCHED:
                own = arrays(text) if own is None else own
                found = repeated(text, data, found, own, base.arrays(data) if own else ())
            if best is None or len(found.middle) < len(best[0].middle):
                best = found, base
            # Enough: the others are not compared.
            if len(best[0].middle) * 8 <= size:
                break
        if best is not None and len(best[0].middle) > _SEARCHED:
            best = searched(text, best[1].data or b"", best[0]), best[1]
        # A reference takes some bytes itself, and makes the record depend on another one.
        if best is None or len(best[0].middle) * 4 > size * 3:
            return Part(text, is_base=True, arrays=own)
        found, base = best
        reference: tuple[int, ...] = (base.number, found.prefix, found.suffix)
        numbers = None
        if found.copies:
            checksum, numbers = _checksum(text, found, base.numbers)
            reference = (*reference, checksum, *found.copies)
        return Part(found.middle, reference, True, base if _goes_on(found, base, size) else None, own, numbers)

    def add(self, number: int, text: bytes, part: Part, kind: int = REQUEST) -> None:
        """Makes a written text a base, if suitable, replacing the base that it continues."""
        if not part.is_base:
            return
        base = _Base(number, kind, text, part.arrays, part.numbers)
        others = [one for one in self._kept if one is not part.replaced and one.data is not None]
        same = [one for one in others if one.kind == kind][: MOST - 1]
        self._kept = (base, *same, *(one for one in others if one.kind != kind))
        if part.replaced is not None:
            _held.drop(part.replaced)
        _held.add(base)

    def clear(self) -> None:
        """Drops all bases."""
        kept, self._kept = self._kept, ()
        for base in kept:
            _held.drop(base)


def _goes_on(found: Difference, base: _Base, size: int) -> bool:
    """Whether a text has nearly all of its base: of two branches, which share much, neither takes the other's place."""
    data = base.data or b""
    # Of an answer, the prompt: what was sampled may be left out of the next one.
    whole = len(data) if base.kind != ANSWER else max((end - start for start, end in base.arrays(data)), default=0)
    return size - len(found.middle) >= whole - whole // 64 - SHORT


def _checksum(text: bytes, found: Difference, known: _Numbers | None) -> tuple[int, _Numbers]:
    """The checksum of a text, from the place of its first copy to its end and then from its beginning to that place.

    In this order it goes on from the checksum that is known of the base: only what is new is summed up. Returned with
    it are the numbers that begin at that place.
    """
    literal, place, length = found.copies[:3]
    start = found.prefix + literal
    view, end = memoryview(text), start + length
    is_known = known is not None and known[:2] == (place, length)
    total = known.checksum if known is not None and is_known else crc32(view[start:end])
    stop = max(text.find(b"]", end), end)
    total = crc32(view[end:stop], total)
    return crc32(view[:start], crc32(view[stop:], total)), _Numbers(start, stop - start, total)


class _Held:
    """The bases of this process, oldest first. Only single operations on a dict: see ``file.journal``."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all. For a forked process: its trajectories are its own."""
        self._all: dict[int, ref[_Base]] = {}
        self._total = 0
        self._added = 0

    def add(self, base: _Base) -> None:
        """Counts a base; past the limit, drops the oldest."""
        self._all[id(base)] = ref(base)
        self._total += len(base.data or b"")
        self._added += 1
        # Threads may count past each other: now and then the total is summed up anew.
        if self._total > LIMIT or self._added % 256 == 0:
            self._shrink()

    def drop(self, base: _Base) -> None:
        """Frees a text that is no longer a base."""
        data, base.data = base.data, None
        if self._all.pop(id(base), None) is not None and data is not None:
            self._total -= len(data)

    def _shrink(self) -> None:
        total, sizes = 0, []
        for key, found in list(self._all.items()):
            base = found()
            data = None if base is None else base.data
            if base is None or data is None:
                self._all.pop(key, None)
            else:
                sizes.append((base, len(data)))
                total += len(data)
        for base, size in sizes if total > LIMIT else ():
            if total <= LIMIT // 2:
                break
            # Half of it at once, so that not every further base walks through all.
            base.data = None
            self._all.pop(id(base), None)
            total -= size
        self._total = total


_held = _Held()
renew_after_fork(_held, _Held.reset)


# Back


def texts_of(records: Sequence[Record]) -> Iterator[tuple[Record, list[bytes | None]]]:
    """The records, each with the texts that its blobs give. None: its base is missing, or is not the one it was.

    Args:
        records: those of one trajectory with texts, in the order in which they were written: a base comes before what
            needs it.
    """
    # How often each text is still needed: it is dropped with the last record that needs it.
    needed: Counter[tuple[int | None, int]] = Counter(
        (reference[0], kind) for record in records for _, kind, reference in _texts_in(record) if reference is not None
    )
    kept: dict[tuple[int | None, int], bytes] = {}
    for record in records:
        texts = []
        for (number, kind, reference), blob in zip(_texts_in(record), record.blobs, strict=False):
            text: bytes | None = bytes(blob)
            if reference is not None:
                base = kept.get((reference[0], kind))
                needed[reference[0], kind] -= 1
                if not needed[reference[0], kind]:
                    kept.pop((reference[0], kind), None)
                text = _whole_text(reference, bytes(blob), base)
            if text is not None and needed[number, kind]:
                kept.setdefault((number, kind), text)
            texts.append(text)
        yield record, texts


def _texts_in(record: Record) -> list[tuple[int | None, int, list[int] | None]]:
    """Of each blob: the number that its text has as a base, its kind, and its reference to another one."""
    head = record.head
    number, answer = (one if isinstance(one := head.get(name), int) else None for name in ("number", "answer"))
    if record.kind != STEPS:
        # The request is in the first record of its call alone; others have its number, by which they belong to it.
        return [
            (number if "difference" in head else None, REQUEST, _reference(head.get("difference"))),
            (answer, ANSWER, _reference(head.get("repeats"))),
        ]
    references = head.get("differences")
    references = references if isinstance(references, list) else [None] * len(PARTS)
    return [(number, kind, _reference(one)) for kind, one in enumerate(references, 1)]


def _reference(value: Any) -> list[int] | None:
    if not value:
        return None
    # Of another type than this library writes: a base that is in no journal.
    return value if isinstance(value, list) and all(type(one) is int for one in value) else [-1]


def _whole_text(reference: list[int], middle: bytes, base: bytes | None) -> bytes | None:
    """The whole text; None where its base is missing, or gives another one than was written."""
    try:
        _, prefix, suffix, *more = reference
        text = None if base is None else Difference(prefix, suffix, middle, tuple(more[1:])).apply(base)
    except ValueError:
        return None
    # Without copies there is no sum, and in the format's first version; in the second it was that of the text as it is.
    if text is None or not more:
        return text
    start = prefix + sum(more[1:2])
    return text if more[0] in (crc32(text[:start], crc32(text[start:])), crc32(text)) else None
