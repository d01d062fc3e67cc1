"""Bytes as their difference from others: requests of one agent extend each other, and its answers repeat the prompt.

``difference`` finds a common beginning and end, which is what requests have. ``repeated`` and ``searched`` go on from
there, to what stands at other places in the two: the ids of a prompt, behind an answer of another length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rollout_trace.data.id_text import FIRST_BLOCK, LARGEST_BLOCK, WINDOW, common_prefix


class Difference(NamedTuple):
    """A text is ``base[:prefix] + middle + base[len(base) - suffix:]``, with the copies put into the middle."""

    prefix: int
    suffix: int
    middle: bytes
    copies: tuple[int, ...] = ()
    """For each copy three numbers: bytes of the middle before it, its place in the base, its length."""

    def apply(self, base: bytes) -> bytes:
        """The text. Raises ValueError: the base is shorter than the difference needs."""
        end = max([self.prefix + self.suffix, *map(sum, zip(self.copies[1::3], self.copies[2::3], strict=True))])
        if end > len(base):
            raise ValueError(f"the difference needs {end} bytes of a base that has {len(base)}")
        if min(self.prefix, self.suffix, *self.copies) < 0 or sum(self.copies[::3]) > len(self.middle):
            raise ValueError("the difference has impossible numbers")
        parts, at = [base[: self.prefix]], 0
        for literal, place, length in zip(*(self.copies[start::3] for start in range(3)), strict=True):
            parts += self.middle[at : at + literal], base[place : place + length]
            at += literal
        return b"".join((*parts, self.middle[at:], base[len(base) - self.suffix :]))


def difference(text: bytes, base: bytes) -> Difference:
    """The difference of a text from a base. Takes about as long as comparing the two."""
    prefix = common_prefix(text, base)
    most = min(len(text), len(base)) - prefix
    # Most requests end alike, in less than this.
    suffix = 0 if not most else _suffix_of(text[-WINDOW:], base[-WINDOW:], min(most, WINDOW))
    if suffix == WINDOW:
        suffix = _common_suffix(text, base, len(text), len(base), most)
    return Difference(prefix, suffix, text[prefix : len(text) - suffix])


def _common_suffix(one: bytes, other: bytes, end: int, other_end: int, most: int) -> int:
    """Number of bytes, at most ``most``, that are the same in both before these places."""
    view, low, block = memoryview(other), 0, FIRST_BLOCK
    while low < most:
        block = min(block, most - low)
        if not one.endswith(view[other_end - low - block : other_end - low], 0, end - low):
            break
        low += block
        block = min(2 * block, LARGEST_BLOCK)
    else:
        return max(low, 0)
    while block > WINDOW:
        half = block // 2
        if one.endswith(view[other_end - low - half : other_end - low], 0, end - low):
            low, block = low + half, block - half
        else:
            block = half
    last, other_last = end - low, other_end - low
    return low + _suffix_of(one[last - block : last], other[other_last - block : other_last], block)


def _suffix_of(one: bytes, other: bytes, most: int) -> int:
    """Number of bytes with which two short texts end, at most ``most``."""
    differ = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    # The lowest bit that differs is in the last byte that does.
    return min(((differ & -differ).bit_length() - 1) // 8, most) if differ else most


# What stands at other places

Arrays = Sequence[tuple[int, int]]
"""Of each long array of numbers: where it begins, behind its bracket, and where the next text begins behind it."""

_STRIDE = 64
"""One byte of so many is looked at to find arrays."""
_RUN = b"1" * 16
"""Such bytes in a row make an array."""
_MARKS = bytes(b"01"[chr(byte) in "0123456789-+.,[] nulEe"] for byte in range(256))
_OPENING = re.compile(rb'": ?\[')
_SHORTEST = 64
"""Bytes of a copy that is worth its three numbers."""
_SEARCHED = 1 << 15
"""Bytes without a copy in which one is searched for. Less is sooner written."""
_NEEDLE = 96
_TRIES = 32
_MOST = 64
"""Arrays of a text; the longest ones."""
_SEARCHES = 8


def arrays(text: bytes) -> list[tuple[int, int]]:
    """Finds long arrays of numbers in JSON. It samples few bytes, so it may miss one."""
    found: list[tuple[int, int]] = []
    marks = text[::_STRIDE].translate(_MARKS)
    run = marks.find(_RUN)
    while run >= 0:
        stop = marks.find(b"0", run)
        stop = len(marks) if stop < 0 else stop
        # Not other text, of which just these bytes could be an array's.
        if _has_none(text, (run + stop) // 2) or _has_none(text, (run + 3 * stop) // 4):
            found += _arrays_between(text, run * _STRIDE, min(stop * _STRIDE, len(text)))
        run = marks.find(_RUN, stop)
    # Of embeddings there are thousands, and each would be compared with each.
    return found if len(found) <= _MOST else sorted(sorted(found, key=lambda one: one[0] - one[1])[:_MOST])


def _has_none(text: bytes, mark: int) -> bool:
    """Returns whether the next bytes contain no quotation mark."""
    return text.find(b'"', mark * _STRIDE, (mark + 2) * _STRIDE) < 0


def _arrays_between(text: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    # Several: between two there may be a name alone, which is too short to be seen. And other text before the first.
    tries = _TRIES
    while at < end and tries:
        quote = text.rfind(b'"', at, at + len(_RUN) * _STRIDE // 2)
        if quote >= 0:
            at, tries = quote + 1, tries - 1
            continue
        opening = _OPENING.match(text, text.rfind(b'"', max(at - 2 * _STRIDE, 0), at))
        quote = text.find(b'"', at)
        quote = len(text) if quote < 0 else quote
        if opening is not None:
            yield opening.end(), quote
        at, tries = quote + 1, _TRIES


def repeated(text: bytes, base: bytes, found: Difference, own: Arrays, others: Arrays) -> Difference:
    """A difference with what arrays in its middle have in common with arrays of the base, from their beginnings.

    Args:
        text: the text.
        base: what ``found`` is a difference of.
        found: what both begin and end with; another one is returned.
        own: the arrays of the text.
        others: those of the base.
    """
    at, high = found.prefix, len(text) - found.suffix
    copies: list[_Copy] = []
    for start, end in own:
        at = max(at, start)
        if at < min(end, high):
            at = _add_longest(copies, text, at, high, base, others)
            # A prompt goes on with what was sampled after the last one, which is an array of its own there.
            if text.startswith(b",", at):
                _add_longest(copies, text, at + 1 + text.startswith(b" ", at + 1), high, base, others)
            at = max(at, sum(copies[-1][::2])) if copies else at
    return _with(copies, text, found)


def searched(text: bytes, base: bytes, found: Difference) -> Difference:
    """A difference with what long pieces of its middle have in common with the base, wherever that stands in both.

    Takes as long as looking through the base a few times.
    """
    if len(found.middle) < _SEARCHED:
        return found
    copies: list[_Copy] = []
    done = found.prefix
    for literal, place, length in zip(*(found.copies[start::3] for start in range(3)), strict=True):
        copies.append((done + literal, place, length))
        done += literal + length
    tries, done = _SEARCHES, found.prefix
    for start, _, length in [*copies, (len(text) - found.suffix, 0, 0)]:
        tries = _search(copies, text, done, start, base, tries)
        done = start + length
    return _with(copies, text, found)


_Copy = tuple[int, int, int]
"""Its place in the text, its place in the base, its length."""


def _with(copies: list[_Copy], text: bytes, found: Difference) -> Difference:
    parts, numbers, done = [], list[int](), found.prefix
    for start, place, length in sorted(copies):
        parts.append(text[done:start])
        numbers += start - done, place, length
        done = start + length
    middle = b"".join((*parts, text[done : len(text) - found.suffix]))
    return Difference(found.prefix, found.suffix, middle, tuple(numbers))


def _add_longest(copies: list[_Copy], text: bytes, at: int, high: int, base: bytes, others: Arrays) -> int:
    """Adds the longest copy that begins like an array of the base; returns its end in the text, or ``at``."""
    beginning = text[at : at + 16]
    length = place = 0
    for start, end in others:
        if base.startswith(beginning, start) and (found := common_prefix(text, base, at, start)) > length:
            length, place = found, start
            # To its end, as where a server repeats one prompt with each of many answers.
            if found + 16 > end - start:
                break
    length = min(length, high - at)
    if length < _SHORTEST:
        return at
    copies.append((at, place, length))
    return at + length


def _search(copies: list[_Copy], text: bytes, low: int, high: int, base: bytes, tries: int) -> int:
    """Adds what both have in the middle of a long piece, and then of what is left of it; returns the tries left."""
    pieces = [(low, high)]
    while pieces and tries > 0:
        low, high = pieces.pop()
        if high - low < _SEARCHED:
            continue
        start = (low + high) // 2
        place, length = base.find(text[start : start + _NEEDLE]), 0
        # In vain it takes longer: all of the base is looked through.
        tries -= 1 if place >= 0 else _SEARCHES // 2
        if place >= 0:
            length = min(common_prefix(text, base, start, place), high - start)
            before = _common_suffix(text, base, start, place, min(start - low, place))
            start, place, length = start - before, place - before, length + before
            copies.append((start, place, length))
        pieces += (low, start), (start + length, high)
    return tries
