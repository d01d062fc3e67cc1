"""The account of a run: its figures against definitions written out, and what is printed."""

from __future__ import annotations

import json
import statistics
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.collection.facts import CallTotals, Facts
from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Outcome
from rollout_trace.collection.summary import CollectSummary
from rollout_trace.collection.tally import Tally
from rollout_trace.data.model import ErrorInfo
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.train.evaluation import pass_at_k, pass_hat_k
from tests.amount import examples

BOUNDED = settings(max_examples=examples(80))
SCORES = st.dictionaries(
    st.sampled_from("abcde"), st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=5), min_size=1
)


def outcome(task: str = "t", index: int = 0, **fields: Any) -> Outcome:
    given: dict[str, Any] = {"attempt": 1, "trajectory_id": "x", "status": "completed", **fields}
    return Outcome(key=Key("solve", task, index), **given)


def facts(task: str = "t", index: int = 0, **fields: Any) -> Facts:
    given: dict[str, Any] = {
        "trajectory_id": "x", "episode": "x", "attempt": 1, "status": "completed",
        "reward": None, "rewards": None, "group": task,
        "error": None, "reward_errors": (), "usage": CallTotals(), "reward_usage": CallTotals(),
        "latencies": array("f"), "first_tokens": array("f"), "steps": 0, "steps_with_ids": 0,
        "without_ids": Counter(), "drift": 0, **fields,
    }  # fmt: skip
    return Facts(key=Key("solve", task, index), **given)


def ended(tally: Tally, **fields: Any) -> CollectSummary:
    return tally.summary(**{"run_id": "r", "output": "x.jsonl", "seconds": 2.0, **fields})


def tally_of(scores: dict[str, list[float | None]], *, earlier: int = 0) -> Tally:
    """``earlier``: so many of the rollouts were in the output before."""
    every = [(task, index, one) for task, rewards in scores.items() for index, one in enumerate(rewards)]
    tally = Tally(len(every))
    for at, (task, index, reward) in enumerate(every):
        if at < earlier:
            tally.add_earlier(facts(task, index, reward=reward))
        else:
            tally.add(outcome(task, index, reward=reward))
            tally.add_facts(facts(task, index, reward=reward))
    return tally


# Rewards


@BOUNDED
@given(SCORES, st.integers(0, 10), st.sampled_from([0.0, 0.25]))
def test_the_spread_of_the_reward(scores: dict[str, list[float | None]], earlier: int, shift: float) -> None:
    """Whatever part of it was made before."""
    moved = {task: [None if one is None else one - shift for one in every] for task, every in scores.items()}
    tally = tally_of(moved, earlier=earlier)
    summary = ended(tally)
    known = [one for every in moved.values() for one in every if one is not None]
    assert summary.n_scored == tally.n_scored == len(known)
    assert summary.mean_reward == (pytest.approx(statistics.mean(known)) if known else None)
    assert tally.mean_reward == pytest.approx(summary.mean_reward)
    assert summary.std_reward == (pytest.approx(statistics.stdev(known)) if len(known) > 1 else None)
    clusters = [np.array([one for one in every if one is not None]) for every in moved.values()]
    clusters = [cluster for cluster in clusters if len(cluster)]
    if len(clusters) < 2:
        assert summary.stderr_reward is None
        return
    # The sandwich estimator of a regression on a constant, with the factor G / (G - 1).
    squares = sum(np.outer(c - np.mean(known), c - np.mean(known)).sum() for c in clusters)
    expected = np.sqrt(len(clusters) / (len(clusters) - 1) * squares) / len(known)
    assert summary.stderr_reward == pytest.approx(float(expected), abs=1e-7)


def test_with_one_run_a_task_the_standard_error_is_the_usual_one() -> None:
    rewards = [0.0, 1.0, 1.0, 0.0, 1.0, 0.5]
    summary = ended(tally_of({str(at): [one] for at, one in enumerate(rewards)}))
    assert summary.stderr_reward == pytest.approx(statistics.stdev(rewards) / len(rewards) ** 0.5)


@BOUNDED
@given(SCORES)
def test_pass_at_k_is_that_of_the_runs(scores: dict[str, list[float | None]]) -> None:
    summary = ended(tally_of(scores))
    runs = [rt.Trajectory(group_id=task, reward=one) for task, every in scores.items() for one in every]
    counts = [sum(one is not None for one in every) for every in scores.values()]
    if not any(counts):
        assert (summary.threshold, summary.pass_at_k, summary.pass_hat_k) == (None, {}, {})
        return
    assert summary.threshold == 1
    assert list(summary.pass_at_k) == list(summary.pass_hat_k) == [k for k in (1, 2, 4) if k <= max(counts)]
    for found, function in ((summary.pass_at_k, pass_at_k), (summary.pass_hat_k, pass_hat_k)):
        for k, rate in found.items():
            assert rate.value == pytest.approx(function(runs, k, on_short="drop"))
            assert rate.tasks == sum(count >= k for count in counts)


def test_rewards_that_are_not_0_or_1_have_no_pass_at_k_without_a_threshold() -> None:
    tally = tally_of({"a": [0.5, 1.0]})
    assert (ended(tally).threshold, ended(tally).pass_at_k) == (None, {})
    assert "pass" not in str(ended(tally))
    given = ended(tally, threshold=0.5)
    assert given.pass_at_k[1].value == 1.0
    assert "with a reward of 0.5 or more" in str(given)


def test_named_rewards_are_means_of_the_rollouts_that_have_them() -> None:
    tally = Tally(3)
    tally.add(outcome(rewards={"a": 1.0, "b": 0.5}))
    tally.add(outcome(index=1, rewards={"a": 0.0}))
    tally.add_earlier(facts(index=2, rewards={"a": 0.5}))
    assert ended(tally).rewards == {"a": 0.5, "b": 0.5}


def test_why_rollouts_are_not_scored() -> None:
    tally = Tally(5)
    for index, message in enumerate(["no number in 'x'", "no number in 'y'"]):
        tally.add(outcome(index=index, reward_errors=(f"grade: ValueError: {message}",)))
    tally.add(outcome(index=2, status="timeout"))
    tally.add(outcome(index=3))
    tally.add_earlier(facts(index=4, status="failed"))
    summary = ended(tally)
    assert summary.unscored == {
        "reward function failed: grade: ValueError": 2,
        "status timeout": 1,
        "no reward was given": 1,
        "status failed": 1,
    }
    assert (summary.reward_failures, summary.mean_reward, summary.n_scored) == (2, None, 0)


# Rollouts and attempts


def test_attempts_and_rollouts_are_counted_apart() -> None:
    tally = Tally(4)
    error = ErrorInfo(type="Reset", message="m")
    tally.add(outcome(status="failed", error=error, will_retry=True))
    assert (tally.ended, tally.retried, dict(tally.by_status)) == (0, 1, {})
    tally.add(outcome(attempt=2, reward=1.0))
    tally.add(outcome(index=1, status="timeout", error=ErrorInfo(type="Late", message=""), is_left_behind=True))
    tally.add_earlier(facts(index=2, reward=0.0))
    for _ in range(2):
        tally.add_facts(facts())
    summary = ended(tally)
    assert (summary.planned, summary.made, summary.earlier, summary.not_made) == (4, 2, 1, 1)
    assert (summary.attempts, summary.retried, summary.left_behind, summary.unwritten) == (3, 1, 1, 1)
    assert summary.by_status == {"completed": 2, "timeout": 1}
    assert summary.errors == {"Late": 1}
    assert (summary.succeeded, summary.ok, summary.exit_code) == (2, False, 0)
    assert summary.rollouts_per_second == 1.0


def test_all_attempts_cost() -> None:
    tally = Tally(1)
    for attempt in (1, 2):
        tally.add(outcome(attempt=attempt, status="failed", will_retry=attempt == 1))
        usage = CallTotals(
            calls=1,
            failed=0,
            input_tokens=10,
            input_unknown=0,
            output_tokens=5,
            output_unknown=1,
            amounts={("USD", "table"): 0.25},
            cost_unknown=0,
        )
        tally.add_facts(facts(attempt=attempt, usage=usage, steps=1, without_ids=Counter({"why": 1}), drift=2))
    summary = ended(tally)
    assert (tally.usage.calls, tally.usage.input_tokens, tally.usage.output_tokens) == (2, 20, 10)
    assert (summary.input_tokens, summary.output_tokens, summary.usage.output_unknown) == (20, 10, 2)
    assert tally.usage.cost == summary.cost == rt.Cost(amount=0.5, source="table")
    assert (summary.steps, summary.without_ids, summary.drift, summary.drifted) == (2, {"why": 2}, 4, 2)
    # What was returned does not change with what comes later.
    tally.add_facts(facts(usage=CallTotals(calls=1, failed=0, input_tokens=10)))
    assert summary.usage.calls == 2


@pytest.mark.parametrize(
    ("statuses", "code", "ok"),
    [
        (["completed"], 0, True),
        (["solved", "completed"], 0, True),
        (["failed", "completed"], 0, False),
        (["failed", "timeout", "aborted"], 1, False),
        ([], 1, False),
    ],
)
def test_the_exit_code_is_1_where_nothing_succeeded(statuses: list[str], code: int, ok: bool) -> None:
    tally = Tally(max(1, len(statuses)))
    for index, status in enumerate(statuses):
        tally.add(outcome(index=index, status=status))
        tally.add_facts(facts(index=index))
    assert (ended(tally).exit_code, ended(tally).ok) == (code, ok)


@BOUNDED
@given(st.lists(st.lists(st.floats(0, 100, width=32), max_size=4), max_size=6))
def test_percentiles_are_of_all_calls(latencies: list[list[float]]) -> None:
    tally = Tally(len(latencies))
    for every in latencies:
        tally.add_facts(facts(latencies=array("f", every)))
    found, values = ended(tally).latency, [one for every in latencies for one in every]
    assert ended(tally).time_to_first_token is None
    if not values:
        assert found is None
        return
    assert found is not None
    assert found.count == len(values)
    cuts = statistics.quantiles([*values, *values], n=100, method="inclusive") if len(values) == 1 else None
    expected = cuts or statistics.quantiles(values, n=100, method="inclusive")
    assert (found.p50, found.p90, found.p99) == pytest.approx((expected[49], expected[89], expected[98]), abs=1e-4)


def test_a_rollout_takes_little_memory() -> None:
    """Two hundred tasks with 10 rollouts first, so that only what grows with rollouts is measured."""
    tally = Tally(22_000)

    def add(first: int, count: int) -> None:
        for at in range(first, first + count):
            tally.add(outcome(f"task/{at % 200}", at // 200, reward=float(at % 2), rewards={"a": 1.0}))
            tally.add_facts(facts(latencies=array("f", [1.0, 2.0, 3.0]), without_ids=Counter({"why": 1})))

    add(0, 2_000)
    tracemalloc.start()
    try:
        add(2_000, 20_000)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 20_000 * 50


# What is printed


def full() -> Tally:
    """A run in which everything happened."""
    tally = Tally(30)
    for index in range(8):
        tally.add_earlier(facts("a" * 300, index, reward=1.0))
    for index in range(20):
        status = ("completed", "failed", "timeout", "aborted", "gave up " * 10)[index % 5]
        error = None if status == "completed" else ErrorInfo(type=f"\x1b[31m{'Error' * 9}{index}", message="m")
        tally.add(
            outcome(str(index % 7), index, status=status, error=error, is_left_behind=index == 3,
                    reward=float(index % 2) if status == "completed" else None,
                    reward_errors=(f"grade: {'E' * 50}: \r\n",) if index == 6 else (),
                    rewards={f"signal {n}\n": 1 / 3 for n in range(9)})
        )  # fmt: skip
        usage = CallTotals(
            calls=1234,
            failed=5,
            input_tokens=1_234_567,
            input_unknown=3,
            output_tokens=0,
            output_unknown=7,
            amounts={("USD", "table"): 12.5, ("EUR", "provider"): 0.001},
            cost_unknown=2,
        )
        judge = CallTotals(
            calls=1,
            failed=0,
            input_tokens=0,
            input_unknown=1,
            output_tokens=0,
            output_unknown=1,
            amounts={},
            cost_unknown=1,
        )
        tally.add_facts(
            facts(str(index), usage=usage, reward_usage=judge, latencies=array("f", [0.5, 70.0]), steps=1234,
                  first_tokens=array("f", [0.0004]), without_ids=Counter({"why\x07 " * 20: 3, "n": 1}), drift=1)
        )  # fmt: skip
    return tally


@pytest.mark.parametrize("width", [10, 40, 60, 80, 120, 160, 400])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    summary = ended(
        full(), output="/home/somebody/" + "long/" * 40 + "x.jsonl", stopped="9 failed " * 30, interrupted=True
    )
    lines = summary.render(width).splitlines()
    assert max(map(len, lines)) <= max(width, 30)
    assert all(line.isprintable() and not line.endswith(" ") for line in lines)
    # Names in one column, values in the other.
    assert all(line[12] == " " and (line[13] != " " or width < 40) for line in lines)


def test_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tally = tally_of({"a": [1.0, 0.0], "b": [1.0, None]}, earlier=1)
    usage = CallTotals(
        calls=2,
        failed=1,
        input_tokens=1500,
        input_unknown=0,
        output_tokens=0,
        output_unknown=1,
        amounts={("USD", "table"): 0.0125},
        cost_unknown=0,
    )
    tally.add_facts(
        facts(usage=usage, latencies=array("f", [0.5, 1.5]), steps=2, steps_with_ids=1,
              without_ids=Counter({"the call failed": 1}))
    )  # fmt: skip
    assert str(ended(tally)).splitlines() == [
        "output       x.jsonl",
        "run          r",
        "rollouts     4 planned, 3 made, 1 in the output before",
        "status       4 completed",
        "reward       mean 0.6667, sd 0.5774, se 0.222 by task, 3 scored",
        "unscored     1 no reward was given",
        "pass@k       k=1 0.750, k=2 1.000 (1 of 2 tasks)",
        "pass^k       k=1 0.750, k=2 0.000 (1 of 2 tasks)",
        "             (over the scored runs of each task)",
        "calls        2 in this run, 1 failed",
        "tokens       1,500 in, out unknown",
        "cost         0.0125 USD (table)",
        "latency      p50 1.0 s, p90 1.4 s, p99 1.5 s",
        "token ids    in 1 of 2 steps",
        "             without: 1 the call failed",
        "time         2.0 s, 1.5 rollouts/s",
    ]


def test_what_is_missing_is_not_printed_as_zero() -> None:
    text = str(ended(Tally(3), seconds=0.0))
    assert text.splitlines() == ["output       x.jsonl", "run          r", "rollouts     3 planned, 0 made, 3 not made",
                                 "time         0.0 s"]  # fmt: skip


def test_the_summary_is_json() -> None:
    for tally in (Tally(0), full()):
        found = json.loads(json.dumps(ended(tally).as_json(), allow_nan=False))
        assert found["exit_code"] == ended(tally).exit_code
    assert found["usage"]["amounts"] == {"USD/table": 250.0, "EUR/provider": pytest.approx(0.02)}


# A real run


def test_a_real_run(tmp_path: Path) -> None:
    """The figures are those that the file gives."""
    with ScriptedServer(lambda request: Reply("four")) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
            summary = rt.collect(
                _asking(client), [{"id": str(at)} for at in range(3)], output=tmp_path / "x.jsonl", samples=2,
                reward=lambda task, result, trajectory: float(task["id"] != "2"), progress=False, engine="vllm",
            )  # fmt: skip
    found = list(rt.read(tmp_path / "x.jsonl"))
    assert (summary.planned, summary.made, summary.unwritten, summary.ok) == (6, 6, 0, True)
    assert summary.usage.calls == summary.steps == summary.steps_with_ids == sum(len(one.steps) for one in found) == 6
    assert summary.input_tokens == sum(one.n_input_tokens or 0 for one in found)
    assert summary.output_tokens == sum(one.n_output_tokens or 0 for one in found)
    assert summary.pass_at_k[2].value == pass_at_k(found, 2) == pytest.approx(2 / 3)
    latencies = [step.latency for one in found for step in one.steps if step.latency is not None]
    assert summary.latency is not None
    assert summary.latency.p50 == pytest.approx(statistics.median(latencies), rel=1e-5)


def _asking(client: openai.OpenAI) -> Callable[[Any], str | None]:
    def solve(task: Any) -> str | None:
        question: Any = [{"role": "user", "content": "2 + 2?"}]
        return client.chat.completions.create(model="m", messages=question).choices[0].message.content

    return solve
