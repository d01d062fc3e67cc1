"""What the adapters of ``trainers`` share: rollouts that a trainer asks for one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.trainers import served
from rollout_trace.trainers.served import Served, ServedTask


def make(agent: Any, tasks: list[tuple[str, dict[str, Any]]], **options: Any) -> list[rt.Group]:
    async def groups() -> list[rt.Group]:
        made = Served(agent, progress=False, **options)
        try:
            asked = [made.make(key, ServedTask(fields, base_url="http://x/v1", group=key)) for key, fields in tasks]
            return list(await asyncio.gather(*asked))
        finally:
            await made.aclose()

    return asyncio.run(groups())


def test_each_run_changes_its_own_task() -> None:
    shared: dict[str, Any] = {"messages": [{"content": "hi"}], "lock": asyncio.Lock}

    async def agent(task: Any, rollout: rt.Rollout) -> None:
        assert task == {"messages": [{"content": "hi"}], "lock": asyncio.Lock}
        assert rollout.group == "a"
        task["messages"][0]["content"] += "!"
        task["messages"].append(rollout.index)

    runs = [group.trajectories[0] for group in make(agent, [("a", shared)] * 3)]
    assert [run.status for run in runs] == ["completed"] * 3, [run.error for run in runs]
    assert shared["messages"] == [{"content": "hi"}]


def test_several_processes_make_runs_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts them from 0; none is an earlier attempt at one of the other."""
    for process in ("one", "two"):
        monkeypatch.setattr(served, "_TOKEN", process)
        make(lambda task: None, [("a", {})] * 2, output=tmp_path / f"{process}.jsonl")
    (group,) = rt.groups(rt.read(tmp_path))
    assert (group.id, len(group.trajectories), group.n_earlier_attempts) == ("a", 4, 0)
    assert sorted(run.rollout_index or 0 for run in group.trajectories) == [0, 0, 1, 1]


def test_failures_do_not_end_the_rollouts() -> None:
    def agent(task: Any) -> None:
        raise RuntimeError("no server")

    given: list[tuple[str, dict[str, Any]]] = [(str(at), {}) for at in range(60)]
    assert [group.trajectories[0].status for group in make(agent, given, in_flight=2)] == ["failed"] * 60
    with pytest.raises(RuntimeError):
        make(agent, given, in_flight=2, limits={"failures": 3})
