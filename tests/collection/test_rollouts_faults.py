"""``rt.rollouts`` where files refuse what was recorded, versions go back, and nobody closes the iterator."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from tests.collection import executor_agents


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _: Reply("four")) as server:
        yield server


@pytest.fixture
def ask(server: ScriptedServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        yield lambda *_: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])


def stream(agent: Any, tasks: Any, **options: Any) -> rt.Rollouts:
    return rt.rollouts(agent, tasks, progress=False, engine="vllm", **options)


@pytest.mark.parametrize("executor", ["local", pytest.param("process", marks=pytest.mark.processes)])
def test_groups_come_while_the_file_refuses_them(
    executor: str, tmp_path: Path, server: ScriptedServer, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept, and in the file once it can be written."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # In a test, the recorder's failures are raised.
    output = tmp_path / "rollouts.jsonl"

    def solve(task: Any) -> None:
        with rt.trajectory("helper"):
            ask()
        ask()

    agent: Any = solve if executor == "local" else executor_agents.solve
    tasks = executor_agents.tasks(server.base_url, 6)
    options = {"output": output, "in_flight": 2, "executor": executor, "recording": {"lock_timeout": 0.0}}
    with stream(agent, itertools.cycle(tasks), **options) as made:
        groups = [next(made)]
        holder = os.open(output, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)  # As a full disk, which refuses all that is written.
        groups += itertools.islice(made, 8)
        written = {one.id for one in rt.read(output)}
        os.close(holder)
    runs = {run.id: run for group in groups for run in (*group.trajectories, *group.inside)}
    assert [len(group.trajectories) for group in groups] == [1] * 9
    assert not runs.keys() <= written
    of_file = [one for one in rt.read(output) if one.id in runs]
    assert {one.id: one.to_json() for one in of_file} == {name: run.to_json() for name, run in runs.items()}
    assert len(of_file) == len(runs)


def test_what_is_too_old_is_noted_at_the_end_where_it_could_not_be_before(
    tmp_path: Path, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    version, notes = 0, tmp_path / "x.notes.jsonl"
    options = {"output": tmp_path / "x.jsonl", "max_lag": 0, "policy_version": lambda: version}
    with stream(ask, ["a", "b", "c"], **options) as made:
        next(made)
        while made._stream.ready < 2:
            threading.Event().wait(0.01)
        notes.mkdir()  # Nothing can be noted.
        version = 1
        next(made)
        notes.rmdir()
    runs = [(run.steps[0].policy_version, run.steps[0].trainable) for run in rt.read(tmp_path / "x.jsonl") if run.steps]
    assert sorted(runs)[:3] == [(0, False), (0, False), (0, True)]


@pytest.mark.parametrize("place", ["x.jsonl", "x/"])
@pytest.mark.parametrize("after", [4, 11])
def test_what_is_too_old_when_a_run_goes_on_is_noted(after: int, place: str, tmp_path: Path, ask: Any) -> None:
    """So is what newer weights made: a trainer that goes on from a checkpoint has lost those."""
    version, tasks, figures = 9, [{"id": f"t{at}"} for at in range(4)], list[dict[str, float]]()
    output = f"{tmp_path}/{place}"
    options = {"output": output, "max_lag": 1, "policy_version": lambda: version, "log": figures.append}
    with stream(ask, tasks, **options) as made:
        next(made)
        assert made._thread is not None
        while made._stream.ready < 3:
            threading.Event().wait(0.01)
    version = after
    rest = list(stream(ask, tasks, **options))
    assert [run.steps[0].policy_version for group in rest for run in group.trajectories] == [after] * 3
    assert figures[-1]["stale"] == 3
    runs = [(run.steps[0], (run.metadata or {})["collect"].get("stale")) for run in rt.read(output)]
    assert [(step.policy_version, step.trainable) for step, stale in runs if stale] == [(9, False)] * 3
    assert len(runs) == 7


def test_the_garbage_collector_may_find_it_in_its_own_thread(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    is_left = threading.Event()

    async def agent(task: int) -> None:
        if task:
            while not is_left.is_set():
                await asyncio.sleep(0)
            gc.collect()
            await asyncio.Event().wait()
        ask()

    made = stream(agent, itertools.count(), in_flight=1, output=tmp_path / "x.jsonl")
    next(made)
    assert made._thread is not None
    thread = made._thread._thread
    made.circle = made  # type: ignore[attr-defined]
    gc.disable()
    try:
        del made
        is_left.set()
        thread.join(60)
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert [str(one.exc_value) for one in ignored] == []
    assert [one.status for one in rt.read(tmp_path / "x.jsonl")] == ["completed", "aborted"]
