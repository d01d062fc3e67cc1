"""Token ids and logprobs as users give them, and the tree that holds them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rollout_trace.data import id_text
from rollout_trace.data.model import Step
from rollout_trace.data.tokens import FLOAT32_MAX, TokenStore, as_float32, as_int32, common_prefix, id_list, readonly
from tests.amount import amount


@pytest.mark.parametrize(
    "ids", [[2**31], [5, -1], [True, False], np.array([True]), [1.5], [[1]], ["1"], [2**64]], ids=str
)
def test_what_is_no_token_id_is_refused(ids: object) -> None:
    with pytest.raises(ValueError, match=r"^completion_token_ids: expected "):
        Step(id="a", call_id="a", completion_token_ids=ids)  # type: ignore[arg-type]


def test_the_largest_id_is_one() -> None:
    ids = as_int32([0, 2**31 - 1])
    assert ids.tolist() == [0, 2**31 - 1]
    assert ids.dtype == np.int32


@pytest.mark.parametrize("logprob", [-1e300, 1e39, -3.5e38])
def test_a_number_that_float32_cannot_hold_is_refused(logprob: float) -> None:
    with pytest.raises(ValueError, match=r"^logprobs: expected numbers from -3\.4\d*e\+38 to 3\.4\d*e\+38, got "):
        Step(id="a", call_id="a", logprobs=[-0.5, logprob])  # type: ignore[arg-type]


def test_what_float32_holds_is_taken() -> None:
    assert as_float32([-FLOAT32_MAX, -1e-300, None, -np.inf]).tolist()[:2] == [-FLOAT32_MAX, 0.0]


def test_steps_whose_logprobs_have_gaps_can_be_compared() -> None:
    first, same, other = (
        Step(id="a", call_id="a", logprobs=logprobs)  # type: ignore[arg-type]
        for logprobs in ([-0.5, None], [-0.5, None], [None, -0.5])
    )
    assert first == first == same
    assert first != other


def test_an_array_that_is_made_read_only_stays_its_callers_own() -> None:
    given = np.zeros(3, np.int32)
    held = readonly(given)
    assert not held.flags.writeable
    given[0] = 1
    assert held[0] == 1
    assert readonly(held) is held


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 12_287, 12_288, 12_289, 40_000])
def test_the_common_prefix_of_long_arrays(length: int) -> None:
    one = np.arange(40_000, dtype=np.int32)
    other = one.copy()
    other[length:] += 1
    assert common_prefix(one, other) == common_prefix(other, one[: max(length, 39_999)]) == length
    assert common_prefix(one[:length], other) == length


@pytest.mark.amount
def test_the_segment_that_holds_a_position_is_found_in_a_deep_tree() -> None:
    store = TokenStore()
    rows = [[*range(0, 2 * at, 2), 2 * at + 1] for at in range(amount(80, 200, 200))]
    ends = [store.add(np.array(row, np.int32), None)[0] for row in rows]
    for span in ends:
        assert span is not None
        for stop in range(len(span.get()) + 1):
            segment = span.segment.ending_segment(stop)
            assert segment.base is None or segment.start < stop
            assert stop <= segment.end
            assert [piece.tolist() for piece in segment.pieces(0, stop)] == [
                piece.tolist() for piece in span.segment.pieces(0, stop)
            ]


def test_a_text_of_ids_that_is_asked_for_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may close an agent anywhere, whose call is decoded at once: each id is written once."""
    ids = list(range(1000, 1400))
    text = msgspec.json.encode(ids)
    store = TokenStore()
    store.add(np.array(ids, np.int32), np.array([7], np.int32))
    asked = []

    class Encoder:
        @staticmethod
        def encode(part: list[int]) -> bytes:
            asked.append(part[0])
            if len(asked) == 2:
                store.read(text, 1, len(text) - 1)
            return msgspec.json.encode(part)

    monkeypatch.setattr(id_text, "json", Encoder)
    assert id_list(store.read(text, 1, len(text) - 1)) == ids
    segment_text = store.segments[0].text
    assert segment_text is not None
    written = [int(one) for one in bytes(segment_text._text).split(b",") if one]
    assert written == [*ids, 7][: len(written)]
