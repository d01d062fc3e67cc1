"""Arrays with one row per position: what is stored once comes back bit for bit."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.data.rows import Block, RowSpan, RowStore


def rows_of(*values: int, dtype: str = "uint8") -> np.ndarray:
    return np.array([[[value, value + 1]] for value in values], dtype)


def stored(store: RowStore) -> int:
    return sum(block.length for block in store.blocks)


def test_a_conversation_stores_each_row_once() -> None:
    store = RowStore()
    whole = np.arange(600 * 3 * 2, dtype=np.uint16).reshape(600, 3, 2)
    spans = [store.add("experts", whole[:end].copy()) for end in range(20, 601, 20)]
    assert len(store.blocks) == 1
    assert stored(store) == 600
    assert all(len(span.runs) == 1 for span in spans)
    for span, end in zip(spans, range(20, 601, 20), strict=True):
        assert np.array_equal(span.get(), whole[:end])
        assert not span.get().flags.writeable
    store.finish()
    assert getattr(store.blocks[0].rows().base, "nbytes", None) == whole.nbytes
    assert np.array_equal(spans[3].get(), whole[:80])


def test_conversations_that_take_turns_store_each_row_once() -> None:
    """Thirty agents of one trajectory, whose prompts begin alike."""
    store, turns = RowStore(), range(40, 401, 40)
    shared = np.zeros((20, 3, 2), np.uint8)
    rng = np.random.default_rng(0)
    whole = [np.concatenate((shared, rng.integers(0, 99, (380, 3, 2)).astype(np.uint8))) for _ in range(30)]
    for end in turns:
        for rows in whole:
            assert np.array_equal(store.add("experts", rows[:end].copy()).get(), rows[:end])
    assert stored(store) == 20 + 30 * 380


def test_rows_that_begin_later_join_those_before() -> None:
    store = RowStore()
    whole = np.arange(100, dtype=np.int32).reshape(100, 1, 1)
    first, second = store.add("experts", whole[:60]), store.add("experts", whole[40:], 40)
    assert np.array_equal(first.get(), whole[:60])
    assert np.array_equal(second.get(), whole[40:])
    assert stored(store) == 100


def test_rows_that_differ_in_the_middle_are_kept_as_they_came() -> None:
    store = RowStore()
    one = np.arange(200, dtype=np.int32).reshape(200, 1, 1)
    other = one.copy()
    other[90:95] += 7
    spans = [store.add("experts", one), store.add("experts", other)]
    assert np.array_equal(spans[0].get(), one)
    assert np.array_equal(spans[1].get(), other)
    assert stored(store) == 205


def test_few_equal_rows_are_stored_again() -> None:
    store = RowStore()
    one, other = np.zeros((40, 1), np.int32), np.ones((40, 1), np.int32)
    other[10:12] = 0
    store.add("experts", one)
    span = store.add("experts", other)
    assert len(span.runs) == 1
    assert np.array_equal(span.get(), other)


def test_other_kinds_types_and_shapes_are_stored_apart() -> None:
    store = RowStore()
    store.add("experts", rows_of(*range(30)))
    assert len(store.add("experts", rows_of(*range(30), dtype="uint16")).runs) == 1
    store.add("experts", np.zeros((30, 2, 2), np.uint8))
    store.add("scores", rows_of(*range(30)))
    assert stored(store) == 120


def test_nan_equals_nan_and_zero_differs_from_minus_zero() -> None:
    store = RowStore()
    values = np.full(40, np.nan, np.float32)
    store.add("scores", values)
    store.add("scores", values.copy())
    assert stored(store) == 40
    store.add("scores", np.zeros(40, np.float32))
    assert np.signbit(store.add("scores", -np.zeros(40, np.float32)).get()).all()


@pytest.mark.parametrize("seed", range(40))
def test_any_arrays_come_back(seed: int) -> None:
    random = np.random.default_rng(seed)
    store, given, spans = RowStore(), [], []
    base = random.integers(0, 3, (300, 2, 2), np.uint8)
    for _ in range(12):
        start, end = sorted(random.integers(0, 300, 2).tolist())
        rows = base[start:end].copy()
        if len(rows) and random.random() < 0.5:
            rows[random.integers(0, len(rows))] += 1
        if random.random() < 0.3:
            base = base.copy()
            base[random.integers(0, 300) :] += 1
        given.append(rows)
        spans.append(store.add("experts", rows, start))
    store.finish()
    for rows, span in zip(given, spans, strict=True):
        assert span.get().dtype == rows.dtype
        assert np.array_equal(span.get(), rows)
        assert len(span) == len(rows)


def test_pickles_share_blocks() -> None:
    store = RowStore()
    whole = np.arange(4000, dtype=np.int32).reshape(1000, 2, 2)
    spans = [store.add("experts", whole[:end]) for end in range(100, 1001, 100)]
    data = pickle.dumps(spans)
    assert len(data) < 1.5 * whole.nbytes
    again = pickle.loads(data)
    assert all(np.array_equal(one.get(), other.get()) for one, other in zip(spans, again, strict=True))
    assert copy.deepcopy(spans[0]) is spans[0]


def test_a_part_does_not_keep_the_whole_alive() -> None:
    whole = np.zeros((1_000_000, 1), np.uint8)
    store = RowStore()
    span = store.add("experts", whole[:10])
    assert getattr(span.runs[0][0].rows().base, "nbytes", None) == 10


def test_an_array_without_rows_keeps_its_type() -> None:
    span = RowSpan(((Block(np.empty((0, 2, 3), np.uint16)), 0, 0),))
    assert span.get().shape == (0, 2, 3)
    assert span.get().dtype == np.uint16


@pytest.mark.parametrize("beyond", [1 << 31, 1 << 32, -(1 << 31) - 1])
def test_experts_beyond_int32_are_refused(beyond: int) -> None:
    """As the array of another type they would become other numbers."""
    with pytest.raises(ValueError, match="routed_experts: expected int32, got"):
        rt.Step(id="a.0", call_id="a", routed_experts=np.full((2, 1, 1), beyond))


def test_arrays_of_extras_are_read_only_out_of_a_pickle_too() -> None:
    ids, logprobs = np.array([[3, 4]], np.int32), np.array([[-1.0, -2.0]], np.float32)
    for value in (rt.TopTokens(ids, logprobs), rt.SamplingMask(ids[0], np.array([2], np.int32))):
        for other in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert other == value
            assert not other.ids.flags.writeable
            assert other.logprobs is None or not other.logprobs.flags.writeable


def test_rows_without_a_value_before_those_that_are_scored() -> None:
    """An engine that scores what is new of each prompt: each array has NaN where the one before has values."""
    random = np.random.default_rng(0)
    values = random.normal(size=12_000).astype(np.float32)
    store, given, spans = RowStore(), [], []
    for start in range(0, 12_000, 40):
        rows = values[: start + 40].copy()
        rows[: max(start, 1)] = np.nan
        given.append(rows)
        spans.append(store.add("scores", rows))
    assert max(len(span.runs) for span in spans) <= 3
    assert stored(store) <= 2.2 * len(values)
    store.finish()
    for rows, span in zip(given, spans, strict=True):
        np.testing.assert_array_equal(span.get(), rows)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 18, 400])
def test_arrays_of_one_row_repeated(length: int) -> None:
    store = RowStore()
    for rows in (np.zeros((length, 2, 2), np.uint8), np.full((length, 2, 2), 3, np.uint8)):
        for _ in range(2):
            span = store.add("experts", rows.copy())
            assert np.array_equal(span.get(), rows)
            assert span.get().dtype == np.uint8
    assert stored(store) <= 2 * length + 2
