"""``rt.collect`` with processes: the same rollouts as in this one, whatever happens to them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.collection.runner import LOSSES
from rollout_trace.testing import ScriptedServer
from tests.amount import some
from tests.collection import executor_agents as agents

ROOT = Path(rt.__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses signals")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: f"about {request['messages'][-1]['content']}") as server:
        yield server


def collect(agent: Any, tasks: Any, output: Path, **options: Any) -> rt.CollectSummary:
    given = {"samples": 2, "seed": 5, "engine": "vllm", "reward": agents.reward, "progress": False, **options}
    return rt.collect(agent, tasks, output=output, **given)


@pytest.mark.parametrize(
    ("agent", "place"),
    some(
        itertools.product(
            (agents.solve, agents.solve_async, "tests.collection.executor_agents:solve"), ("x.jsonl", "folder/")
        ),
        ("tests.collection.executor_agents:solve", "x.jsonl"),
    ),
)
def test_the_same_as_in_this_process(agent: Any, place: str, tmp_path: Path, server: ScriptedServer) -> None:
    """Rollouts, rewards, tokens and the summary; nothing that is open here is their parent."""
    tasks = agents.tasks(server.base_url, 3)
    here, there = f"{tmp_path}/here-{place}", f"{tmp_path}/there-{place}"
    local = collect(agent, tasks, here)  # type: ignore[arg-type]
    with rt.instrument(), rt.recording(tmp_path / "other.jsonl"), rt.trajectory():
        made = collect(agent, tasks, there, executor=rt.ProcessExecutor(2), concurrency=4)  # type: ignore[arg-type]
    assert agents.account(there) == agents.account(here)
    assert len(agents.account(there)) == 6
    assert made.mean_reward == local.mean_reward
    assert made.usage.calls == local.usage.calls == 12
    assert made.usage == local.usage


@pytest.mark.more
def test_by_its_name(tmp_path: Path, server: ScriptedServer) -> None:
    summary = collect(agents.solve, agents.tasks(server.base_url, 1), tmp_path / "x.jsonl", executor="process")
    assert summary.by_status == {"completed": 2}


def test_processes_that_are_killed(tmp_path: Path, server: ScriptedServer) -> None:
    """Their rollouts are made again; what they had recorded comes from their journals, and does not count."""
    tasks = agents.tasks(server.base_url, 3, folder=str(tmp_path))
    collect(agents.solve, tasks, tmp_path / "here.jsonl")
    summary = collect(
        agents.solve_or_die, tasks, tmp_path / "there.jsonl", name="solve", executor=rt.ProcessExecutor(2)
    )
    assert summary.by_status == {"completed": 6}
    named = [(*row[:4], f"{row[0]}", *row[5:]) for row in agents.account(tmp_path / "there.jsonl")]
    assert named == agents.account(tmp_path / "here.jsonl")


@pytest.mark.more
def test_a_rollout_that_kills_every_process_is_given_up(tmp_path: Path, server: ScriptedServer) -> None:
    """After so many attempts, which are not made once more because its output is looked into."""
    tasks = agents.tasks(server.base_url, 1)
    summary = collect(agents.die, tasks, tmp_path / "x.jsonl", samples=1, executor=rt.ProcessExecutor(1))
    assert summary.by_status == {"failed": 1}
    assert len(server.requests) == 1 + LOSSES


@pytest.mark.more
def test_a_process_that_hangs(tmp_path: Path, server: ScriptedServer) -> None:
    """It is killed when the time of its rollout is over, which is made again."""
    tasks = agents.tasks(server.base_url, 2, folder=str(tmp_path))
    summary = collect(
        agents.solve_or_hang, tasks, tmp_path / "x.jsonl", timeout=10.0, executor=rt.ProcessExecutor(1, grace=0.5)
    )
    assert summary.by_status == {"completed": 4}
    assert len(agents.account(tmp_path / "x.jsonl")) == 4


@pytest.mark.more
def test_an_agent_that_cannot_be_stopped(tmp_path: Path, server: ScriptedServer) -> None:
    """It times out, and its thread ends with its process: the next rollout is made in another one."""
    folder = tmp_path / "processes"
    folder.mkdir()
    tasks = agents.tasks(server.base_url, 2, folder=str(folder))
    summary = collect(
        agents.sleep_in_c, tasks, tmp_path / "x.jsonl", samples=1, timeout=2.0, concurrency=1,
        executor=rt.ProcessExecutor(1),
    )  # fmt: skip
    assert summary.by_status == {"timeout": 2}
    began = dict(one.name.split("-") for one in folder.iterdir())
    assert (sorted(began), len(set(began.values()))) == (["t0", "t1"], 2)


def test_what_cannot_be_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the agent cannot be sent to another process"):
        collect(lambda task: None, [1], tmp_path / "x.jsonl", executor="process")
    with pytest.raises(TypeError, match="the reward cannot be sent to another process"):
        collect(agents.solve, [1], tmp_path / "x.jsonl", executor="process", reward=lambda *_: 1)


UNGUARDED = """
import rollout_trace as rt

def agent(task):
    return task

with open("begun", "a") as file:
    file.write("x")
rt.collect(agent, [1, 2, 3], output="x.jsonl", executor="process")
"""


def test_a_script_without_the_guard(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Put what the program does under `if __name__ ==" in done.stderr.splitlines()[-1]
    assert (tmp_path / "begun").read_text() == "xx"
