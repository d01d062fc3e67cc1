"""``on_drift="mask"``: a prompt that leaves the last answer late in it stays in the row, which has the prompt's ids."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.model import Step
from rollout_trace.testing.strategies import trajectories
from tests.amount import examples


def step(name: str, prompt: list[int], completion: list[int], messages: list[Any], **facts: Any) -> Step:
    logprobs = [-0.5 - at for at in range(len(completion))]
    return Step(
        **{
            "id": name, "call_id": name, "prompt_token_ids": prompt, "completion_token_ids": completion,
            "logprobs": logprobs, "messages": messages, "token_source": "engine", **facts,
        }
    )  # fmt: skip


def asked(*answers: str) -> list[Any]:
    """A conversation of a question and, for each answer, the answer and the next question."""
    question = {"role": "user", "content": "?"}
    return [question, *(one for text in answers for one in ({"role": "assistant", "content": text}, question))]


def run(*steps: Step) -> rt.Trajectory:
    return rt.Trajectory(steps=list(steps), reward=1.0)


FIRST = step("s0", [1, 2], [3, 4, 5, 6], asked())
SECOND = step("s1", [1, 2, 3, 4, 9, 8, 7], [5, 6], asked("a"))
"""Two of the four tokens that were sampled are gone: 9 and 8 stand there."""


def test_what_a_row_holds() -> None:
    (row,) = (rows := run(FIRST, SECOND).sequences(on_drift="mask", within=2))
    assert row.token_ids.tolist() == [1, 2, 3, 4, 9, 8, 7, 5, 6]
    assert row.loss_mask.tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert row.logprobs is not None
    assert row.logprobs.tolist() == [0, 0, -0.5, -1.5, 0, 0, 0, -0.5, -1.5]
    assert (row.step_ids, row.spans, row.reward) == (("s0", "s1"), ((2, 4), (7, 9)), 1.0)
    report = rows.report
    assert (report.masked, report.left_out, report.breaks) == ({"s0": 2}, {}, ())
    assert (report.sequences, report.steps_used, report.trainable_tokens, report.tokens) == (1, 2, 4, 9)
    # That there is drift is no secret of the option.
    assert [one.step_id for one in rt.drift(run(FIRST, SECOND))] == ["s1"]


def test_a_longer_drift_begins_a_row() -> None:
    for within in (0, 1):
        rows = run(FIRST, SECOND).sequences(on_drift="mask", within=within)
        assert [row.step_ids for row in rows] == [("s0",), ("s1",)]
        assert (rows.report.masked, [one.step_id for one in rows.report.drift]) == ({}, ["s1"])


@pytest.mark.parametrize("prompt", [[1, 2, 9, 4, 5, 6, 7], [1, 9, 3, 4, 5, 6, 7]], ids=["whole-answer", "header"])
def test_a_completion_is_not_masked_whole(prompt: list[int]) -> None:
    """A forced tool call whose marker is one token of the template drifts at its first token, at every turn."""
    rows = run(FIRST, step("s1", prompt, [5], asked("a"))).sequences(on_drift="mask", within=100)
    assert [row.step_ids for row in rows] == [("s0",), ("s1",)]
    assert rows.report.masked == {}


def test_a_fork_is_no_drift() -> None:
    """Another answer to the same request, and a request whose messages go on from nothing."""
    for other in (step("s1", [1, 2], [3, 4, 7], asked()), step("s1", [1, 2, 3, 4, 9], [5], [{"role": "user"}])):
        rows = run(FIRST, other).sequences(on_drift="mask", within=100)
        assert [row.step_ids for row in rows] == [("s0",), ("s1",)]


def test_what_extends_a_completion_comes_before_what_drifted_from_it() -> None:
    exact = step("s2", [1, 2, 3, 4, 5, 6, 7], [8], asked("a"))
    for steps in ((FIRST, SECOND, exact), (FIRST, exact, SECOND)):
        rows = run(*steps).sequences(on_drift="mask", within=100)
        assert [row.step_ids for row in rows] == [("s0", "s2"), ("s1",)]
        assert rows.report.masked == {}


def test_of_two_prompts_that_drifted_one_stays_in_the_row() -> None:
    third = step("s2", [1, 2, 3, 4, 9, 9], [5], asked("a"))
    rows = run(FIRST, SECOND, third).sequences(on_drift="mask", within=2)
    assert [(row.step_ids, row.spans) for row in rows] == [(("s0", "s1"), ((2, 4), (7, 9))), (("s2",), ((6, 7),))]


def test_of_two_answers_the_closer_one_is_continued() -> None:
    """`n=2`: the agent went on from the first, and the second keeps its tokens."""
    sibling = step("s9", [1, 2], [3, 7, 7], asked())
    rows = run(FIRST, sibling, SECOND).sequences(on_drift="mask", within=100)
    assert [row.step_ids for row in rows] == [("s0", "s1"), ("s9",)]
    # Where the closer one has gone on, the other is no substitute.
    exact = step("s2", [1, 2, 3, 4, 5, 6, 7], [8], asked("a"))
    rows = run(FIRST, sibling, exact, SECOND).sequences(on_drift="mask", within=100)
    assert [row.step_ids for row in rows] == [("s0", "s2"), ("s9",), ("s1",)]


def test_only_the_latest_row_goes_on_if_linear() -> None:
    other = step("s9", [7, 7], [7], [{"role": "user", "content": "another agent"}])
    options: Any = {"on_drift": "mask", "within": 2}
    assert len(run(FIRST, other, SECOND).sequences(**options)) == 2
    assert len(run(FIRST, other, SECOND).sequences(linear=True, **options)) == 3
    assert len(run(FIRST, SECOND, other).sequences(linear=True, **options)) == 2


def test_retokenized_ids_stay_by_themselves() -> None:
    made = step("s1", [1, 2, 3, 4, 9, 8, 7], [5, 6], asked("a"), token_source="retokenized", logprobs=None)
    rows = run(FIRST, made).sequences(on_drift="mask", within=2, allow={"retokenized"})
    assert [row.step_ids for row in rows] == [("s0",), ("s1",)]


def test_rewards_and_advantages_stay_with_the_tokens_that_are_left() -> None:
    first = step("s0", [1, 2], [3, 4, 5, 6], asked(), reward=0.5, advantage=[1.0, 2.0, 3.0, 4.0])
    second = step("s1", [1, 2, 3, 4, 9, 8, 7], [5, 6], asked("a"), reward=0.25, advantage=5.0)
    (row,) = run(first, second).sequences(on_drift="mask", within=2)
    assert row.advantages is not None
    assert row.token_rewards is not None
    assert row.advantages.tolist() == [0, 0, 1, 2, 0, 0, 0, 5, 5]
    assert row.token_rewards.tolist() == [0, 0, 0, 0.5, 0, 0, 0, 0, 0.25]


def test_limits_cut_the_row_as_any_other() -> None:
    trajectory = run(FIRST, SECOND)
    options: Any = {"on_drift": "mask", "within": 2}
    # By turns the row ends where what is left of the first completion does.
    (row,) = (rows := trajectory.sequences(max_length=5, truncate="turn", **options))
    assert (row.token_ids.tolist(), row.spans, row.truncated) == ([1, 2, 3, 4], ((2, 4),), True)
    assert (rows.report.masked, rows.report.left_out) == ({"s0": 2}, {"max_length": ("s1",)})
    (row,) = trajectory.sequences(max_length=3, **options)
    assert (row.token_ids.tolist(), row.spans) == ([1, 2, 3], ((2, 3),))
    assert trajectory.sequences(max_length=2, **options).report.masked == {}
    # A step that the limit leaves out whole has no token that is given up for drift.
    before = step("s", [1], [2, 0], asked())
    first = step("s0", [1, 2, 0, 1], [3, 4, 5, 6], asked("a"))
    second = step("s1", [1, 2, 0, 1, 3, 4, 9], [3], asked("a", "b"))
    rows = run(before, first, second).sequences(**options)
    assert (len(rows), rows.report.masked) == (1, {"s0": 2})
    rows = run(before, first, second).sequences(max_length=4, **options)
    assert (rows.report.masked, rows.report.left_out) == ({}, {"max_length": ("s0", "s1")})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"on_drift": "mask"}, 'on_drift="mask" needs within='),
    ({"within": 3}, r'within=3 works only with on_drift="mask"'),
    ({"within": 3, "on_drift": "split"}, r'within=3 works only with on_drift="mask"'),
    *[
        ({"within": value, "on_drift": "mask"}, "expected a number of tokens, from 0 on")
        for value in (-1, 1.5, True, "3", None, np.float32(1))
    ],
    ({"within": -1}, "within=-1: expected a number of tokens"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_a_bad_within_is_refused_at_once(options: Any, message: str) -> None:
    for refused in (rt.Trajectory().sequences, lambda **given: export.iter_verl(rt.Trajectory(), **given)):
        with pytest.raises(ValueError, match=message):
            refused(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    assert len(run(FIRST, SECOND).sequences(on_drift="mask", within=np.int64(2))) == 1


def test_exports_count_what_lost_its_mask() -> None:
    report = export.ExportReport()
    (row,) = export.verl(run(FIRST, SECOND), on_drift="mask", within=2, report=report)
    assert row["response_mask"] == [1, 1, 0, 0, 0, 1, 1]
    assert report.dropped["sampled tokens masked for drift"] == 2


@st.composite
def drifting(draw: st.DrawFn) -> tuple[rt.Trajectory, list[int]]:
    """A conversation, and for each of its answers but the last how many of its tokens the next prompt does not have.

    No id comes twice: what differs is where it was put.
    """
    numbers = count()

    def ids(least: int) -> list[int]:
        return list(islice(numbers, draw(st.integers(least, 4))))

    prompt, steps, lost = ids(1), list[Step](), list[int]()
    turns = draw(st.integers(1, 6))
    for turn in range(turns):
        completion = ids(1)
        steps.append(step(f"s{turn}", prompt, completion, asked(*map(str, range(turn))), index=turn))
        if turn + 1 < turns:
            lost.append(draw(st.integers(0, len(completion))))
            # What stands there may be shorter or longer, or nothing.
            prompt = [*prompt, *completion[: len(completion) - lost[-1]], *ids(0)]
    return rt.Trajectory(steps=steps), lost


@settings(max_examples=examples(400))
@given(drifting(), st.integers(0, 5))
def test_each_place_is_decided_by_its_own_number_of_tokens(made: tuple[rt.Trajectory, list[int]], within: int) -> None:
    trajectory, lost = made
    rows = trajectory.sequences(on_drift="mask", within=within)
    taken: dict[str, int] = {}
    expected = [["s0"]]
    for before, after, gone in zip(trajectory.steps, trajectory.steps[1:], lost, strict=False):
        assert before.completion_token_ids is not None
        if gone > within or gone == len(before.completion_token_ids):
            expected.append([])
        elif gone:
            taken[before.id] = gone
        expected[-1].append(after.id)
    assert [list(row.step_ids) for row in rows] == expected
    assert rows.report.masked == taken
    assert len(rows.report.drift) == len(expected) - 1
    if not taken:
        assert facts(rows) == facts(trajectory.sequences())


def facts(rows: rt.Sequences) -> list[Any]:
    """All that rows say, as plain values."""
    return [
        (row.token_ids.tolist(), row.loss_mask.tolist(), None if row.logprobs is None else row.logprobs.tolist(),
         row.step_ids, row.spans, row.reward)
        for row in rows
    ]  # fmt: skip


def check_rows(trajectory: rt.Trajectory, within: int, linear: bool) -> None:
    """What is true of the rows of any trajectory."""
    rows = trajectory.sequences(on_drift="mask", within=within, linear=linear)
    split = trajectory.sequences(linear=linear)
    steps = {one.id: one for one in trajectory.steps}
    used = [name for row in rows for name in row.step_ids]
    # Each step that can be trained on is in one row, and no row is more than there are without the option.
    assert sorted(used) == sorted(name for row in split for name in row.step_ids)
    assert rows.report.left_out == split.report.left_out
    assert len(rows) <= len(split)
    lost = 0
    for row in rows:
        assert row.loss_mask.sum() == sum(end - start for start, end in row.spans)
        for name, (start, end) in zip(row.step_ids, row.spans, strict=True):
            one = steps[name]
            assert one.completion_token_ids is not None
            assert one.prompt_token_ids is not None
            # Before each sampled token the row has what it was sampled after: its prompt, as it was served.
            assert np.array_equal(row.token_ids[:start], one.prompt_token_ids)
            assert np.array_equal(row.token_ids[start:end], one.completion_token_ids[: end - start])
            assert (row.loss_mask[start:end] == 1).all()
            if row.logprobs is not None:
                assert one.logprobs is not None
                assert np.array_equal(row.logprobs[start:end], one.logprobs[: end - start])
            gone = len(one.completion_token_ids) - (end - start)
            assert gone == rows.report.masked.get(name, 0)
            assert 0 <= gone <= within
            lost += gone
        assert row.spans[-1][1] == len(row.token_ids)
    assert sum(rows.report.masked.values()) == lost == split.report.trainable_tokens - rows.report.trainable_tokens
    if not within:
        assert facts(rows) == facts(split)


@settings(max_examples=examples(300))
@given(trajectories(max_steps=7, with_ids=True), st.integers(0, 4), st.booleans())
def test_every_sampled_token_has_the_ids_before_it_that_it_was_sampled_after(
    trajectory: rt.Trajectory, within: int, linear: bool
) -> None:
    """Of conversations as agents have them: forks, choices, retries, drift anywhere in an answer and behind it."""
    check_rows(trajectory, within, linear)
