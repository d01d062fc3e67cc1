"""pass@k, pass^k and comparisons, against counting by hand: every choice of k runs, every resample."""

from __future__ import annotations

import itertools
import logging
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.episodes import last_attempts
from rollout_trace.train.evaluation import chance_of_all, chance_of_any, compare, pass_at_k, pass_hat_k
from rollout_trace.train.groups import groups, run_advantages
from tests.amount import examples

BOUNDED = settings(max_examples=examples(100))
GROUPS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=6), min_size=1
)


def runs_of(scores: dict[str, list[float | None]], **fields: Any) -> list[rt.Trajectory]:
    return [
        rt.Trajectory(group_id=task, task=rt.Task(id=task), reward=reward, **fields)
        for task, every in scores.items()
        for reward in every
    ]


def attempt(number: int, *, index: int = 0, status: str = "completed", **fields: Any) -> rt.Trajectory:
    return rt.Trajectory(
        group_id="t",
        task=rt.Task(id="t"),
        rollout_index=index,
        status=status,
        metadata={"collect": {"run": "r", "attempt": number}},
        **fields,
    )


# pass@k and pass^k


@pytest.mark.parametrize("n", range(1, 8))
def test_the_chances_are_those_of_every_choice_of_k_runs(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        runs = [1] * c + [0] * (n - c)
        choices = list(itertools.combinations(runs, k))
        assert chance_of_any(n, c, k) == float(Fraction(sum(map(any, choices)), len(choices)))
        assert chance_of_all(n, c, k) == float(Fraction(sum(map(all, choices)), len(choices)))


def test_the_paper_s_product_gives_the_same() -> None:
    """The numerically stable form that Chen et al. print; here with 200 runs, as they had."""
    for c, k in ((1, 1), (3, 10), (57, 100), (190, 20), (200, 7), (0, 9)):
        product = 1.0 if 200 - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(200 - c + 1, 200 + 1)))
        assert chance_of_any(200, c, k) == pytest.approx(product, abs=1e-12)
    assert chance_of_any(100_000, 1, 1) == 1e-5
    assert chance_of_all(5000, 4999, 2500) == 0.5


@BOUNDED
@given(GROUPS, st.integers(1, 4), st.sampled_from([0.5, 1.0]))
def test_the_mean_is_over_the_groups_with_k_scored_runs(
    rewards: dict[str, list[float | None]], k: int, threshold: float
) -> None:
    scored = {task: [one >= threshold for one in every if one is not None] for task, every in rewards.items()}
    long = {task: every for task, every in scored.items() if len(every) >= k}
    for function, holds in ((pass_at_k, any), (pass_hat_k, all)):
        options: Any = {"threshold": threshold}
        if len(long) < len(rewards):
            with pytest.raises(ValueError, match="groups have fewer than"):
                function(runs_of(rewards), k, **options)
            options["on_short"] = "drop"
        if not long:
            with pytest.raises(ValueError, match="groups have fewer than"):
                function(runs_of(rewards), k, **options)
            continue
        chances = []
        for every in long.values():
            choices = [holds(one) for one in itertools.combinations(every, k)]
            chances.append(Fraction(sum(choices), len(choices)))
        expected = float(sum(chances, Fraction()) / len(chances))
        assert function(runs_of(rewards), k, **options) == pytest.approx(expected, abs=1e-12)


def test_a_function_says_what_passes() -> None:
    runs = runs_of({"a": [None, None], "b": [None, None]})
    for at, run in enumerate(runs):
        run.metrics = {"tests": float(at)}
    assert pass_at_k(runs, 1, threshold=lambda run: (run.metrics or {})["tests"] >= 3) == 0.25
    assert pass_hat_k(runs, 1, threshold=lambda run: None if run is runs[0] else True) == 1.0


def test_groups_that_are_too_short_are_named_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    runs = runs_of({"long": [1.0, 0.0], "short": [1.0, None]})
    message = "1 of 2 groups have fewer than k=2 scored runs, the first 'short' with 1 of its 2 runs"
    with pytest.raises(ValueError) as raised:
        pass_at_k(runs, 2)
    assert str(raised.value) == f"rt.pass_at_k: {message}; on_short='drop' leaves these out."
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        assert pass_hat_k(runs, 2, on_short="drop") == 0.0
    assert caplog.messages == [f"rt.pass_hat_k: left out: {message}; on_short='drop' leaves these out."]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], 1), ValueError, "no trajectory is in a group: give their group_id, or key="),
        (([rt.Trajectory(reward=1.0)], 1), ValueError, "no trajectory is in a group"),
        ((runs_of({"a": [1.0]}), 0), ValueError, "k is 0; give a number of runs, 1 or more"),
        ((runs_of({"a": [1.0]}), 1.0), TypeError, "k is 1.0; give a whole number"),
        ((runs_of({"a": [1.0]}), True), TypeError, "k is True; give a whole number"),
        (("runs.jsonl", 1), TypeError, "got the path 'runs.jsonl'"),
    ],
)
def test_bad_arguments_are_told(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pass_at_k(*arguments)


def test_bad_options_are_told() -> None:
    runs = runs_of({"a": [1.0]})
    with pytest.raises(ValueError, match="on_short is 'skip'; it can be 'raise' or 'drop'"):
        pass_at_k(runs, 1, on_short="skip")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"threshold of rt\.pass_at_k"):
        pass_at_k(runs, 1, threshold="high")  # type: ignore[arg-type]


# Attempts


def test_of_attempts_at_one_rollout_the_last_counts_everywhere() -> None:
    failed = attempt(1, status="failed")
    good = attempt(2, reward=1.0)
    other = attempt(1, index=1, reward=0.0)
    for order in itertools.permutations([failed, good, other]):
        (group,) = groups(order)
        assert set(group.trajectories) == {good, other}
        assert (group.n_earlier_attempts, group.n_repeated) == (1, 0)
        assert run_advantages(order).keys() == {good.id, other.id}
        assert pass_at_k(order, 1) == 0.5
        assert compare(order, [good]).difference == 0.5
    # An earlier attempt that was scored counts no more than one that was not.
    failed.reward = 1.0
    assert pass_at_k([failed, good, other], 2) == 1.0
    assert pass_hat_k([failed, good, other], 1) == 0.5


def test_of_equal_numbers_one_that_was_not_cut_counts() -> None:
    """The journal of a killed process may be recovered after its rollouts were made again."""
    cut, whole = attempt(1, status="aborted"), attempt(1)
    assert last_attempts([whole, cut]) == [whole]
    assert last_attempts([cut, whole]) == [whole]
    again = attempt(1)
    assert last_attempts([whole, again])[0] is again


def test_runs_that_collect_did_not_make_are_no_attempts() -> None:
    runs = [rt.Trajectory(group_id="t", task=rt.Task(id="t"), rollout_index=0, reward=1.0) for _ in range(3)]
    (group,) = groups(runs)
    assert group.trajectories == tuple(runs)
    assert group.n_earlier_attempts == 0


def test_sub_agents_of_an_earlier_attempt_are_no_runs() -> None:
    """Wherever they stand: they are in a group of their own by the key, and share their attempt's episode."""
    first, last, other = attempt(1, status="failed"), attempt(2), attempt(1, index=1)
    inside = [
        rt.Trajectory(name="sub", group_id="s", episode_id=one.id, parent_id=one.id, reward=1.0)
        for one in (first, last, other)
    ]
    for runs in ([*inside, first, last, other], [last, inside[0], first, other, *inside[1:]]):
        found = {group.id: group for group in groups(runs)}
        assert set(found["s"].trajectories) == {inside[1], inside[2]}
        assert (found["s"].n_earlier_attempts, found["t"].n_earlier_attempts) == (1, 1)
    assert [group.id for group in groups([inside[0], first, last])] == ["t"]


def test_outputs_that_a_key_keeps_apart_stay_apart() -> None:
    runs = [attempt(1), attempt(2)]
    assert len(groups(runs, key=lambda run: run.id)) == 2


# Comparisons


@BOUNDED
@given(GROUPS, GROUPS)
def test_a_comparison_is_its_definition(a: dict[str, list[float | None]], b: dict[str, list[float | None]]) -> None:
    means = [
        {
            task: sum(known) / len(known)
            for task, every in side.items()
            if (known := [x for x in every if x is not None])
        }
        for side in (a, b)
    ]
    shared = means[0].keys() & means[1].keys()
    if not shared:
        with pytest.raises(ValueError, match=r"rt\.compare: "):
            compare(runs_of(a), runs_of(b))
        return
    found = compare(runs_of(a), runs_of(b), resamples=200)
    expected = {task: means[1][task] - means[0][task] for task in shared}
    assert found.differences == pytest.approx(expected)
    assert found.difference == pytest.approx(sum(expected.values()) / len(shared))
    assert found.mean_b - found.mean_a == pytest.approx(found.difference)
    assert (found.better, found.worse) == (sum(x > 0 for x in expected.values()), sum(x < 0 for x in expected.values()))
    assert found.better + found.worse + found.equal == found.both == len(shared)
    assert (found.only_a, found.only_b) == (len(a.keys() - b.keys()), len(b.keys() - a.keys()))
    assert found.both + found.unscored + found.only_a == len(a)
    assert found.unscored_runs_a == sum(every.count(None) for every in a.values())
    if len(shared) < 2:
        assert (found.low, found.high, found.is_clear) == (None, None, False)
    else:
        assert found.low is not None
        assert found.high is not None
        assert min(expected.values()) - 1e-12 <= found.low <= found.high <= max(expected.values()) + 1e-12
        assert found.is_clear is not (found.low <= 0 <= found.high)


def test_the_interval_is_that_of_every_resample() -> None:
    """Of five tasks there are 5**5 resamples, all equally likely: their exact percentiles, and those of the draws."""
    differences = [0.5, -0.25, 1.0, 0.0, 0.125]
    a = {str(at): [0.0] for at in range(5)}
    b: dict[str, list[float | None]] = {str(at): [one] for at, one in enumerate(differences)}
    exact = sorted(math.fsum(chosen) / 5 for chosen in itertools.product(differences, repeat=5))
    low, high = np.quantile(exact, (0.1, 0.9))
    found = compare(runs_of(a), runs_of(b), confidence=0.8, resamples=100_000)  # type: ignore[arg-type]
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.026)  # One step of the exact distribution.


def test_the_draws_depend_on_the_seed_alone() -> None:
    generator = np.random.default_rng(1)
    sides = [runs_of({str(at): [float(x)] for at, x in enumerate(generator.random(50))}) for _ in range(2)]
    first, again = (compare(*sides, seed=3) for _ in range(2))
    assert first == again
    assert (compare(*sides, seed=4).low, compare(*sides, seed=4).difference) != (first.low, first.difference)
    assert compare(*sides, seed=4).difference == first.difference


def test_many_tasks_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [runs_of({str(at): [float(at % side)] for at in range(40)}) for side in (3, 4)]
    whole = compare(*sides, resamples=999)
    monkeypatch.setattr("rollout_trace.train.evaluation._AT_ONCE", 100)
    assert compare(*sides, resamples=999) == whole


def test_tasks_are_paired_by_their_ids_and_groups_may_have_the_agent_s_name() -> None:
    a = [rt.Trajectory(group_id="old/t", task=rt.Task(id="t"), reward=0.0), rt.Trajectory(group_id="g", reward=0.0)]
    b = [rt.Trajectory(group_id="new/t", task=rt.Task(id="t"), reward=1.0), rt.Trajectory(group_id="g", reward=0.5)]
    assert compare(a, b).differences == {"t": 1.0, "g": 0.5}
    assert compare(a, b, key=lambda run: "all").differences == {"all": 0.75}


def test_a_named_signal_is_compared() -> None:
    a = runs_of({"t": [1.0]}, rewards={"format": 0.25})
    b = runs_of({"t": [0.0]}, rewards={"format": 0.75})
    assert compare(a, b, signal="format").difference == 0.5
    with pytest.raises(ValueError, match="the tasks in a and in b, 1, have no runs with a reward 'style' in both"):
        compare(a, b, signal="style")


def test_what_is_printed() -> None:
    a = runs_of({"x": [0.0, 1.0], "y": [0.0], "z": [1.0], "old": [1.0], "open": [None]})
    b = runs_of({"x": [1.0, None], "y": [1.0], "z": [1.0], "open": [1.0]})
    assert str(compare(a, b)) == (
        "reward: a 0.5, b 1, difference +0.5 (95 % interval +0 to +1)\n"
        "3 tasks in both: b better in 2, worse in 0, equal in 1\n"
        "tasks left out: 1 only in a, 1 without a reward in one\n"
        "runs without a reward: 1 of a, 1 of b"
    )
    one = str(compare(runs_of({"x": [0.0]}), runs_of({"x": [1.0]})))
    assert one.splitlines()[0] == "reward: a 0, b 1, difference +1 (no interval: one task)"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"confidence": 95}, ValueError, "confidence is 95; give a number between 0 and 1"),
        ({"confidence": None}, TypeError, "confidence of rt.compare"),
        ({"resamples": 0}, ValueError, "resamples is 0; give a whole number"),
    ],
)
def test_bad_options_of_a_comparison_are_told(options: Any, error: type[Exception], message: str) -> None:
    runs = runs_of({"x": [0.0]})
    with pytest.raises(error, match=message):
        compare(runs, runs, **options)


def test_tasks_that_do_not_meet_are_told() -> None:
    with pytest.raises(ValueError, match=r"no task is in both: a has 1, b has 2\. Runs are paired by the id of their"):
        compare(runs_of({"x": [0.0]}), runs_of({"y": [0.0], "z": [1.0]}))
