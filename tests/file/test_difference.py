"""Bytes as their difference from others: what both begin and end with, and what stands at other places."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.data.id_text import common_prefix
from rollout_trace.file.difference import Difference, arrays, difference, repeated, searched


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=50))
def test_a_difference_gives_the_text_back(start: bytes, end: bytes, middle: bytes) -> None:
    text, base = start + middle + end, start + end
    found = difference(text, base)
    assert found.apply(base) == text
    assert len(found.middle) <= len(middle)
    assert difference(text, text).middle == b""
    assert difference(end, text).apply(text) == end


PIECES = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"ab", b"\x00"]), st.integers(0, 700)), max_size=4)


@given(PIECES, PIECES, PIECES, PIECES)
def test_a_difference_is_the_shortest(start: Any, old: Any, new: Any, end: Any) -> None:
    """Texts of any length: its beginning and its end are as long as they can be."""
    start, old, new, end = (b"".join(part * times for part, times in pieces) for pieces in (start, old, new, end))
    text, base = start + new + end, start + old + end
    found = difference(text, base)
    assert found.apply(base) == text
    pairs = list(zip(text, base, strict=False))
    assert found.prefix == next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    rest = list(zip(reversed(text[found.prefix :]), reversed(base[found.prefix :]), strict=False))
    assert found.suffix == next((at for at, (one, other) in enumerate(rest) if one != other), len(rest))


def test_a_difference_of_another_base_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 8 bytes of a base that has 3"):
        difference(b"abcd" * 2, b"abcd" * 2).apply(b"abc")


@given(PIECES, PIECES, PIECES, st.integers(0, 5))
def test_a_prefix_is_the_longest(start: Any, one: Any, other: Any, at: int) -> None:
    start, one, other = (b"".join(part * times for part, times in pieces) for pieces in (start, one, other))
    first, second = start + one, b"x" * at + start + other
    pairs = list(zip(first, second[at:], strict=False))
    expected = next((number for number, (left, right) in enumerate(pairs) if left != right), len(pairs))
    assert common_prefix(first, second, 0, at) == expected
    assert common_prefix(first.decode(), second.decode(), 0, at) == expected


WORDS = st.sampled_from([b"12,", b"345, ", b"[", b"]", b'"', b'":[', b'": [', b"abc", b"-0.5,null", b"\xff", b"x" * 70])
TEXTS = st.lists(st.tuples(WORDS, st.integers(1, 300)), max_size=12)


def joined(pieces: Any) -> bytes:
    return b"".join(word * times for word, times in pieces)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_what_is_repeated_gives_the_text_back(one: Any, other: Any, new: Any, old: Any) -> None:
    """Of any bytes, whatever looks like an array in them."""
    text = joined(one) + joined(new) + joined(other) + joined(one)
    base = joined(other) + joined(old) + joined(one)
    found = difference(text, base)
    whole = repeated(text, base, found, arrays(text), arrays(base))
    for one in (whole, searched(text, base, found), searched(text, base, whole)):
        assert one.apply(base) == text
        assert len(one.middle) <= len(found.middle)


@given(st.integers(0, 2**32), st.integers(0, 400), st.sampled_from([b",", b", "]), st.booleans())
def test_long_arrays_are_found_wherever_they_stand(seed: int, gap: int, comma: bytes, is_nested: bool) -> None:
    own = random.Random(seed)
    ids = [comma.join(b"%d" % own.randrange(150_000) for _ in range(count)) for count in (400, 300, 30)]
    ids = [b"[" + one.replace(comma, b"]" + comma + b"[") + b"]" for one in ids] if is_nested else ids
    before, between = (b"".join(own.choices([b"a", b'"b":1,', b"c "], k=gap)) for _ in range(2))
    text = b'{%b"x":[%b],%b"y": [%b],"z":[%b]}' % (before, ids[0], between, ids[1], ids[2])
    starts = {text.index(ids[0]), text.index(ids[1])}
    assert starts <= {start for start, _ in arrays(text)}


def test_of_many_arrays_the_longest_are_taken() -> None:
    lengths = [700 + 10 * (number * 37 % 100) for number in range(100)]
    text = b",".join(b'{"embedding":[%b]}' % (b"0.5," * length) for length in lengths)
    found = arrays(text)
    assert len(found) == 64
    assert found == sorted(found)
    assert all(text[start - 3 : start + 4] == b'":[0.5,' for start, _ in found)
    assert sum(end - start for start, end in found) > 0.9 * sum(4 * one for one in sorted(lengths)[-64:])


def test_a_long_piece_is_found_in_the_middle_of_another() -> None:
    """Where no array says where to look: something was put in at the beginning, and taken out behind it."""
    own = random.Random(3)
    one, two, three = (own.randbytes(50_000).hex().encode() for _ in range(3))
    text, base = b"new" * 40 + one + three + b"a", b"old" + one + two + three + b"b"
    found = searched(text, base, difference(text, base))
    assert found.apply(base) == text
    assert len(found.middle) < 300


@pytest.mark.parametrize(
    "broken",
    [
        Difference(2, 2, b"xy", (1, 3)),
        Difference(2, 2, b"xy", (1, -3, 2)),
        Difference(2, 2, b"xy", (1, 0, 9)),
        Difference(2, 2, b"xy", (3, 0, 2)),
        Difference(-2, 2, b"xy"),
    ],
)
def test_numbers_that_cannot_be_are_refused(broken: Difference) -> None:
    with pytest.raises(ValueError, match=r"difference|zip"):
        broken.apply(b"12345678")
