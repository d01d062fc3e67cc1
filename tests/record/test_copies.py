"""Copies and pickles of recorded trajectories, in each state: workers send them to other processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, ScriptedServer

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = WAYS[request.param]
    return found


def client_of(server: ScriptedServer) -> openai.OpenAI:
    return rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0))


def statuses(trajectory: rt.Trajectory) -> list[str]:
    return [step.status for step in trajectory.steps]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_copy_has_what_the_original_has_then(way: Callable[[Any], Any], is_recorded: bool, tmp_path: Path) -> None:
    recording = rt.recording(tmp_path / "runs.jsonl")
    with ScriptedServer(Fault("fine", hold_after=1)) as server, client_of(server) as client:
        if is_recorded:
            recording.__enter__()
        with rt.trajectory(metadata={"a": 1}) as trajectory:
            trajectory.reward = 1.0
            stream = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            next(stream)
            with rt.tool_run("f", arguments={"x": 1}):
                pass
        running = way(trajectory)
        assert (statuses(running), running.reward, running.is_open) == (["running"], 1.0, False)
        server.release()
        list(stream)
        done = way(trajectory)
        assert (done == trajectory, statuses(done), done.environment == trajectory.environment) == (True, ["ok"], True)
        if is_recorded:
            recording.__exit__(None, None, None)
        after = way(trajectory)
        assert after == trajectory
        after.reward = 2.0
        assert trajectory.reward == 1.0
        assert [run.name for run in running.tool_runs] == ["f"]


@pytest.mark.parametrize("name", ["deepcopy", "pickle"])
def test_an_open_one_is_refused(name: str) -> None:
    with rt.trajectory() as trajectory, pytest.raises(TypeError, match="an open trajectory cannot be pickled"):
        WAYS[name](trajectory)
