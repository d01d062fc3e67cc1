"""Extras in rows: each position has what its step had there, whatever is merged, cut, forked or left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.extras import PolicySpan, SamplingMask, TopTokenRows, TopTokens
from rollout_trace.data.model import Step, new_step
from rollout_trace.data.rows import RowStore
from rollout_trace.file.decode import decode as decode_line
from rollout_trace.file.encode import encode
from rollout_trace.train.sequence import Placeholder
from rollout_trace.wire import decode
from tests.amount import examples

LAYERS, K = 3, 2


def experts(seed: int, count: int, dtype: Any = np.uint8, layers: int = LAYERS) -> Any:
    return np.random.default_rng(seed).integers(1, 200, (count, layers, K)).astype(dtype)


def scores(seed: int, count: int) -> Any:
    values = -np.random.default_rng(seed).random(count).astype(np.float32) - 0.5
    values[:1] = np.nan
    return values


def tops(seed: int, count: int, k: int, *, of_prompt: bool = False) -> TopTokens:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 1000, (count, k)).astype(np.int32)
    logprobs = -random.random((count, k)).astype(np.float32)
    if of_prompt:
        ids[:1], logprobs[:1] = -1, np.nan
    return TopTokens(ids, logprobs)


def mask(seed: int, completion: list[int], *, logprobs: bool = False) -> SamplingMask:
    random = np.random.default_rng(seed)
    rows = [sorted({token, *random.integers(0, 1000, random.integers(0, 4)).tolist()}) for token in completion]
    ids = np.array([one for row in rows for one in row], np.int32)
    values = np.log(np.full(len(ids), 0.5, np.float32)) if logprobs else None
    return SamplingMask(ids, np.array(list(map(len, rows)), np.int32), values)


def step(number: int, prompt: list[int], completion: list[int], **facts: Any) -> Step:
    return Step(
        **{
            "id": f"s{number}", "call_id": f"s{number}", "index": number, "prompt_token_ids": prompt,
            "completion_token_ids": completion, "logprobs": [-1.0 - number] * len(completion), **facts,
        }
    )  # fmt: skip


def whole(number: int, prompt: list[int], completion: list[int], first: int = 0, **facts: Any) -> Step:
    """A step with every extra; experts from position ``first`` on."""
    return step(
        number, prompt, completion, prompt_logprobs=scores(number, len(prompt)),
        prompt_top_tokens=tops(number, len(prompt), 3, of_prompt=True),
        top_tokens=tops(50 + number, len(completion), 4), sampling_mask=mask(number, completion),
        policy_version=f"v{number}",
        routed_experts=experts(number, len(prompt) + len(completion) - 1 - first), **facts,
    )  # fmt: skip


def conversation(turns: int = 5) -> list[Step]:
    """Turns of two read and three sampled tokens, each with every extra."""
    steps: list[Step] = []
    ids: list[int] = []
    for number in range(turns):
        prompt = [*ids, 100 + number, 200 + number]
        completion = [10 * number + at for at in range(3)]
        steps.append(whole(number, prompt, completion))
        ids = [*prompt, *completion]
    return steps


def run(*steps: Step, **facts: Any) -> rt.Trajectory:
    return rt.Trajectory(steps=list(steps), reward=1.0, **facts)


def naive(row: rt.Sequence, steps: list[Step]) -> dict[str, list[Any]]:
    """What each position of a row has, by looking for it in the row's steps one by one; None where nothing is.

    A step says nothing of what stands behind its part of the row.
    """
    own = [
        (one, end) for name, (_, end) in zip(row.step_ids, row.spans, strict=True) for one in steps if one.id == name
    ]
    found: dict[str, list[Any]] = {name: [None] * len(row.token_ids) for name in ("experts", "scores", "prompt_top")}
    sampled: dict[str, list[Any]] = {name: [None] * len(row.token_ids) for name in ("top", "mask", "version")}
    for one, end in own:
        assert one.prompt_token_ids is not None
        assert one.completion_token_ids is not None
        n_prompt, n_sampled = len(one.prompt_token_ids), len(one.completion_token_ids)
        for at in range(end):
            if one.routed_experts is not None and found["experts"][at] is None:
                place = at - (n_prompt + n_sampled - 1 - len(one.routed_experts))
                if 0 <= place < len(one.routed_experts):
                    found["experts"][at] = one.routed_experts[place].tolist()
            if one.prompt_logprobs is not None and found["scores"][at] is None and 0 < at < n_prompt:
                found["scores"][at] = float(one.prompt_logprobs[at])
            if one.prompt_top_tokens is not None and found["prompt_top"][at] is None and 0 < at < n_prompt:
                found["prompt_top"][at] = one.prompt_top_tokens.ids[at].tolist()
            if n_prompt <= at < n_prompt + n_sampled:
                if one.top_tokens is not None:
                    sampled["top"][at] = one.top_tokens.ids[at - n_prompt].tolist()
                if one.sampling_mask is not None:
                    sampled["mask"][at] = one.sampling_mask[at - n_prompt].tolist()
                sampled["version"][at] = one.policy_version
    return {**found, **sampled}


def in_row(row: rt.Sequence) -> dict[str, list[Any]]:
    """The same, from the row's own arrays."""
    length = range(len(row.token_ids))
    nothing: list[Any] = [None for _ in length]
    result = dict.fromkeys(("experts", "scores", "prompt_top", "top", "mask", "version"), nothing)
    if row.routed_experts is not None and row.routed_experts_mask is not None:
        given = row.routed_experts_mask
        assert not row.routed_experts[given == 0].any()
        result["experts"] = [row.routed_experts[at].tolist() if given[at] else None for at in length]
    if row.prompt_logprobs is not None:
        result["scores"] = [None if np.isnan(one) else float(one) for one in row.prompt_logprobs]
    for name, top in (("prompt_top", row.prompt_top_tokens), ("top", row.top_tokens)):
        if top is not None:
            result[name] = [ids[ids >= 0].tolist() or None for ids in top.ids]
            assert np.array_equal(np.isnan(top.logprobs), top.ids < 0)
    if row.sampling_mask is not None:
        result["mask"] = [ids.tolist() or None for ids in row.sampling_mask]
    if row.token_versions is not None:
        result["version"] = [None if at < 0 else row.versions[at] for at in row.token_versions.tolist()]
    return result


def test_a_row_of_five_turns_has_everything_at_its_place() -> None:
    steps = conversation()
    (row,) = run(*steps).sequences()
    assert in_row(row) == naive(row, steps)
    assert row.routed_experts is not None
    assert row.routed_experts_mask is not None
    assert row.sampling_mask is not None
    assert row.routed_experts.dtype == np.uint8
    assert row.routed_experts.shape == (25, LAYERS, K)
    # The engine gives experts for all tokens but the last sampled one, which no later turn read.
    assert row.routed_experts_mask.tolist() == [1] * 24 + [0]
    assert row.policy_spans == tuple(PolicySpan(5 * at + 2, 5 * at + 5, f"v{at}") for at in range(5))
    assert (row.sampling_mask.counts > 0).tolist() == (row.loss_mask == 1).tolist()
    for array in (row.routed_experts, row.routed_experts_mask, row.sampling_mask.ids, row.prompt_logprobs):
        assert array is not None
        assert not array.flags.writeable
    assert run(*steps).sequences().report.tokens_with == {
        "prompt_logprobs": 21, "prompt_top_tokens": 21, "top_tokens": 15, "sampling_mask": 15, "routed_experts": 24,
        "policy_spans": 15,
    }  # fmt: skip


def test_ids_of_the_next_prompt_have_what_the_next_step_had() -> None:
    """``on_drift="mask"``: what the first step had where it is left was of other ids, or behind them."""
    question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    first = whole(0, [1, 2], [3, 4, 5], messages=[question])
    second = whole(1, [1, 2, 3, 7, 8, 9], [6], messages=[question, answer, question])
    (row,) = run(first, second).sequences(on_drift="mask", within=2)
    assert row.token_ids.tolist() == [1, 2, 3, 7, 8, 9, 6]
    assert in_row(row) == naive(row, [first, second])
    assert row.routed_experts is not None
    assert first.routed_experts is not None
    assert second.routed_experts is not None
    assert np.array_equal(row.routed_experts[:6], [*first.routed_experts[:3], *second.routed_experts[3:6]])
    assert row.prompt_logprobs is not None
    assert second.prompt_logprobs is not None
    assert np.array_equal(row.prompt_logprobs[3:6], second.prompt_logprobs[3:6])
    assert row.sampling_mask is not None
    assert (row.sampling_mask.counts > 0).tolist() == [False, False, True, False, False, False, True]
    assert row.top_tokens is not None
    assert (row.top_tokens.ids >= 0).any(axis=1).tolist() == (row.loss_mask == 1).tolist()
    assert row.policy_spans == (PolicySpan(2, 3, "v0"), PolicySpan(6, 7, "v1"))
    # Without the second step's, nothing is known of them.
    bare = replace(second, routed_experts=None, prompt_logprobs=None, prompt_top_tokens=None)
    (row,) = run(first, bare).sequences(on_drift="mask", within=2)
    assert in_row(row) == naive(row, [first, bare])
    assert row.routed_experts_mask is not None
    assert row.routed_experts_mask.tolist() == [1, 1, 1, 0, 0, 0, 0]


def test_a_row_without_extras_has_none() -> None:
    (row,) = run(step(0, [1, 2], [3])).sequences()
    assert [row.prompt_logprobs, row.prompt_top_tokens, row.top_tokens, row.sampling_mask] == [None] * 4
    assert [row.routed_experts, row.routed_experts_mask, row.policy_spans, row.token_versions] == [None] * 4
    assert (row.placeholders, row.versions) == ((), ())
    report = run(step(0, [1, 2], [3])).sequences().report
    assert (report.tokens_with, report.extras_left_out, report.constrained_tokens) == ({}, {}, 0)


def test_the_first_step_that_has_a_position_gives_it() -> None:
    """Its forward pass filled the cache that the later ones read; the last sampled token comes from the next step."""
    steps = conversation(2)
    first, second = steps
    (row,) = run(*steps).sequences()
    assert row.routed_experts is not None
    assert first.routed_experts is not None
    assert second.routed_experts is not None
    assert np.array_equal(row.routed_experts[:4], first.routed_experts)
    assert np.array_equal(row.routed_experts[4:9], second.routed_experts[4:])
    assert not np.array_equal(first.routed_experts, second.routed_experts[:4])


@pytest.mark.parametrize("dropped", [0, 2, 4])
def test_a_step_that_is_left_out_takes_its_extras_along(dropped: int) -> None:
    steps = conversation()
    steps[dropped].trainable = False
    (row,) = run(*steps).sequences()
    assert f"s{dropped}" not in row.step_ids
    assert in_row(row) == naive(row, steps)
    begin = 5 * dropped + 2
    if dropped < 4:
        assert row.sampling_mask is not None
        assert row.token_versions is not None
        assert not row.sampling_mask.counts[begin : begin + 3].any()
        assert (row.token_versions[begin : begin + 3] == -1).all()


@pytest.mark.parametrize("length", [2, 3, 4, 11, 13, 24, 25])
@pytest.mark.parametrize("truncate", ["token", "turn"])
def test_max_length_cuts_everything(length: int, truncate: Any) -> None:
    steps = conversation()
    rows = run(*steps).sequences(max_length=length, truncate=truncate)
    (uncut,) = run(*steps).sequences()
    for row in rows:
        size = len(row.token_ids)
        expected = {name: values[:size] for name, values in in_row(uncut).items()}
        steps_left = {name: naive(row, steps)[name] for name in ("experts", "scores", "prompt_top")}
        # Of positions that a later step gives, which the cut removed, nothing is known.
        assert in_row(row) == {**expected, **steps_left}
        assert row.sampling_mask is not None
        assert len(row.sampling_mask) == size
        assert row.sampling_mask.counts.sum() == len(row.sampling_mask.ids)
        assert all(end <= size for _, end, _ in row.policy_spans or ())


def test_experts_that_begin_late_leave_the_positions_before_them_open() -> None:
    """`routed_experts_prompt_start`: each turn asks for what the turn before did not give."""
    first = whole(0, [1, 2], [3, 4])
    second = whole(1, [1, 2, 3, 4, 5], [6, 7], first=3)
    late = whole(2, [1, 2, 3, 4, 5, 6, 7, 8], [9], first=8)
    for steps, rows in (([first, second, late], [1] * 6 + [0, 0, 0]), ([second, late], [0] * 3 + [1] * 3 + [0] * 3)):
        (row,) = run(*steps).sequences()
        assert row.routed_experts_mask is not None
        assert row.routed_experts_mask.tolist() == rows
        assert in_row(row) == naive(row, steps)


def test_scores_from_the_middle_of_a_prompt_on_are_filled_by_later_steps() -> None:
    """SGLang's `logprob_start_len`: the first positions of a prompt have no scores then."""
    first, second = whole(0, [1, 2, 3, 4], [5]), whole(1, [1, 2, 3, 4, 5, 6], [7])
    assert first.prompt_logprobs is not None
    assert first.prompt_top_tokens is not None
    values, top = first.prompt_logprobs.copy(), first.prompt_top_tokens
    values[:3] = np.nan
    ids, logprobs = top.ids.copy(), top.logprobs.copy()
    ids[:3], logprobs[:3] = -1, np.nan
    late = replace(first, prompt_logprobs=values, prompt_top_tokens=TopTokens(ids, logprobs))
    (row,) = run(late, second).sequences()
    assert row.prompt_logprobs is not None
    assert row.prompt_top_tokens is not None
    assert second.prompt_logprobs is not None
    assert second.prompt_top_tokens is not None
    expected = [*second.prompt_logprobs[:3], values[3], *second.prompt_logprobs[4:6], np.nan]
    assert np.array_equal(row.prompt_logprobs, np.array(expected, np.float32), equal_nan=True)
    assert np.array_equal(row.prompt_top_tokens.ids[:3], second.prompt_top_tokens.ids[:3])
    assert np.array_equal(row.prompt_top_tokens.ids[3], ids[3])


@pytest.mark.parametrize("other", [experts(1, 6, np.uint16), experts(1, 6, layers=2)], ids=["dtype", "layers"])
def test_experts_of_different_shapes_are_in_no_row(other: Any) -> None:
    steps = [whole(0, [1, 2], [3, 4]), replace(whole(1, [1, 2, 3, 4, 5], [6, 7]), routed_experts=other)]
    rows = run(*steps).sequences()
    assert (rows[0].routed_experts, rows[0].routed_experts_mask) == (None, None)
    assert rows[0].sampling_mask is not None
    assert rows.report.extras_left_out == {"routed_experts: shapes differ": ("s0", "s1")}
    assert "routed_experts" not in rows.report.tokens_with


HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("routed_experts", np.zeros((0, HUGE, HUGE), np.uint8)),
        ("prompt_top_tokens", TopTokens(np.zeros((0, HUGE), np.int32), np.zeros((0, HUGE), np.float32))),
    ],
)
def test_an_array_without_rows_sizes_no_row(name: str, value: Any) -> None:
    """As a short line of a file may have one: its other axes are not bounded by its data."""
    trajectory = run(step(0, [], [1, 2], **{name: value}))
    (row,) = trajectory.sequences()
    assert getattr(row, name) is None
    assert trajectory.sequences().report.extras_left_out == {}
    assert "extra_withheld" not in {one.code for one in trajectory.check()}


def test_an_array_without_rows_takes_no_experts_from_the_others() -> None:
    steps = [whole(0, [1, 2], [3, 4]), step(1, [1, 2, 3, 4, 5], [6], routed_experts=experts(0, 0, layers=LAYERS + 1))]
    trajectory = run(*steps)
    (row,) = trajectory.sequences()
    assert row.routed_experts_mask is not None
    assert row.routed_experts_mask.tolist() == [1, 1, 1, 0, 0, 0]


def test_alternatives_of_different_width_are_filled() -> None:
    """vLLM lists k or k + 1 tokens at a position of a prompt, so steps differ in width."""
    steps = [whole(0, [1, 2], [3, 4]), whole(1, [1, 2, 3, 4, 5], [6, 7])]
    steps[1] = replace(steps[1], top_tokens=tops(7, 2, 6), prompt_top_tokens=tops(8, 5, 2, of_prompt=True))
    (row,) = run(*steps).sequences()
    assert row.top_tokens is not None
    assert row.prompt_top_tokens is not None
    assert (row.top_tokens.ids.shape, row.prompt_top_tokens.ids.shape) == ((7, 6), (7, 3))
    assert in_row(row) == naive(row, steps)


def test_a_mask_of_some_steps_alone_is_none_of_the_row() -> None:
    steps = conversation(3)
    steps[1] = replace(steps[1], sampling_mask=None)
    rows = run(*steps).sequences()
    assert rows[0].sampling_mask is None
    assert rows.report.extras_left_out == {"sampling_mask: missing in another step": ("s0", "s2")}
    steps[1].trainable = False
    (row,) = run(*steps).sequences()
    assert row.sampling_mask is not None
    assert row.sampling_mask.counts.astype(bool).tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_logprobs_of_a_mask_are_in_the_row_if_all_steps_have_them() -> None:
    first, second = conversation(2)
    masks = [mask(at, list(range(10 * at, 10 * at + 3)), logprobs=True) for at in range(2)]
    steps = [replace(first, sampling_mask=masks[0]), replace(second, sampling_mask=masks[1])]
    (row,) = run(*steps).sequences()
    assert row.sampling_mask is not None
    assert row.sampling_mask.logprobs is not None
    assert len(row.sampling_mask.logprobs) == len(row.sampling_mask.ids)
    (row,) = run(steps[0], second).sequences()
    assert row.sampling_mask is not None
    assert row.sampling_mask.logprobs is None


BAD: list[tuple[str, Any]] = [
    ("prompt_logprobs", scores(1, 3)),
    ("prompt_top_tokens", tops(1, 1, 2)),
    ("prompt_top_tokens", TopTokens(np.zeros((2, 2), np.int32), np.zeros((2, 3), np.float32))),
    ("top_tokens", tops(1, 3, 2)),
    ("sampling_mask", SamplingMask(np.array([3, 4, 5], np.int32), np.array([1, 1], np.int32))),
    ("sampling_mask", SamplingMask(np.array([3], np.int32), np.array([1], np.int32))),
    ("sampling_mask", SamplingMask(np.array([3], np.int32), np.array([2, -1], np.int32))),
    # The sampled ids are 3 and 4: over these ids they would have no probability.
    ("sampling_mask", SamplingMask(np.array([3, 5], np.int32), np.array([1, 1], np.int32))),
    ("sampling_mask", SamplingMask(np.array([3, 4], np.int32), np.array([2, 0], np.int32))),
    ("sampling_mask", SamplingMask(np.array([[3], [4]], np.int32), np.array([1, 1], np.int32))),
    ("sampling_mask", SamplingMask(np.array([3, 4], np.int32), np.array([1.0, 1.0]))),
    ("routed_experts", experts(1, 4)),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[name for name, _ in BAD])
def test_an_extra_that_does_not_fit_is_left_out_and_said(name: str, value: Any) -> None:
    """The recorder withholds them; somebody else's file, or steps made by hand, may hold them."""
    one = replace(whole(0, [1, 2], [3, 4]), **{name: value})
    rows = run(one).sequences()
    assert getattr(rows[0], name) is None
    assert rows[0].loss_mask.tolist() == [0, 0, 1, 1]
    assert rows.report.extras_left_out == {f"{name}: not aligned": ("s0",)}
    (finding,) = [one for one in run(one).check() if one.code == "extra_withheld"]
    assert finding.message.startswith(f"{name}, not_aligned (step s0): ")


def test_extras_may_be_lists() -> None:
    """Of steps made by hand, as ids and logprobs may be."""
    lists: Any = {
        "prompt_top_tokens": TopTokens([[-1], [5]], [[float("nan")], [-1.0]]),  # type: ignore[arg-type]
        "top_tokens": TopTokens([[3, 9], [4, 9]], [[-0.5, -1.0], [-1.0, -2.0]]),  # type: ignore[arg-type]
        "sampling_mask": SamplingMask([3, 9, 4], [2, 1], [-0.5, -1.0, 0.0]),  # type: ignore[arg-type]
        "policy_spans": [[0, 1, "7"], [np.int64(1), 2, "8"]],
    }
    trajectory = run(step(0, [1, 2], [3, 4], **lists))
    (row,) = trajectory.sequences()
    assert trajectory.sequences().report.extras_left_out == {}
    assert row.sampling_mask is not None
    assert [kept.tolist() for kept in row.sampling_mask] == [[], [], [3, 9], [4]]
    assert row.policy_spans == (PolicySpan(2, 3, "7"), PolicySpan(3, 4, "8"))
    assert "extra_withheld" not in {one.code for one in trajectory.check()}
    assert decode_line(encode(trajectory)).steps == trajectory.steps


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopTokens([[1], [2, 3]], [[-1.0], [-1.0, -2.0]]),  # type: ignore[arg-type]
        lambda: TopTokens([[1]], [["x"]]),  # type: ignore[arg-type]
        lambda: SamplingMask([1.5], [1]),  # type: ignore[arg-type]
        lambda: SamplingMask([2**40], [1]),  # type: ignore[arg-type]
        lambda: step(0, [1], [2], policy_spans=5),
        lambda: step(0, [1], [2], policy_spans=[["0", "1", "a"]]),
        lambda: step(0, [1], [2], policy_spans=[[0, 1]]),
        lambda: step(0, [1], [2], policy_spans=[[0, 1, None]]),
    ],
)
def test_lists_of_other_values_are_refused_where_they_are_given(make: Any) -> None:
    with pytest.raises(ValueError, match=r"expected .*, got "):
        make()


def test_versions_of_a_step_whose_weights_changed() -> None:
    spans = (PolicySpan(0, 1, "7"), PolicySpan(1, 2, "8"))
    one = step(0, [1], [2, 3], policy_spans=spans, policy_version="7,8")
    other = step(1, [1, 2, 3, 4], [5])
    trajectory = run(one, other)
    (row,) = trajectory.sequences()
    assert row.policy_spans == (PolicySpan(1, 2, "7"), PolicySpan(2, 3, "8"))
    assert row.versions == ("7", "8")
    assert row.token_versions is not None
    assert row.token_versions.tolist() == [-1, 0, 1, -1, -1]
    assert row.token_versions.dtype == np.int32
    assert [len(run(one).sequences(policy_versions=wanted)) for wanted in ({"7"}, {"7", "8"}, {"7,8"})] == [0, 1, 0]


def test_a_version_that_was_set_later_counts_before_the_engine_s_label() -> None:
    """vLLM labels all weights `default` until it is told otherwise."""
    one = step(0, [1], [2, 3], policy_spans=(PolicySpan(0, 2, "default"),), policy_version="default")
    one.policy_version = 12
    (row,) = run(one).sequences(policy_versions={12})
    assert row.policy_spans == (PolicySpan(1, 3, 12),)
    # Spans that do not cover the completion are not used.
    bad = step(0, [1], [2, 3], policy_spans=(PolicySpan(0, 1, "a"),), policy_version="a")
    (row,) = run(bad).sequences()
    assert row.policy_spans == (PolicySpan(1, 3, "a"),)


def test_siblings_and_forks_share_no_extras() -> None:
    """`n=2`, then a turn on each: the prompt's are in both rows, the completions' in their own."""
    steps = [whole(0, [1, 2], [3, 4]), whole(1, [1, 2], [5, 6])]
    steps += [whole(2, [1, 2, 3, 4, 7], [8]), whole(3, [1, 2, 5, 6, 7], [9])]
    rows = run(*steps).sequences()
    assert [row.step_ids for row in rows] == [("s0", "s2"), ("s1", "s3")]
    for row in rows:
        assert in_row(row) == naive(row, steps)


def test_retokenized_steps_have_none() -> None:
    """Their extras were of ids that are not known; `retokenize` removed them, and rows are never mixed."""
    retokenized = step(1, [1, 2, 3, 4, 5], [6], token_source="retokenized", logprobs=None)
    rows = run(whole(0, [1, 2], [3, 4]), retokenized).sequences(allow={"retokenized"})
    assert [row.step_ids for row in rows] == [("s0",), ("s1",)]
    assert rows[1].routed_experts is None
    assert rows[0].routed_experts is not None


def shared_rows(steps: list[Step]) -> list[Step]:
    """The same steps, with rows stored as the recorder stores them."""
    store = RowStore()
    made = []
    for one in steps:
        facts: dict[str, Any] = {name: getattr(one, name) for name in Step.__slots__ if not name.startswith("_")}
        if one.routed_experts is not None:
            assert one.prompt_token_ids is not None
            assert one.completion_token_ids is not None
            start = len(one.prompt_token_ids) + len(one.completion_token_ids) - 1 - len(one.routed_experts)
            facts["routed_experts"] = store.add("routed_experts", one.routed_experts, start)
        if one.prompt_logprobs is not None:
            facts["prompt_logprobs"] = store.add("prompt_logprobs", one.prompt_logprobs)
        if one.prompt_top_tokens is not None:
            top = one.prompt_top_tokens
            facts["prompt_top_tokens"] = TopTokenRows(store.add("ids", top.ids), store.add("logprobs", top.logprobs))
        made.append(new_step(facts))
    return made


@st.composite
def traces(draw: st.DrawFn) -> list[Step]:
    """Turns, branches and siblings of two talks; each step has any of the extras, and may be left out."""
    talks: list[list[int]] = [[], []]
    questions: list[list[Any]] = [[{"role": "user", "content": talk}] for talk in "ab"]
    made: list[Step] = []
    for number in range(draw(st.integers(1, 7))):
        talk = draw(st.integers(0, 1))
        start = talks[talk] if draw(st.integers(0, 4)) else talks[talk][: draw(st.integers(0, 3))]
        prompt = [*start, *draw(st.lists(st.integers(0, 2), min_size=0 if start else 1, max_size=3))]
        completion = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
        one = whole(number, prompt, completion, first=draw(st.integers(0, len(prompt) + len(completion) - 1)))
        names = ("prompt_logprobs", "prompt_top_tokens", "top_tokens", "sampling_mask", "routed_experts")
        gone: dict[str, Any] = {name: None for name in names if not draw(st.integers(0, 3))}
        one = replace(one, **gone, messages=questions[talk], trainable=draw(st.integers(0, 5)) > 0)
        # The next prompt of the talk may lack the end of the answer, or have another one.
        kept = len(completion) - draw(st.sampled_from([0, 0, 0, 1, 2]))
        talks[talk] = [*prompt, *completion[: max(kept, 0)]]
        questions[talk] = [*questions[talk], {"role": "assistant", "content": str(number)}, {"role": "user"}]
        made.append(one)
    return made


OPTIONS: list[Any] = [{}, {"on_drift": "mask", "within": 1}, {"on_drift": "mask", "within": 9}]


@settings(max_examples=examples(900))
@given(traces(), st.booleans(), st.none() | st.integers(1, 20), st.sampled_from(OPTIONS))
def test_every_position_has_what_its_steps_had(
    steps: list[Step], shared: bool, limit: int | None, options: Any
) -> None:
    used = shared_rows(steps) if shared else steps
    for row in run(*used).sequences(max_length=limit, **options):
        expected = naive(row, steps)
        has_all = all(one.sampling_mask is not None for one in steps if one.id in row.step_ids)
        if not has_all:
            expected["mask"] = [None] * len(row.token_ids)
        assert in_row(row) == expected


FEATURES = {"mm_hashes": {"image": ["abc", "def"]}, "mm_placeholders": {}}
PLACES = {"image": [{"offset": 1, "length": 3}, {"offset": 5, "length": 2}]}


def seen(places: Any, features: Any = FEATURES, prompt: tuple[int, ...] = (1, 9, 9, 9, 2, 9, 9)) -> Step:
    sampling = {} if features is None else {"features": features}
    return step(0, list(prompt), [4, 5], extra={"mm_placeholders": places}, sampling=sampling)


def test_images_of_a_prompt_have_their_positions_and_hashes() -> None:
    first = seen(PLACES)
    second = replace(
        seen({"image": [*PLACES["image"], {"offset": 10, "length": 1}]}, None, (1, 9, 9, 9, 2, 9, 9, 4, 5, 3, 9)),
        id="s1",
    )
    (row,) = run(first, second).sequences()
    images = (Placeholder("image", 1, 3, "abc"), Placeholder("image", 5, 2, "def"), Placeholder("image", 10, 1, None))
    assert row.placeholders == images
    assert row.placeholders[0].hash == "abc"
    (row,) = run(first).sequences(max_length=8)
    assert row.placeholders == images[:2]
    # A hash that a later request alone names is taken too.
    (row,) = run(seen(PLACES, None), replace(second, sampling={"features": FEATURES}, extra=first.extra)).sequences()
    assert row.placeholders == images[:2]
    first.trainable = False
    (row,) = run(first, second).sequences()
    assert [one.hash for one in row.placeholders] == [None] * 3


def test_an_image_in_the_prompt_that_a_row_ends_in_is_in_the_row() -> None:
    """``max_length`` leaves the step of that prompt out, and not the ids of its image."""
    second = step(1, [1, 5, 9, 9, 9, 2], [3], extra={"mm_placeholders": {"image": [{"offset": 2, "length": 3}]}})
    trajectory = run(step(0, [1], [5]), second)
    for length, rest in ((3, 1), (5, 3), (6, 3)):
        (row,) = trajectory.sequences(max_length=length)
        assert row.step_ids == ("s0",)
        assert row.placeholders == (Placeholder("image", 2, rest, None),)
    (row,) = trajectory.sequences(max_length=2)
    assert row.placeholders == ()


@pytest.mark.parametrize(
    "places",
    [3, None, {}, {"image": 3}, {"image": [3, {}, {"offset": "1", "length": 2}, {"offset": -1, "length": 2}]}],
    ids=repr,
)
def test_placeholders_of_another_shape_are_none(places: Any) -> None:
    (row,) = run(seen(places)).sequences()
    assert row.placeholders == ()


def test_placeholders_outside_the_prompt_are_counted() -> None:
    rows = run(seen({"image": [{"offset": 5, "length": 3}]})).sequences()
    assert rows[0].placeholders == ()
    assert rows.report.extras_left_out == {"placeholders: not aligned": ("s0",)}


def test_placeholders_come_from_the_wire() -> None:
    """vLLM's `/inference/v1/generate`, as its protocol documents it: of a model with images there is no recording."""
    request = (
        b'{"model":"m","token_ids":[1,9,9,2],"sampling_params":{"max_tokens":2},'
        b'"features":{"mm_hashes":{"image":["abc"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}}'
    )
    response = (
        b'{"request_id":"r","model":"m","usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6},'
        b'"prompt_token_ids":[1,9,9,2],"mm_placeholders":{"image":[{"offset":1,"length":2}]},'
        b'"choices":[{"index":0,"token_ids":[5,6],"finish_reason":"length"}]}'
    )
    steps = decode("vllm.generate", request, response, content_type="application/json", status=200)
    (row,) = rt.Trajectory(steps=steps).sequences()
    assert row.placeholders == (Placeholder("image", 1, 2, "abc"),)
