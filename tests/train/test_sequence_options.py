"""What `Trajectory.sequences()` can be asked for, and what its report says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import Step, StepStatus
from rollout_trace.train.check_codes import ISSUE_CODES
from rollout_trace.train.selection import NEVER_ALLOWED
from tests.consumers.traces import trajectory_of
from tests.strategies import PROFILE, trajectories


def step(name: str, prompt: list[int], completion: list[int], **facts: Any) -> Step:
    """A step whose logprobs are -1, -2, ..."""
    logprobs: Any = -np.arange(1, len(completion) + 1, dtype=np.float32)
    return Step(
        **{
            "id": name, "call_id": name, "index": int(name[1:]), "prompt_token_ids": prompt,
            "completion_token_ids": completion, "logprobs": logprobs, **facts,
        }
    )  # fmt: skip


TURNS = [step("s0", [1, 2], [3, 4]), step("s1", [1, 2, 3, 4, 5], [6]), step("s2", [9, 9], [8, 8, 8])]


def trajectory(*steps: Step, reward: float | None = 1.0) -> rt.Trajectory:
    return rt.Trajectory(steps=list(steps or TURNS), reward=reward)


def test_the_report_counts_what_became_of_the_steps() -> None:
    failed = step("s3", [1], [2], status="error")
    rows = trajectory(*TURNS, failed).sequences()
    report = rows.report
    assert (report.sequences, report.steps_used, report.merge_ratio) == (2, 3, 1.5)
    assert (report.tokens, report.trainable_tokens) == (6 + 5, 3 + 3)
    assert report.left_out == {"error": ("s3",)}
    assert (report.roots, report.forks, report.drift) == (2, 0, ())
    assert isinstance(rows, list)


def test_steps_without_messages_that_share_no_id_are_roots() -> None:
    report = trajectory(step("s0", [1], [2]), step("s1", [7], [2])).sequences().report
    assert (report.roots, report.forks) == (2, 0)


def test_spans_say_where_each_completion_is() -> None:
    first, second = trajectory().sequences()
    assert first.step_ids == ("s0", "s1")
    assert first.spans == ((2, 4), (5, 6))
    assert (first.prompt_length, second.prompt_length) == (2, 2)
    assert first.loss_mask.dtype == np.int8
    assert first.token_ids.dtype == np.int32
    assert not first.token_ids.flags.writeable


@pytest.mark.parametrize(
    ("how", "rewards"), [("copy", [1.0, 1.0]), ("split", [0.5, 0.5]), ("last", [0.0, 1.0]), (None, [1.0, 1.0])]
)
def test_the_reward_of_a_trajectory_with_several_rows(how: Any, rewards: list[float]) -> None:
    options = {} if how is None else {"reward": how}
    assert [row.reward for row in trajectory().sequences(**options)] == rewards
    assert [row.reward for row in trajectory(reward=None).sequences(**options)] == [None, None]


def test_the_last_row_is_the_one_with_the_last_step() -> None:
    """Not the one that began last: sub-agents interleave."""
    steps = [step("s0", [1, 2], [3]), step("s1", [9], [8]), step("s2", [1, 2, 3, 4], [5])]
    assert [row.reward for row in trajectory(*steps).sequences(reward="last")] == [1.0, 0.0]


def test_the_last_step_is_the_last_of_the_list() -> None:
    """Steps that somebody made by hand may all have the index 0."""
    steps = [replace(one, index=0) for one in TURNS]
    assert [row.reward for row in trajectory(*steps).sequences(reward="last")] == [0.0, 1.0]


@pytest.mark.parametrize("how", ["split", "last"])
@pytest.mark.parametrize("options", [{"max_length": 2}, {"include": lambda step: False}])
def test_a_reward_that_no_row_is_there_for(how: Any, options: Any) -> None:
    assert trajectory(TURNS[0]).sequences(reward=how, **options) == []


def test_max_length_cuts_all_arrays_alike_and_says_so() -> None:
    steps = [replace(one, reward=0.5, advantage=1.0) for one in TURNS]
    whole = trajectory(*steps).sequences()
    rows = trajectory(*steps).sequences(max_length=3)
    assert [row.truncated for row in rows] == [True, True]
    for row, before in zip(rows, whole, strict=True):
        for name in ("token_ids", "loss_mask", "logprobs", "advantages"):
            assert getattr(row, name).tolist() == getattr(before, name).tolist()[:3]
    assert rows[0].spans == ((2, 3),)
    assert rows.report.left_out == {"max_length": ("s1",)}
    assert (rows.report.tokens, rows.report.tokens_cut, rows.report.truncated) == (6, 5, 2)


def test_a_row_of_which_nothing_sampled_is_left_is_no_row() -> None:
    rows = trajectory().sequences(max_length=2)
    assert list(rows) == []
    assert rows.report.left_out == {"max_length": ("s0", "s1", "s2")}
    assert rows.report.tokens_cut == 11
    assert rows.report.merge_ratio is None


def test_max_length_by_turns_keeps_whole_completions() -> None:
    """And nothing after the last of them: what would follow is the environment's alone."""
    report = trajectory().sequences(max_length=5, truncate="turn").report
    assert report.left_out == {"max_length": ("s1",)}
    first, second = trajectory().sequences(max_length=5, truncate="turn")
    assert (first.token_ids.tolist(), first.spans, first.truncated) == ([1, 2, 3, 4], ((2, 4),), True)
    assert (second.token_ids.tolist(), second.truncated) == ([9, 9, 8, 8, 8], False)
    (row,) = trajectory().sequences(max_length=4, truncate="turn")
    assert row.step_ids == ("s0",)


@PROFILE
@given(trajectories(), st.integers(1, 30))
def test_by_turns_a_row_is_cut_between_its_turns(made: rt.Trajectory, limit: int) -> None:
    """As many whole turns as there is room for, with ids, mask and logprobs as they were."""
    for one in made.steps:
        one.advantage = None
    every = made.sequences()
    rows = made.sequences(max_length=limit, truncate="turn")
    whole = [row for row in every if row.spans[0][1] <= limit]
    assert len(rows) == len(whole)
    for row, before in zip(rows, whole, strict=True):
        length, turns = len(row.token_ids), len(row.spans)
        assert row.spans == before.spans[:turns]
        assert length == row.spans[-1][1] == max(end for _, end in before.spans if end <= limit)
        for name in ("token_ids", "loss_mask"):
            assert getattr(row, name).tolist() == getattr(before, name).tolist()[:length]
        if before.logprobs is not None and row.logprobs is not None:
            assert row.logprobs.tolist() == before.logprobs.tolist()[:length]
        assert row.truncated == (length < len(before.token_ids))
    cut = sum(len(row.token_ids) for row in every) - sum(len(row.token_ids) for row in rows)
    assert rows.report.tokens_cut == cut


VERSIONS = [replace(TURNS[0], policy_version=3), replace(TURNS[1], policy_version=4), TURNS[2]]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({3, 4, None}, True),
        ({3, 4}, False),
        ([4, 3, None, 5], True),
        (lambda version: version is None or version > 2, True),
        (lambda version: version != 4, False),
        (None, True),
    ],
)
def test_a_trajectory_of_another_policy_version_is_left_out_whole(wanted: Any, fits: bool) -> None:
    """A part of it would be another rollout than the one that was scored."""
    rows = trajectory(*VERSIONS).sequences(policy_versions=wanted)
    assert len(rows) == (2 if fits else 0)
    assert rows.report.left_out == ({} if fits else {"policy_version": ("s0", "s1", "s2")})


def test_the_version_of_a_step_that_is_left_out_anyway_does_not_count() -> None:
    failed = step("s3", [1], [2], status="error", policy_version=9)
    assert len(trajectory(VERSIONS[0], failed).sequences(policy_versions={3})) == 1


def test_rows_say_at_which_temperature_they_were_sampled() -> None:
    sampling: list[Any] = [{"temperature": 0.5}, {"sampling_params": {"temperature": 0.5}}, {"temperature": 1}]
    modes: list[Any] = ["raw", "raw", "processed"]
    steps = [
        replace(one, sampling=asked, logprobs_mode=mode)
        for one, asked, mode in zip(TURNS, sampling, modes, strict=True)
    ]
    first, second = trajectory(*steps).sequences()
    assert (first.temperatures, first.temperature, first.logprobs_mode) == ((0.5, 0.5), 0.5, "raw")
    assert (second.temperature, second.logprobs_mode) == (1.0, "processed")
    mixed = [replace(steps[0], sampling=None), replace(steps[1], logprobs_mode=None)]
    (row,) = trajectory(*mixed).sequences()
    assert (row.temperatures, row.temperature, row.logprobs_mode) == ((None, 0.5), None, None)
    # A number that no float holds is none.
    (beyond, *_) = trajectory(replace(steps[0], sampling={"temperature": 10**400})).sequences()
    assert beyond.temperatures == (None,)


def test_rewards_of_steps_stand_on_their_last_tokens() -> None:
    steps = [replace(TURNS[0], reward=0.25), replace(TURNS[1], reward=-1.0), TURNS[2]]
    first, second = trajectory(*steps).sequences()
    assert first.step_rewards == (0.25, -1.0)
    assert first.token_rewards is not None
    assert first.token_rewards.tolist() == [0, 0, 0, 0.25, 0, -1.0]
    assert second.step_rewards == (None,)
    assert second.token_rewards is None


def test_advantages_go_to_the_sampled_tokens() -> None:
    steps = [replace(TURNS[0], advantage=[0.5, -0.5]), replace(TURNS[1], advantage=2.0), TURNS[2]]
    first, second = trajectory(*steps).sequences()
    assert first.advantages is not None
    assert first.advantages.tolist() == [0, 0, 0.5, -0.5, 0, 2.0]
    assert second.advantages is None


def test_only_the_steps_that_a_row_holds_need_an_advantage() -> None:
    steps = [replace(TURNS[0], advantage=[0.5, -0.5]), TURNS[1]]
    (row,) = trajectory(*steps).sequences(max_length=5)
    assert row.advantages is not None
    assert row.advantages.tolist() == [0, 0, 0.5, -0.5, 0]
    (row,) = trajectory(*steps).sequences(max_length=3)
    assert row.advantages is not None
    assert row.advantages.tolist() == [0, 0, 0.5]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (("engine", "engine"), "engine"),
        (("engine", "logprobs"), "logprobs"),
        (("logprobs", None), "logprobs"),
        (("engine", None), None),
        ((None, None), None),
    ],
)
def test_a_rows_source_is_the_weakest_of_its_steps(sources: Any, expected: str | None) -> None:
    steps = [replace(one, token_source=source) for one, source in zip(TURNS, sources, strict=False)]
    (row,) = trajectory(*steps).sequences()
    assert row.token_source == expected


def test_an_advantage_of_another_length_is_refused() -> None:
    wrong = replace(TURNS[0], advantage=[0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match=r"step 's0': 2 completion ids but 3 advantages"):
        trajectory(wrong).sequences()


@pytest.mark.parametrize("value", [1e39, [0.0, -1e300]])
def test_an_advantage_that_no_array_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"step 's0': an advantage is .*; expected a number that float32 holds"):
        trajectory(replace(TURNS[0], advantage=value)).sequences()


def test_policy_versions_are_those_of_the_steps() -> None:
    steps = [replace(TURNS[0], policy_version=7), replace(TURNS[1], policy_version="8b"), TURNS[2]]
    assert [row.policy_versions for row in trajectory(*steps).sequences()] == [(7, "8b"), (None,)]


def test_include_is_asked_of_usable_steps() -> None:
    asked: list[str] = []

    def first_turn(one: Step) -> bool:
        asked.append(one.id)
        return one.id == "s0"

    rows = trajectory(*TURNS, step("s3", [1], [2], status="error")).sequences(include=first_turn)
    assert asked == ["s0", "s1", "s2"]
    assert rows.report.left_out == {"excluded": ("s1", "s2"), "error": ("s3",)}


UNFIT: dict[str, Any] = {
    "ids_missing": {"completion_token_ids": None, "logprobs": None},
    "prompt_ids_missing": {"prompt_token_ids": None},
    "empty_completion": {"completion_token_ids": [], "logprobs": []},
    "lengths_differ": {"logprobs": [-1.0]},
    "logprobs_not_finite": {"logprobs": [-1.0, float("nan")]},
    "logprobs_positive": {"logprobs": [0.5, -1.0]},
    "not_trainable": {"trainable": False},
    "abandoned": {"status": "abandoned"},
    "superseded": {"status": "superseded"},
    "retokenized": {"token_source": "retokenized", "logprobs": None},
    "usage_differs": {"token_issue": rt.TokenIssue(code="usage_differs", message="…")},
}


@pytest.mark.parametrize("reason", UNFIT)
def test_each_reason_for_leaving_a_step_out(reason: str) -> None:
    """And what can be allowed by name, is; what cannot be trained on, never."""
    bad = replace(TURNS[0], **UNFIT[reason])
    rows = trajectory(bad).sequences()
    assert (list(rows), rows.report.left_out) == ([], {reason: ("s0",)})
    allowed = trajectory(bad).sequences(allow={reason})
    never = {name for name in UNFIT if name.startswith(("ids", "prompt", "empty", "lengths", "logprobs"))}
    assert len(allowed) == (0 if reason in never else 1)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("at", [0, 1])
def test_no_value_that_is_not_finite_gets_through(value: float, at: int) -> None:
    logprobs: Any = [-1.0, -1.0]
    logprobs[at] = value
    rows = trajectory(replace(TURNS[0], logprobs=logprobs)).sequences()
    assert rows.report.left_out == {"logprobs_not_finite": ("s0",)}


def test_retokenized_ids_are_in_no_row_with_the_engines() -> None:
    made = replace(TURNS[1], token_source="retokenized", logprobs=None)
    rows = trajectory(replace(TURNS[0], token_source="engine"), made).sequences(allow={"retokenized"})
    assert [(row.step_ids, row.token_source) for row in rows] == [(("s0",), "engine"), (("s1",), "retokenized")]
    assert rows[1].logprobs is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_drift": "ignore"}, "on_drift='ignore': expected 'split', 'raise', 'drop', 'mask'"),
        ({"reward": "mean"}, "reward='mean': expected 'copy', 'last', 'split'"),
        ({"max_length": 0}, "max_length=0: expected a number of tokens"),
        ({"truncate": "step"}, "truncate='step': expected 'token', 'turn'"),
    ],
)
def test_an_option_with_another_value_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trajectory().sequences(**options)


def test_a_text_is_no_set_of_reasons() -> None:
    with pytest.raises(TypeError, match="allow='retokenized': expected a set of reasons"):
        trajectory().sequences(allow="retokenized")


@pytest.mark.parametrize("version", ["v1", 3])
def test_a_version_is_no_set_of_versions(version: Any) -> None:
    with pytest.raises(TypeError, match=r"policy_versions=.*: expected a set"):
        trajectory().sequences(policy_versions=version)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no option max_lenght; it has linear, on_drift, within, max_length,"):
        trajectory().sequences(max_lenght=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("reason", ["retokenised", "ok", "drift", "max_length", "excluded", "", None, 3])
def test_a_reason_that_there_is_not_is_refused(reason: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"^allow: {re.escape(repr(reason))} is not a .* (There are aband|Did you mean)"
    ):
        trajectory(*TURNS).sequences(allow={"retokenized", reason})


def test_reasons_are_a_set() -> None:
    with pytest.raises(TypeError, match="allow=None: expected a set of reasons"):
        trajectory(*TURNS).sequences(allow=None)  # type: ignore[arg-type]


def test_every_status_and_every_code_of_an_issue_is_a_reason() -> None:
    for reason in {*get_args(StepStatus), *ISSUE_CODES, *NEVER_ALLOWED, "not_trainable", "retokenized"} - {"ok"}:
        assert len(trajectory(*TURNS).sequences(allow={reason})) == len(trajectory(*TURNS).sequences())


def test_prompts_and_responses_have_limits_of_their_own() -> None:
    """As trainers pad them: a long response is cut, a long prompt would be another one."""
    made = trajectory_of([([1, 2, 3], [4, 5], [-1.0, -2.0]), ([1, 2, 3, 4, 5, 6], [7, 8], [-3.0, -4.0])])
    (row,) = made.sequences(max_prompt_length=3, max_response_length=4)
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert row.truncated
    rows = made.sequences(max_response_length=3)
    assert rows[0].token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert rows.report.left_out == {"max_response_length": ("step1",)}
    (row,) = made.sequences(max_response_length=3, truncate="turn")
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5]
    (row,) = made.sequences(max_length=5, max_response_length=4)
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5]
    rows = made.sequences(max_prompt_length=2)
    assert list(rows) == []
    assert rows.report.left_out == {"max_prompt_length": ("step0", "step1")}
    assert rows.report.tokens_cut == 8
    (row,) = made.sequences(max_prompt_length=3, max_response_length=5)
    assert not row.truncated
    for wrong in (0, 2.5, True, "8"):
        with pytest.raises(ValueError, match=f"max_response_length={wrong!r}: expected a number of tokens"):
            made.sequences(max_response_length=wrong)  # type: ignore[arg-type]
    (row,) = made.sequences(max_response_length=np.int64(3))
    assert len(row.token_ids) == 6


def test_steps_are_left_out_by_the_limit_that_cut() -> None:
    made = trajectory_of([([1, 2, 3], [4, 5], [-1.0, -2.0]), ([1, 2, 3, 4, 5, 6], [7, 8], [-3.0, -4.0])])
    for options, reason in (
        ({"max_length": 100, "max_response_length": 3}, "max_response_length"),
        ({"max_length": 6, "max_response_length": 100}, "max_length"),
        ({"max_length": 6, "max_response_length": 3}, "max_length"),
        ({"max_length": 100, "max_response_length": 3, "truncate": "turn"}, "max_response_length"),
    ):
        assert made.sequences(**options).report.left_out == {reason: ("step1",)}
    rows = made.sequences(max_length=100, max_prompt_length=2, max_response_length=3)
    assert rows.report.left_out == {"max_prompt_length": ("step0", "step1")}
