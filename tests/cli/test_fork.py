"""``rollout-trace fork``: a program goes on from a step of a recorded run of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import rollout_trace as rt
from rollout_trace.cli.fork import fork
from rollout_trace.data.trajectory import ForkedFrom
from rollout_trace.testing import ScriptedServer
from rollout_trace.testing.fork_program import variable
from tests.process.running import COMMAND, Done, execute, recorded, run

pytestmark = pytest.mark.processes

ASK = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import httpx

def ask(text):
    asked = {"model": "m", "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(os.environ["SERVER"] + "/chat/completions", json=asked, timeout=60)
    print(answer.json()["id"], flush=True)
    answer.raise_for_status()
"""
PROGRAM = ASK + "for call in range(5): ask(f'call {call}{sys.argv[1] if call == 2 else str()}')\n"
SUB_AGENTS = (
    ASK
    + """
import rollout_trace as rt

def helper(task):
    with rt.trajectory("helper"):
        ask(f"help with {task}")
        ask(f"more help with {task}")

with rt.trajectory("solver", task="t1"):
    ask("begin")
    # In another order, and in threads, when it is run again.
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(rt.propagate(helper), sys.argv[1].split(",")))
    ask("middle")
    helper("late")
    ask("end")
"""
)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: "hello") as server:
        yield server


def _fork(folder: Path, server: ScriptedServer, *args: str) -> Done:
    return execute(folder, [*COMMAND[:-1], "fork", "rollouts.jsonl", *args], SERVER=server.base_url)


def _record(folder: Path, server: ScriptedServer, program: str, *args: str) -> tuple[Done, list[rt.Trajectory]]:
    (folder / "agent.py").write_text(program)
    done = run(folder, "-q", "agent.py", *args, SERVER=server.base_url)
    assert (done.code, done.err) == (0, "")
    return done, recorded(folder / "rollouts.jsonl")


def test_a_program_goes_on_from_a_step(server: ScriptedServer, tmp_path: Path) -> None:
    first, (origin,) = _record(tmp_path, server, PROGRAM, "")
    # By another name: the recorded one counts.
    (tmp_path / "agent.py").rename(tmp_path / "newer.py")
    done = _fork(tmp_path, server, "1", "--step", "3", "--", "newer.py", "")
    assert (done.code, len(server.requests)) == (0, 7)
    assert "1 trajectory, 5 steps" in done.err
    assert done.out.splitlines()[:3] == first.out.splitlines()[:3]
    assert not set(done.out.splitlines()[3:]) & set(first.out.splitlines())
    _, branch = recorded(tmp_path / "rollouts.jsonl")
    assert [one.status for one in branch.steps] == ["cached"] * 3 + ["ok"] * 2
    assert branch.forked_from == ForkedFrom(id=origin.id, step=3)
    assert (branch.name, branch.status) == ("agent", "completed")


@pytest.mark.more
def test_a_program_that_asks_something_else(server: ScriptedServer, tmp_path: Path) -> None:
    _, (origin,) = _record(tmp_path, server, PROGRAM, "")
    done = _fork(tmp_path, server, origin.id, "--step", "4", "--", "agent.py", " now")
    assert (done.code, len(server.requests)) == (1, 5)
    assert "rollout-trace: call 3 of 4: it differs from the recorded one in messages.0.content" in done.err
    *_, branch = recorded(tmp_path / "rollouts.jsonl")
    assert branch.error is not None
    assert (branch.status, branch.error.type) == ("failed", "ForkDifference")
    assert branch.forked_from is not None
    assert str(branch.forked_from.difference).startswith("call 3 of 4")
    live = _fork(tmp_path, server, origin.id, "--step", "4", "--on-difference", "live", "--", "agent.py", " now")
    assert (live.code, len(server.requests)) == (0, 8)
    *_, branch = recorded(tmp_path / "rollouts.jsonl")
    assert [one.status for one in branch.steps] == ["cached"] * 2 + ["ok"] * 3


def test_sub_agents_of_a_program_are_answered(server: ScriptedServer, tmp_path: Path) -> None:
    first, trajectories = _record(tmp_path, server, SUB_AGENTS, "a,b")
    (origin,) = (one for one in trajectories if one.name == "solver")
    done = _fork(tmp_path, server, origin.id, "--step", "2", "--", "agent.py", "b,a")
    # Of 9 calls, those of the two helpers before the step, and those of the one that step 2 led to, are answered.
    assert (done.code, len(server.requests)) == (0, 9 + 1)
    assert set(done.out.splitlines()[:-1]) == set(first.out.splitlines()[:-1])
    origins = {one.id: one for one in trajectories}
    made = [one for one in recorded(tmp_path / "rollouts.jsonl") if one.id not in origins]
    by_origin = {one.forked_from.id: one for one in made if one.forked_from is not None}
    assert by_origin.keys() == origins.keys()
    for name, one in by_origin.items():
        assert [step.messages for step in one.steps] == [step.messages for step in origins[name].steps]
        expected = ["cached", "cached", "ok"] if name == origin.id else ["cached"] * 2
        assert [step.status for step in one.steps] == expected


PROCESSES = (
    ASK
    + """
import multiprocessing

if __name__ == "__main__":
    ask("begin")
    context = multiprocessing.get_context(sys.argv[1])
    for part in "ab":
        process = context.Process(target=ask, args=(f"part {part}",))
        process.start()
        process.join()
    ask("middle")
    ask("end")
"""
)


@pytest.mark.more
def test_processes_that_a_program_starts(server: ScriptedServer, tmp_path: Path) -> None:
    first, trajectories = _record(tmp_path, server, PROCESSES, "fork")
    origin = next(one for one in trajectories if one.parent_id is None)
    forked = _fork(tmp_path, server, origin.id, "--step", "2", "--", "agent.py", "fork")
    assert (forked.code, len(server.requests)) == (0, 5 + 1)
    assert forked.out.splitlines()[:4] == first.out.splitlines()[:4]
    spawned = _fork(tmp_path, server, origin.id, "--step", "2", "--", "agent.py", "spawn")
    assert (spawned.code, len(server.requests)) == (0, 6 + 3)
    assert "2 calls of processes that the program started went to the model" in spawned.err


TOOL = (
    ASK
    + """
import subprocess
ask("begin")
tool = [sys.executable, "-c", "import httpx; print('done')"]
ask(subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout)
ask("end")
"""
)


@pytest.mark.more
def test_what_a_tool_prints_is_the_same_when_it_runs_again(server: ScriptedServer, tmp_path: Path) -> None:
    _, (origin,) = _record(tmp_path, server, TOOL)
    done = _fork(tmp_path, server, origin.id, "--step", "2", "--", "agent.py")
    assert (done.code, len(server.requests)) == (0, 3 + 1)
    assert "went to the model" not in done.err


TASKS = (
    ASK
    + """
import rollout_trace as rt
for task in "ab":
    with rt.trajectory("solver", task=task):
        for call in range(4):
            try: ask(f"{task} {call}{sys.argv[1] if call == 2 else str()}")
            except KeyError: pass
"""
)


@pytest.mark.more
def test_one_of_several_trajectories_that_a_program_opens(server: ScriptedServer, tmp_path: Path) -> None:
    _, (_, origin) = _record(tmp_path, server, TASKS, "")
    done = _fork(tmp_path, server, origin.id, "--step", "3", "--", "agent.py", "")
    assert (done.code, len(server.requests)) == (0, 8 + 5)
    assert "calls of the trajectory 'solver' of the task 'a' go to the model: those of 'solver' of" in done.err
    _, _, other, branch = recorded(tmp_path / "rollouts.jsonl")
    assert [one.status for one in other.steps] == ["ok"] * 4
    assert [one.status for one in branch.steps] == ["cached"] * 3 + ["ok"]
    # One that asks something else, and goes on.
    done = _fork(tmp_path, server, origin.id, "--step", "4", "--", "agent.py", " now")
    assert (done.code, len(server.requests)) == (0, 13 + 4)
    assert "rollout-trace: call 3 of 4: it differs" in done.err
    assert "after the trajectory had closed" not in done.err
    *_, branch = recorded(tmp_path / "rollouts.jsonl")
    assert branch.forked_from is not None
    assert (branch.forked_from.step, branch.status) == (2, "completed")
    assert str(branch.forked_from.difference).startswith("call 3 of 4: it differs")
    assert [one.status for one in branch.steps] == ["cached"] * 2 + ["error"] * 2


@pytest.mark.more
def test_a_sub_agent_that_was_not_recorded_is_a_difference(server: ScriptedServer, tmp_path: Path) -> None:
    _, trajectories = _record(tmp_path, server, SUB_AGENTS, "a,b")
    (origin,) = (one for one in trajectories if one.name == "solver")
    done = _fork(tmp_path, server, origin.id, "--step", "2", "--", "agent.py", "a,c")
    assert (done.code, len(server.requests)) == (1, 9)
    assert "call 1 of 2 of the sub-agent 'helper': it differs from the recorded one" in done.err


@pytest.mark.more
def test_the_trajectory_that_is_meant_is_not_there(server: ScriptedServer, tmp_path: Path) -> None:
    _, (origin,) = _record(tmp_path, server, PROGRAM, "")
    other = ASK + "import rollout_trace as rt\nwith rt.trajectory('planner'): ask('call 0')\n"
    (tmp_path / "agent.py").write_text(other)
    done = _fork(tmp_path, server, origin.id, "--step", "4", "--", "agent.py")
    assert (done.code, len(server.requests)) == (0, 6)
    assert "calls of the trajectory 'planner' go to the model: those of 'agent' are answered." in done.err
    assert "no trajectory 'agent' was opened" in done.err
    (tmp_path / "agent.py").write_text("import httpx")
    done = _fork(tmp_path, server, origin.id, "--step", "4", "--", "agent.py")
    assert "no trajectory 'agent' was opened" in done.err


@pytest.mark.more
def test_what_cannot_be_forked(server: ScriptedServer, tmp_path: Path) -> None:
    _, (origin,) = _record(tmp_path, server, PROGRAM, "")
    cases = {
        ("nobody", "--step", "1", "--", "agent.py"): "there is no trajectory nobody",
        (origin.id, "--step", "6", "--", "agent.py"): "has 5 model calls",
        (origin.id, "--step", "1", "--", "sh", "-c", "true"): "sh is not Python",
        (origin.id, "--step", "1", "--", "nothing.py"): "there is no program nothing.py",
    }
    for args, message in cases.items():
        done = _fork(tmp_path, server, *args)
        assert done.code == 2
        assert message in done.err
    assert len(recorded(tmp_path / "rollouts.jsonl")) == 1


@pytest.mark.more
def test_of_two_trajectories_with_one_id_the_chosen_one_is_forked(server: ScriptedServer, tmp_path: Path) -> None:
    _, (first,) = _record(tmp_path, server, PROGRAM, "")
    _, (_, second) = _record(tmp_path, server, PROGRAM, " now")
    path = tmp_path / "rollouts.jsonl"
    path.write_text(path.read_text().replace(second.id, first.id))
    done = _fork(tmp_path, server, "-1", "--step", "4", "--", "agent.py", " now")
    assert (done.code, len(server.requests)) == (0, 10 + 1)


def test_what_is_not_one_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with rt.recording(path), rt.trajectory():
        pass
    for given, message in {"-": "FILE cannot be - (stdin)", str(tmp_path / "r*"): "is not one file"}.items():
        done = CliRunner().invoke(fork, [given, "1", "--step", "1", "--", "agent.py"])
        assert done.exit_code == 2
        assert message in done.output
    files = json.loads(variable(["s3://runs/a.jsonl", "b.jsonl"], "id"))[0]
    assert files == ["s3://runs/a.jsonl", str(Path("b.jsonl").absolute())]
