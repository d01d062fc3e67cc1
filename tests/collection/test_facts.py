"""The facts of rollouts: counted from their steps, against the totals that trajectories have themselves."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.collection.facts import facts_of
from rollout_trace.data import costs
from rollout_trace.data.model import Step
from rollout_trace.process.exits import reason_without_ids
from rollout_trace.train.sequences import count_drift
from tests.strategies import PROFILE, trajectories
from tests.train.test_drift import REPORTS, recorded

COLLECT = {"run": "r", "attempt": 2, "task_digest": "0"}


def made(*steps: Step, **fields: Any) -> rt.Trajectory:
    """A trajectory of collect."""
    given: dict[str, Any] = {"name": "solve", "task": rt.Task(id="t"), "rollout_index": 1, "group_id": "t", **fields}
    return rt.Trajectory(**{"metadata": {"collect": COLLECT}, "steps": list(steps), **given})


def call(name: str, **fields: Any) -> Step:
    """A step that is a call of its own."""
    return Step(**{"id": name, "call_id": name, "completion": rt.Completion(content="x"), **fields})


def test_a_trajectory_of_another_program_has_none() -> None:
    assert facts_of([rt.Trajectory()]) is None
    assert facts_of([]) is None
    assert facts_of([rt.Trajectory(task=rt.Task(id="t"), rollout_index=0, metadata={"collect": 3})]) is None
    assert facts_of([made(rollout_index=None)]) is None


def test_what_identifies_a_rollout() -> None:
    own = made(reward=0.5, rewards={"a": 1.0}, status="failed", error=rt.ErrorInfo(type="E", message="m"))
    facts = facts_of([own])
    assert facts is not None
    assert facts.key == ("solve", "t", 1)
    assert (facts.trajectory_id, facts.attempt, facts.status, facts.group) == (own.id, 2, "failed", "t")
    assert (facts.reward, facts.rewards, facts.error) == (0.5, {"a": 1.0}, own.error)
    assert pickle.loads(pickle.dumps(facts)) == facts


def test_of_no_calls_nothing_is_unknown() -> None:
    facts = facts_of([made()])
    assert facts is not None
    assert (facts.usage.calls, facts.usage.known_input, facts.usage.known_output, facts.usage.cost) == (0, 0, 0, None)
    assert (len(facts.latencies), len(facts.first_tokens), facts.steps) == (0, 0, 0)


def test_what_is_not_known_is_counted_and_no_zero() -> None:
    known = call("a", usage=rt.Usage(input=7, output=3), cost=rt.Cost(amount=0.5, source="table"), latency=2.0)
    unknown = call("b", time_to_first_token=0.25)
    failed = call("c", status="error", completion=None, latency=9.0)
    facts = facts_of([made(known, unknown, failed)])
    assert facts is not None
    assert (facts.usage.calls, facts.usage.failed) == (3, 1)
    assert (facts.usage.known_input, facts.usage.input_unknown) == (7, 1)
    assert (facts.usage.known_output, facts.usage.output_unknown) == (3, 1)
    assert (facts.usage.cost, facts.usage.cost_unknown) == (rt.Cost(amount=0.5, source="table"), 1)
    # A refusal is quick, and no answer.
    assert (list(facts.latencies), list(facts.first_tokens)) == ([2.0], [0.25])
    alone = facts_of([made(unknown)])
    assert alone is not None
    assert (alone.usage.known_input, alone.usage.known_output, alone.usage.cost) == (None, None, None)


def test_the_choices_of_a_call_are_one_call() -> None:
    first = call("a", usage=rt.Usage(input=7, output=3), latency=2.0)
    facts = facts_of([made(first, replace(first, id="b", choice=1))])
    assert facts is not None
    assert (facts.usage.calls, facts.steps, facts.usage.known_input, list(facts.latencies)) == (1, 2, 7, [2.0])


def test_costs_of_several_currencies_and_sources_are_kept_apart() -> None:
    steps = [
        call(str(at), cost=rt.Cost(amount=1.0, currency=currency, source=source))  # type: ignore[arg-type]
        for at, (currency, source) in enumerate([("USD", "table"), ("USD", "provider"), ("EUR", "table")])
    ]
    facts, dollars = facts_of([made(*steps)]), facts_of([made(*steps[:2])])
    assert facts is not None
    assert dollars is not None
    assert facts.usage.cost is None
    assert facts.usage.amounts == {("USD", "table"): 1.0, ("USD", "provider"): 1.0, ("EUR", "table"): 1.0}
    assert dollars.usage.cost == rt.Cost(amount=2.0, currency="USD", source="unknown")


def test_sub_agents_count_and_calls_of_rewards_are_apart() -> None:
    """Also those of an agent that a reward function runs. In any order: children are written first, or last."""
    own = made(call("a", usage=rt.Usage(input=1, output=1)))
    helper = rt.Trajectory(parent_id=own.id, name="reward", steps=[call("b", usage=rt.Usage(input=10, output=10))])
    judge = rt.Trajectory(parent_id=own.id, name="reward", metadata={"collect": {"reward": "grade"}})
    judge.steps = [call("c", usage=rt.Usage(input=100, output=100), latency=1.0)]
    deeper = rt.Trajectory(parent_id=judge.id, steps=[call("d", usage=rt.Usage(input=1000, output=1000))])
    for family in ([own, helper, judge, deeper], [deeper, judge, helper, own]):
        facts = facts_of(family)
        assert facts is not None
        assert facts.trajectory_id == own.id
        assert (facts.usage.calls, facts.usage.known_input, facts.steps, len(facts.latencies)) == (2, 11, 2, 0)
        assert (facts.reward_usage.calls, facts.reward_usage.input_tokens) == (2, 1100)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_drift_of_recorded_conversations(name: str) -> None:
    trajectory = recorded(name)
    broken = sum(not turn["prefix_holds"] for turn in REPORTS[name])
    facts = facts_of([made(*trajectory.steps)])
    assert facts is not None
    assert facts.drift == broken == len(rt.drift(trajectory))
    assert facts.steps_with_ids == facts.steps == 3


@PROFILE
@given(trajectories(), st.lists(trajectories(), max_size=2))
def test_totals_are_those_of_the_trajectories(own: rt.Trajectory, inside: list[rt.Trajectory]) -> None:
    """Whatever steps there are."""
    own.task, own.rollout_index, own.metadata = rt.Task(id="t"), 0, {"collect": COLLECT}
    for one in inside:
        one.metadata = None
    for step in [step for one in (own, *inside) for step in one.steps]:
        # `rt.drift` refuses one that does not fit its completion.
        step.advantage = None
    facts = facts_of([own, *inside])
    assert facts is not None
    every = [own, *inside]
    steps = [step for one in every for step in one.steps]
    assert facts.steps == len(steps)
    assert facts.steps_with_ids == sum(step.completion_token_ids is not None for step in steps)
    assert facts.without_ids == Counter(reason_without_ids(x) for x in steps if x.completion_token_ids is None)
    assert facts.drift == sum(len(rt.drift(one)) for one in every) == sum(map(count_drift, every))
    assert facts.usage.calls == sum(len(costs.calls_of(one.steps)) for one in every)
    for name, unknown in (("input", facts.usage.input_unknown), ("output", facts.usage.output_unknown)):
        totals = [getattr(one, f"n_{name}_tokens") for one in every]
        assert (None in totals) == (unknown > 0)
        if None not in totals:
            assert getattr(facts.usage, f"known_{name}") == sum(totals)
