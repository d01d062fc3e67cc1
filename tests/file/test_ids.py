"""Token ids that are read without an object for each are those that msgspec reads, or are left to it."""

from __future__ import annotations

import json
import warnings

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.file.decode import decode, parse
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.line_ids import ids_of
from rollout_trace.file.records import TokenId
from tests.strategies import PROFILE

_list = msgspec.json.Decoder(list[TokenId])
_raw = msgspec.json.Decoder(msgspec.Raw)
LONG = ",".join(map(str, range(600)))
"""More than what is read as a list."""


def outcome(text: str) -> list[int] | None:
    """The ids that msgspec reads, which refuses what is no list of ids."""
    try:
        return _list.decode(text)
    except msgspec.DecodeError:
        return None


def found(text: str) -> list[int] | None:
    """The ids that are read quickly, of any JSON."""
    ids = ids_of([_raw.decode(text)])
    if ids is None:
        return None
    (array,) = ids.arrays()
    assert (array.dtype == np.int32, array.flags.writeable, ids.counts) == (True, False, [len(array)])
    return list(array.tolist())


@pytest.mark.parametrize(
    "text",
    [LONG, f"0,{LONG},999999999", LONG.replace(",", " , "), "", " ", "0", "1, 2", "2147483647", "0," * 1000 + "0"],
)
def test_lists_of_ids_are_read_quickly(text: str) -> None:
    assert found(f"[{text}]") == outcome(f"[{text}]") is not None


@pytest.mark.parametrize("white", ["", " ", "\t", "\r", "\n"])
def test_a_list_of_white_space_alone_has_no_id(white: str) -> None:
    assert found(f"[{white}]") in (None, [])


@given(st.lists(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 9), max_size=400), max_size=4))
@PROFILE
def test_lists_of_a_line_are_read_together(lists: list[list[int]]) -> None:
    ids = ids_of([_raw.decode(json.dumps(one, separators=(",", ":"))) for one in lists])
    assert ids is None or ([one.tolist() for one in ids.arrays()], ids.counts) == (lists, list(map(len, lists)))
    assert ids is not None or max(map(max, filter(None, lists))) > 999_999_999


NO_IDS = ["-1", "2147483648", "4294967296", "9223372036854775808", "99999999999999999999999", "-9223372036854775809",
          "1.5", "1.0", "1e3", "1e2000", "-1.0", "null", "true", '"1"', "[1]", "{}", "[]", '""']  # fmt: skip
OTHERWISE_WRITTEN = [" 1", "1 "]
"""Ids that are not digits alone."""


@pytest.mark.parametrize("value", NO_IDS + OTHERWISE_WRITTEN)
@pytest.mark.parametrize(
    "text", ["{}", "{0}," + LONG, LONG + ",{0}", "1,{0}," + LONG, LONG + ",{0},1", LONG + ",{0}" * 3]
)
def test_what_is_no_id_is_left_to_msgspec(text: str, value: str) -> None:
    text = f"[{text.replace('{}', value).replace('{0}', value)}]"
    assert found(text) in (None, outcome(text))


@pytest.mark.parametrize("value", NO_IDS + OTHERWISE_WRITTEN)
def test_numpy_is_given_nothing_that_it_would_warn_of(value: str) -> None:
    # A recorded warning is one that the user would see, whatever this program does with it.
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found(f"[{LONG},{value},{LONG}]")
    assert not seen


@pytest.mark.parametrize(
    "text", ["null", "1", '"' + "1" * 2000 + '"', "{}", '{"a":[' + LONG + "]}", "[[" + LONG + "]]"]
)
def test_what_is_no_list_is_left_to_msgspec(text: str) -> None:
    assert found(text) is None


@given(
    st.lists(st.integers(0, 10**9) | st.integers(0, 9), min_size=400, max_size=410),
    st.lists(st.tuples(st.integers(0, 4000), st.text('0123456789,.-+eE "[]nul \t', max_size=3)), max_size=2),
)
@PROFILE
def test_damaged_lists_are_read_as_msgspec_reads_them(ids: list[int], changes: list[tuple[int, str]]) -> None:
    text = json.dumps(ids, separators=(",", ":"))
    for at, put in changes:
        text = text[:at] + put + text[at + len(put) // 2 :]
    try:
        quick = found(text)
    except msgspec.DecodeError:
        assert outcome(text) is None
        return
    assert quick is None or quick == outcome(text)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=300), min_size=1, max_size=3), st.data())
@PROFILE
def test_a_damaged_line_has_the_error_that_it_had(segments: list[list[int]], data: st.DataObject) -> None:
    line = json.dumps({"schema": "rollout-trace/1", "id": "a", "segments": [{"ids": ids} for ids in segments]})
    whole = parse(line.encode())
    assert [ids.tolist() for ids in whole.ids.arrays()] == segments
    place = data.draw(st.integers(0, len(segments) - 1))
    bad = data.draw(st.sampled_from(NO_IDS))
    at = data.draw(st.integers(0, len(segments[place])))
    texts = [list(map(str, ids)) for ids in segments]
    texts[place].insert(at, bad)
    parts = ",".join(f'{{"ids":[{",".join(text)}]}}' for text in texts)
    with pytest.raises(BadLine) as caught:
        decode(b'{"schema":"rollout-trace/1","id":"a","segments":[%s]}' % parts.encode())
    assert caught.value.path == f"$.segments[{place}].ids[{at}]"
