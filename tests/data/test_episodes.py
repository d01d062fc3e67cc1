"""Which trajectories belong together, and which attempts at rollouts are thrown away: in any order of the lines."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import rollout_trace as rt
from rollout_trace.data.episodes import Attempts, episodes, lineage, mark_recovered, of_rewards, outermost_of


def attempt(name: str, number: int, status: str, *, index: int = 0, **known: Any) -> rt.Trajectory:
    return rt.Trajectory(
        id=name, task=rt.Task(id="t"), rollout_index=index, status=status,
        metadata={"collect": {"attempt": number, **known}},
    )  # fmt: skip


def inside(parent: rt.Trajectory, name: str, **fields: Any) -> rt.Trajectory:
    steps = [
        rt.Step(id=f"{name}/s", call_id="c", index=0, status="ok"),
        rt.Step(id=f"{name}/c", call_id="d", index=1, status="abandoned"),
    ]
    return rt.Trajectory(id=name, episode_id=parent.episode_id, parent_id=parent.id, steps=steps, **fields)


def test_episodes_are_the_same_in_any_order() -> None:
    roots = [rt.Trajectory(id="a"), rt.Trajectory(id="b")]
    every = [*roots, inside(roots[0], "a1"), inside(roots[0], "a2"), inside(roots[1], "b1")]
    for order in permutations(every):
        found = list(episodes(order))
        assert sorted(sorted(one.id for one in episode) for episode in found) == [["a", "a1", "a2"], ["b", "b1"]]
        assert {outermost_of(episode).id for episode in found} == {"a", "b"}
        assert [episode[0] for episode in found] == sorted((episode[0] for episode in found), key=order.index)


def test_a_lineage_ends_in_a_circle() -> None:
    assert list(lineage("c", {"c": "b", "b": "a", "a": None})) == ["c", "b", "a"]
    assert list(lineage("c", {"c": "b", "b": "c"})) == ["c", "b"]
    assert list(lineage("c", {"c": "gone"})) == ["c", "gone"]


def test_thrown_away_are_the_same_in_any_order() -> None:
    """Cut, tried again, failed and followed: by what the attempts say of themselves, not by which came last."""
    cases: list[tuple[list[rt.Trajectory], set[str]]] = [
        ([attempt("a", 1, "failed"), attempt("b", 2, "completed")], {"a"}),
        ([attempt("a", 1, "failed"), attempt("b", 2, "timeout"), attempt("c", 3, "failed")], {"a", "b"}),
        ([attempt("a", 1, "failed", will_retry=True)], {"a"}),
        ([attempt("a", 1, "aborted"), attempt("b", 1, "completed")], {"a"}),
        # The attempt after it was cut: until there is a whole one, the failed one is the result.
        ([attempt("a", 1, "failed"), attempt("b", 2, "aborted")], {"b"}),
        ([attempt("a", 1, "failed"), attempt("b", 1, "failed", index=1)], set()),
        # A success is not thrown away, whatever follows.
        ([attempt("a", 1, "completed"), attempt("b", 2, "completed")], set()),
        ([attempt("a", 1, "failed"), attempt("b", 1, "completed")], {"a"}),
        # Two lines of one: recovered by another machine, then written by its own process.
        ([attempt("a", 1, "aborted"), attempt("a", 1, "completed")], set()),
        ([rt.Trajectory(id="a", status="failed", task=rt.Task(id="t"), rollout_index=0)], set()),
    ]
    for every, expected in cases:
        for order in permutations(every):
            known = Attempts()
            for one in order:
                known.add(one)
            assert known.thrown == expected, [one.id for one in order]


def test_recovered_ones_are_marked_by_their_episode() -> None:
    """Also where the attempt's own trajectory was written by another process, and is not among them."""
    cut, whole = attempt("a", 1, "aborted"), attempt("b", 1, "completed", index=1)
    judge = inside(whole, "j", metadata={"collect": {"reward": "grade"}})
    below = rt.Trajectory(
        id="jj", episode_id="b", parent_id="j", steps=[rt.Step(id="jj/s", call_id="c", index=0, status="ok")]
    )
    episode = [below, inside(cut, "a1"), inside(whole, "b1"), judge]
    assert of_rewards(episode) == {"j", "jj"}
    mark_recovered(episode, {"a"})
    assert [[(step.status, step.trainable) for step in one.steps] for one in episode] == [
        [("ok", False)],
        [("superseded", True), ("abandoned", False)],
        [("ok", True), ("abandoned", True)],
        [("ok", False), ("abandoned", False)],
    ]
