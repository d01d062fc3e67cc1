"""The latest requests of a trajectory, of which the next one is written as a difference; bounded over the process."""

from __future__ import annotations

import os
from typing import NamedTuple
from weakref import ref

from rollout_trace.file.plain import Difference, difference

MOST = 4
"""Bases of a trajectory: as many agents may take turns in one, and each is still compared with itself."""
LIMIT = 64 * 1024 * 1024
"""Most bytes of bases in this process; past it the oldest are dropped, and the next requests are written whole."""
SHORT = 1024
"""Bytes below which a text is written whole, and is no base: to compare it would take longer than to write it."""
_ENOUGH = 0.5
"""A base of which this part can be left out is taken; the others are not compared."""


class _Base:
    """One earlier text."""

    __slots__ = ("__weakref__", "data", "kind", "number")

    def __init__(self, number: int, kind: int, data: bytes) -> None:
        self.number = number
        self.kind = kind
        self.data: bytes | None = data
        """None once it was dropped."""


class Part(NamedTuple):
    """A text as it goes into a record."""

    middle: bytes
    reference: tuple[int, int, int] | None
    """Number of the record with the base, bytes of its beginning, bytes of its end; None: the text is whole."""
    base: _Base | None


class Bases:
    """The bases of one trajectory. Any thread, and the garbage collector: the tuple is replaced, never changed."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[_Base, ...] = ()

    def difference(self, text: bytes, kind: int = 0) -> Part:
        """The text as a difference of the base that it has most in common with.

        Args:
            text: the text.
            kind: only bases of this kind are looked at.
        """
        if len(text) < SHORT:
            return Part(text, None, None)
        best: tuple[Difference, _Base] | None = None
        for base in self._kept:
            data = base.data
            if base.kind != kind or data is None:
                continue
            found = difference(text, data)
            if best is None or len(found.middle) < len(best[0].middle):
                best = found, base
            if len(best[0].middle) <= len(text) * (1 - _ENOUGH):
                break
        # A reference takes some bytes itself, and makes the record depend on another one.
        if best is None or len(best[0].middle) + 64 > len(text):
            return Part(text, None, None)
        return Part(best[0].middle, (best[1].number, best[0].prefix, best[0].suffix), best[1])

    def add(self, number: int, text: bytes, part: Part, kind: int = 0) -> None:
        """Makes a text that was written a base, unless it is short. It takes the place of the one that it continues."""
        if len(text) < SHORT:
            return
        base = _Base(number, kind, text)
        others = [one for one in self._kept if one is not part.base and one.data is not None]
        same = [one for one in others if one.kind == kind][: MOST - 1]
        self._kept = (base, *same, *(one for one in others if one.kind != kind))
        if part.base is not None:
            _held.drop(part.base)
        _held.add(base)

    def clear(self) -> None:
        """Drops all bases."""
        kept, self._kept = self._kept, ()
        for base in kept:
            _held.drop(base)


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
        """Frees a base that is no longer one."""
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

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _held.reset())
