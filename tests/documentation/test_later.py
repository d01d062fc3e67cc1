"""docs/files.md: what its recipes leave noted."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_blocks import run_blocks

import rollout_trace as rt


def test_the_agents_of_an_episode_get_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with rt.recording("rollouts.jsonl"):
        for reward in (1.0, None):
            with rt.trajectory("outer") as outer:
                with rt.trajectory("inner"), rt.trajectory("innermost"):
                    pass
                with rt.trajectory("own") as own:
                    own.reward = 0.25
                outer.reward = reward
    run_blocks("docs/files.md", "The agents of one episode", rt=rt)
    found = [(one.name, one.reward) for one in rt.read("rollouts.jsonl")]
    assert sorted(found[:4]) == [("inner", 1.0), ("innermost", 1.0), ("outer", 1.0), ("own", 0.25)]
    assert sorted(found[4:]) == [("inner", None), ("innermost", None), ("outer", None), ("own", 0.25)]


def test_where_takes_the_place_of_the_rule_no_reward_yet(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with rt.JSONLWriter(path) as out:
        out.write(rt.Trajectory(id="scored", reward=0.5))
        out.write(rt.Trajectory(id="new"))

    def judge(one: rt.Trajectory) -> float:
        return 1.0

    rt.score(path, judge, where=lambda one: one.reward is None and one.status == "completed")
    assert [one.reward for one in rt.read(path)] == [0.5, 1.0]
    rt.score(path, judge, where=lambda one: one.status == "completed")
    assert [one.reward for one in rt.read(path)] == [1.0, 1.0]
