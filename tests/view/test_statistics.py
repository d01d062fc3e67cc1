"""Sums over many trajectories: percentiles, which lines count, pass@k; each against the plain way to compute it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.train import quantiles
from rollout_trace.train.groups import groups
from rollout_trace.train.quantiles import Numbers
from rollout_trace.view import counted as counted_module
from rollout_trace.view.counted import NotCounted, counted
from rollout_trace.view.statistics import Facts, Passes, Statistics, facts_of
from rollout_trace.view.summary import summarize
from tests.amount import examples

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
MANY = settings(max_examples=examples(150))


@MANY
@given(NUMBERS)
def test_few_numbers_are_exact(values: list[float]) -> None:
    found = Numbers(values)
    for percent in (0, 50, 90, 99, 100):
        assert found.percentile(percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
    if len(values) > 1:
        assert found.deviation == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-3)
    counts = found.histogram(7)[1]
    assert sum(counts) == len(values)


@pytest.mark.parametrize("values", [[3.0] * 500, [0.0, -1.0] * 300, list(np.random.default_rng(0).normal(0, 9, 900))])
def test_many_numbers_are_within_half_a_percent(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "EXACT", 100)
    found = Numbers(map(float, values))
    assert not found.is_exact
    for percent in (1, 10, 50, 90, 99):
        ordered = sorted(values)
        # That of a neighbour in rank: an approximation does not interpolate.
        rank = (len(values) - 1) * percent / 100
        near = ordered[math.floor(rank)], ordered[math.ceil(rank)]
        value = found.percentile(percent)
        assert value is not None
        assert min(abs(value - one) for one in near) <= 0.0051 * max(map(abs, near)) + 1e-12
    assert (found.low, found.high, sum(found.histogram(9)[1])) == (min(values), max(values), len(values))


def test_no_numbers() -> None:
    found = Numbers()
    assert (found.mean, found.deviation, found.error, found.percentile(50), found.histogram(5)) == (
        None, None, None, None, ([], []),
    )  # fmt: skip


# Which lines count

RUNS = st.lists(
    st.builds(
        lambda run, task, group, index, number, cut, retry: rt.Trajectory(
            id=run,
            task=rt.Task(id=task),
            group_id=group,
            rollout_index=index,
            status="aborted" if cut else "completed",
            metadata=None if number is None else {"collect": {"attempt": number, "will_retry": retry}},
        ),
        st.sampled_from("abcdef"),
        st.sampled_from(["t", "u"]),
        st.sampled_from(["g", "h"]),
        st.sampled_from([0, 1]),
        st.sampled_from([None, 1, 1, 2]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=9,
)


def those_that_count(runs: Iterable[rt.Trajectory]) -> list[rt.Trajectory]:
    return [run for group in groups(runs) for run in group.trajectories]


def collect(runs: list[rt.Trajectory]) -> tuple[list[rt.Trajectory], int, NotCounted]:
    """What is given in the end, the number of readings, and what does not count."""
    given: list[rt.Trajectory] = []
    readings = 0

    def read() -> Iterable[rt.Trajectory]:
        nonlocal readings
        readings += 1
        return iter(runs)

    def start(_: NotCounted) -> Callable[[rt.Trajectory], object]:
        given.clear()
        return given.append

    left = counted(read, lambda run: run, start)
    return given, readings, left


@settings(max_examples=examples(400))
@given(RUNS)
def test_lines_count_as_for_groups(runs: list[rt.Trajectory]) -> None:
    found, _, left = collect(runs)
    assert sorted(map(id, found)) == sorted(map(id, those_that_count(runs)))
    assert len(left.doubles) + len(left.attempts) + len(found) == len(runs)
    assert len(left.doubles) == len(runs) - len({run.id for run in runs})


@pytest.mark.parametrize(("held", "readings"), [(5_000, 1), (0, 2)])
def test_retries_need_no_second_reading(held: int, readings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_module, "HELD", held)
    runs = [
        rt.Trajectory(
            task=rt.Task(id="t"), rollout_index=0, metadata={"collect": {"attempt": number, "will_retry": number < 3}}
        )
        for number in (1, 2, 3)
    ]
    found, times, _ = collect(runs)
    assert (found, times) == ([runs[2]], readings)


def test_what_an_attempt_opened_is_no_run_of_the_group() -> None:
    """Although the attempt itself does not count."""
    facts: dict[str, Any] = {"task": rt.Task(id="t"), "rollout_index": 0, "group_id": "g", "reward": 1.0}
    runs = [
        rt.Trajectory(id="a", metadata={"collect": {"attempt": 1, "will_retry": True}}, **facts),
        rt.Trajectory(id="b", parent_id="a", group_id="g", reward=0.0),
        rt.Trajectory(id="c", metadata={"collect": {"attempt": 2}}, **facts),
    ]
    found = Statistics()

    def start(left: NotCounted) -> Callable[[Facts], object]:
        nonlocal found
        found = Statistics(families=left.families)
        return found.add

    counted(lambda: runs, facts_of, start)
    assert [(one.k, one.any, one.groups) for one in found.passes.at_k()] == [(1, rt.pass_at_k(runs, 1), 1)]


# pass@k

SCORED = st.lists(
    st.builds(
        lambda number, group, parent, reward: (number, group, parent, reward),
        st.integers(0, 7),
        st.sampled_from([None, "g", "h"]),
        st.none() | st.integers(0, 8),
        st.sampled_from([None, 0.0, 0.5, 1.0]),
    ),
    max_size=8,
    unique_by=lambda one: one[0],
)


@settings(max_examples=examples(300))
@given(SCORED)
def test_passes_are_those_of_pass_at_k(rows: list[tuple[Any, ...]]) -> None:
    runs = [
        rt.Trajectory(id=str(number), group_id=group, parent_id=None if parent is None else str(parent), reward=reward)
        for number, group, parent, reward in rows
    ]
    passes = Passes(1.0)
    for run in runs:
        passes.add(summarize(run))
    found = passes.at_k()
    scored = [group.n_scored for group in groups(runs)]
    assert passes.groups == sum(map(bool, scored))
    assert [one.k for one in found] == [k for k in (1, 2, 4, 8) if max(scored, default=0) >= k]
    for one in found:
        assert one.groups == sum(n >= one.k for n in scored)
        assert one.any == pytest.approx(rt.pass_at_k(runs, one.k, on_short="drop"))
        assert one.all == pytest.approx(rt.pass_hat_k(runs, one.k, on_short="drop"))


def test_parts_add_up() -> None:
    found = Statistics("status")
    for number in range(5):
        run = rt.Trajectory(id=str(number), status="failed" if number < 2 else "completed", reward=number)
        found.add(facts_of(run))
    assert {name: part.trajectories for name, part in found.parts.items()} == {"failed": 2, "completed": 3}
    assert [part.reward.mean for part in found.parts.values()] == [0.5, 3.0]
    assert found.as_dict()["reward"]["mean"] == 2.0
