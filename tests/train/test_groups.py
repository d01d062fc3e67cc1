"""Groups and advantages, against the formulas written out with numpy."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.train.groups import Group, groups
from tests.amount import examples
from tests.strategies import trajectories
from tests.unchecked import unchecked

BOUNDED = settings(max_examples=examples(300))
# Rewards of a scale that sums in float64 do not spoil.
SCORES = st.floats(-100, 100).map(lambda value: round(value, 6))
REWARDS = st.lists(SCORES | st.integers(-3, 3) | st.sampled_from([0.0, 1.0]), min_size=2, max_size=8)
MAYBE = st.lists(SCORES | st.none(), max_size=8)


def group_of(*rewards: Any) -> Group:
    runs = (unchecked(rt.Trajectory(id=str(n)), reward=reward) for n, reward in enumerate(rewards))
    return Group(id="task", trajectories=tuple(runs))


def known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


# Advantages


@BOUNDED
@given(REWARDS)
def test_grpo_is_its_formula(rewards: list[float]) -> None:
    """With the sample's standard deviation."""
    group, array = group_of(*rewards), np.array(rewards, np.float64)
    assert group.mean == pytest.approx(array.mean(), abs=1e-12)
    assert group.std == pytest.approx(array.std(ddof=1), abs=1e-6)
    assert group.std is not None
    for eps in (1e-4, 1e-6):
        expected = (array - array.mean()) / (group.std + eps)
        assert group.advantages(eps=eps) == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-6)
    assert group.advantages(normalize=False) == pytest.approx((array - array.mean()).tolist(), abs=1e-12)


def test_the_default_is_that_of_trl() -> None:
    """(1 - 0.25) / (0.5 + 1e-4): the deviation of 1, 0, 0, 0 is 0.5 with n - 1, 0.433 with n."""
    assert group_of(1, 0, 0, 0).std == 0.5
    assert group_of(1, 0, 0, 0).advantages() == [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]


@BOUNDED
@given(REWARDS)
def test_leave_one_out_is_the_reward_above_the_mean_of_the_others(rewards: list[float]) -> None:
    array = np.array(rewards, np.float64)
    expected = [array[at] - np.delete(array, at).mean() for at in range(len(array))]
    found = group_of(*rewards).advantages("leave_one_out")
    assert found == pytest.approx(expected, abs=1e-9)
    n = len(array)
    assert found == pytest.approx((n / (n - 1) * (array - array.mean())).tolist(), abs=1e-9)


@BOUNDED
@given(MAYBE)
def test_runs_without_a_reward_stay_without_and_out_of_the_baseline(rewards: list[float | None]) -> None:
    group, scored = group_of(*rewards), group_of(*known(rewards))
    assert group.n_scored == len(scored.trajectories)
    assert (group.mean, group.std) == (scored.mean, scored.std)
    for options in ({}, {"normalize": False}, {"method": "leave_one_out"}):
        found = group.advantages(**options)
        assert len(found) == len(rewards)
        assert all(value is None for value, reward in zip(found, rewards, strict=True) if reward is None)
        kept = [value for value, reward in zip(found, rewards, strict=True) if reward is not None]
        assert kept == scored.advantages(**options)


@BOUNDED
@given(MAYBE, st.sampled_from(["grpo", "leave_one_out"]))
def test_without_scaling_advantages_sum_to_zero(rewards: list[float | None], method: Any) -> None:
    assert sum(known(group_of(*rewards).advantages(method, normalize=False))) == pytest.approx(0, abs=1e-9)


@BOUNDED
@given(MAYBE, SCORES, st.sampled_from([("grpo", True), ("grpo", False), ("leave_one_out", True)]))
def test_a_bonus_for_all_changes_nothing(rewards: list[float | None], bonus: float, how: tuple[Any, bool]) -> None:
    moved = [None if reward is None else reward + bonus for reward in rewards]
    # A deviation of a rounding error, divided by one and eps, is a millionth.
    one, other = (group_of(*values).advantages(how[0], normalize=how[1]) for values in (rewards, moved))
    assert known(one) == pytest.approx(known(other), rel=1e-6, abs=1e-6)
    assert [value is None for value in one] == [value is None for value in other]


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -7, 1e300])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_equal_rewards_give_exactly_zero(reward: float, count: int) -> None:
    """Also those whose sum is not exact: 0.1 + 0.1 + 0.1 is not 0.3."""
    group = group_of(*[reward] * count)
    assert group.advantages() == group.advantages(eps=0.0) == group.advantages("leave_one_out") == [0.0] * count
    assert (group.mean, group.std) == (reward, 0.0)


def test_one_scored_run() -> None:
    """GRPO learns nothing from it; leave-one-out has no baseline."""
    group = group_of(None, 5.0, None)
    assert group.advantages() == [None, 0.0, None]
    assert group.advantages(normalize=False) == [None, 0.0, None]
    assert group.advantages("leave_one_out") == [None, None, None]
    assert (group.mean, group.std) == (5.0, None)


def test_no_scored_run() -> None:
    group = group_of(None, None)
    assert group.advantages() == group.advantages("leave_one_out") == [None, None]
    assert (group.n_scored, group.mean, group.std, group.best) == (0, None, None, None)


def test_the_best_is_the_first_of_the_highest() -> None:
    group = group_of(None, -2, 1.0, 1, 0)
    assert group.best is group.trajectories[2]
    assert group_of(None, -2.0).best is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "much", 10**400])
def test_a_reward_that_is_no_finite_number_is_refused(bad: Any) -> None:
    """Everything that counts with it says whose it is."""
    group = group_of(1.0, None, bad)
    assert group.rewards[1:] == (None, bad)
    asked: list[Any] = [lambda: group.mean, lambda: group.std, lambda: group.best, group.advantages]
    for ask in asked:
        with pytest.raises(ValueError, match=r"^trajectory '2': its reward is .*; give a finite number, or None"):
            ask()


def test_another_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"method='rloo': expected 'grpo' or 'leave_one_out'\."):
        group_of(1, 2).advantages("rloo")  # type: ignore[arg-type]


def test_nothing_is_kept() -> None:
    """Numbers are those of the rewards as they are now, and the trajectories are left alone."""
    group = group_of(1.0, 0.0)
    before = [repr(run) for run in group.trajectories]
    assert group.advantages(normalize=False) == [0.5, -0.5]
    assert [repr(run) for run in group.trajectories] == before
    group.trajectories[1].reward = 3.0
    assert group.advantages(normalize=False) == [-1.0, 1.0]


# Which runs are a group


def run(name: str, group: str | None, parent: str | None = None) -> rt.Trajectory:
    return rt.Trajectory(id=name, name=name[0], group_id=group, parent_id=parent)


def ids(found: list[Group]) -> dict[Any, list[str]]:
    return {group.id: [run.id for run in group.trajectories] for group in found}


def test_groups_are_by_id_in_the_order_given() -> None:
    runs = [run("a1", "y"), run("a2", None), run("a3", "x"), run("a4", "y"), run("a5", "")]
    found = groups(iter(runs))
    assert ids(found) == {"y": ["a1", "a4"], "x": ["a3"], "": ["a5"]}
    assert list(ids(found)) == ["y", "x", ""]
    assert found[0].trajectories[0] is runs[0]
    assert groups([]) == []


def test_a_part_of_a_run_is_not_another_run() -> None:
    """Children stand before or after their parents; between them may be one of another group."""
    runs = [
        run("b1", "g", "a1"), run("a1", "g"), run("c1", None, "a1"), run("d1", "g", "c1"), run("e1", "h", "a1"),
        run("a2", "g"), run("f2", "g", "not among them"),
    ]  # fmt: skip
    assert ids(groups(runs)) == {"g": ["a1", "a2", "f2"], "h": ["e1"]}


def test_agents_compare_with_their_own_kind_by_a_key() -> None:
    runs = [run("a1", "g"), run("b1", "g", "a1"), run("b2", "g", "a1"), run("a2", "g"), run("b3", None, "a2")]
    by_name = groups(runs, key=lambda one: None if one.group_id is None else (one.group_id, one.name))
    assert ids(by_name) == {("g", "a"): ["a1", "a2"], ("g", "b"): ["b1", "b2"]}


def test_children_compare_where_their_parents_are_not_given() -> None:
    runs = [run("b1", "g", "a1"), run("b2", "g", "a2")]
    assert ids(groups(runs)) == {"g": ["b1", "b2"]}


def test_real_children_are_parts_of_their_run(tmp_path: Any) -> None:
    """Recorded, written and read back: two runs of one task, each with a helper that names the group as well."""
    with rt.recording(tmp_path / "runs.jsonl"):
        for at in range(2):
            with rt.trajectory("solver", group="gsm8k/17", rollout_index=at) as outer:
                with rt.trajectory("helper", group="gsm8k/17"):
                    pass
                outer.reward = float(at)
    (group,) = groups(rt.read(tmp_path / "runs.jsonl"))
    assert [(one.name, one.rollout_index) for one in group.trajectories] == [("solver", 0), ("solver", 1)]
    assert group.advantages("leave_one_out") == [-1.0, 1.0]


@settings(max_examples=examples(80))
@given(st.lists(trajectories(), max_size=4))
def test_every_trajectory_is_in_one_group_at_most(runs: list[rt.Trajectory]) -> None:
    """Whatever ids and parents there are, circles included."""
    found = groups(runs)
    held = [id(one) for group in found for one in group.trajectories]
    assert len(held) == len(set(held))
    assert set(held) <= {id(one) for one in runs if one.group_id is not None}
    assert all(one.group_id == group.id for group in found for one in group.trajectories)
    # Of trajectories with one id the last counts.
    last = {one.id: one for one in runs}.values()
    assert {id(one) for one in last if one.group_id is not None and one.parent_id is None} <= set(held)


# What is given twice, and what is no trajectory


def test_a_run_that_is_given_twice_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of equal ids the last counts: a run that was scored later and written again, or two files that overlap."""
    first, second = (rt.Trajectory(id=name, group_id="task", reward=0.0) for name in ("a", "b"))
    alone = rt.Trajectory(id="c", group_id="other")
    scored = replace(first, reward=1.0)
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        found, other = groups([first, second, alone, scored, second])
    assert found.trajectories == (scored, second)
    assert [(one.rewards, one.n_repeated) for one in (found, other)] == [((1.0, 0.0), 2), ((None,), 0)]
    assert caplog.messages == [
        "rt.groups got 2 trajectories more than once (the first: a): only the last one with each id counts."
    ]


def test_one_trajectory_is_a_group_of_its_own() -> None:
    alone = rt.Trajectory(group_id="task")
    assert groups(alone) == [Group(id="task", trajectories=(alone,))]


@pytest.mark.parametrize("path", ["x.jsonl", Path("x.jsonl"), ["x.jsonl"]], ids=repr)
def test_a_path_in_the_place_of_trajectories_is_told(path: Any) -> None:
    with pytest.raises(TypeError, match=r"got the path 'x\.jsonl'; give what rt\.read\('x\.jsonl'\) yields\.$"):
        groups(path)
