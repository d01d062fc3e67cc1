"""``rollout-trace collect``, as a process: what it makes, prints and refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

from .command import Done, command

AGENT = '''
import asyncio, os

def solve(task, rollout):
    """Asks the server once."""
    import openai  # Here: most commands of these tests make no call.

    with openai.OpenAI(base_url=os.environ["SERVER"], api_key="key", max_retries=0) as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])
    return answer.choices[0].message.content

def echo(task):
    print("from the agent")
    return task["id"]

def fail(task):
    if os.path.exists("mended"):
        return "well"
    raise RuntimeError("\\x1b[31mno answer")

async def wait(task):
    print("begun", flush=True)
    await asyncio.Event().wait()

def exact(task, result, trajectory):
    return float(result == task["answer"])

def length(task, result, trajectory):
    return len(result)

def tasks():
    return [{"id": f"made/{number}"} for number in range(3)]
'''
TASKS = [{"id": f"sum/{number}", "question": "2+2?", "answer": "four"} for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    return tmp_path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer("four") as server:
        monkeypatch.setenv("SERVER", server.base_url)
        yield server


def collect(folder: Path, agent: str, *args: str, tasks: str = "tasks.jsonl", output: str = "x.jsonl") -> Done:
    return command(folder, "collect", agent, "--tasks", tasks, "-o", output, *args)


def made(path: Path) -> list[tuple[str | None, int | None]]:
    return sorted((one.task.id if one.task else None, one.rollout_index) for one in rt.read(path))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_it_makes_rollouts_and_goes_on(folder: Path, server: ScriptedServer) -> None:
    args = ["--engine", "vllm", "--seed", "5", "--reward", "agent.py:exact", "--concurrency", "2"]
    done = collect(folder, "agent:solve", "--samples", "2", *args)
    assert done.code == 0, done.err
    assert "6 planned, 6 made" in done.err
    assert "mean 1" in done.err
    expected = [(task["id"], index) for task in TASKS for index in range(2)]
    assert made(folder / "x.jsonl") == expected
    trajectories = list(rt.read(folder / "x.jsonl"))
    assert {(one.name, one.reward, len(one.steps)) for one in trajectories} == {("solve", 1.0, 1)}
    assert {one.metadata["collect"]["seed"] for one in trajectories if one.metadata} == {5, 6}
    done = collect(folder, "agent:solve", "--samples", "3", *args, "--json")
    assert (done.code, done.json["earlier"], done.json["made"]) == (0, 6, 3)
    assert len(server.requests) == 9


def test_json_is_all_of_stdout(folder: Path) -> None:
    done = collect(folder, "agent.py:echo", "--json")
    assert done.json["by_status"] == {"completed": 3}
    assert done.err.count("from the agent") == 3


def test_quiet_prints_nothing_of_its_own(folder: Path, server: ScriptedServer) -> None:
    done = collect(folder, "agent:solve", "--engine", "vllm", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_failures(folder: Path) -> None:
    done = collect(folder, "agent:fail")
    assert done.code == 1
    assert "\x1b" not in done.out + done.err
    assert collect(folder, "agent:fail", "--json").json["made"] == 0
    (folder / "mended").touch()
    done = collect(folder, "agent:fail", "--retry-failed", "--json")
    assert (done.code, done.json["made"], done.json["by_status"]) == (0, 3, {"completed": 3})


def test_weighted_rewards(folder: Path, server: ScriptedServer) -> None:
    args = ["--reward", "right=agent:exact", "--reward", "agent.py:length*0.25"]
    assert collect(folder, "agent:solve", *args, "--quiet").code == 0
    for one in rt.read(folder / "x.jsonl"):
        assert (one.reward, one.rewards) == (2.0, {"right": 1.0, "length": 4.0})


def test_tasks_may_be_made_by_a_function(folder: Path) -> None:
    done = collect(folder, "agent:echo", "--limit", "2", "--json", tasks="agent.py:tasks")
    assert done.json["planned"] == 2
    done = collect(folder, "agent:echo", "--task-ids", "made/2,made/0", "--json", tasks="agent:tasks")
    assert (done.json["planned"], done.json["earlier"]) == (2, 1)
    assert made(folder / "x.jsonl") == [("made/0", 0), ("made/1", 0), ("made/2", 0)]


def test_settings_from_a_file(folder: Path, server: ScriptedServer) -> None:
    text = """
[collect]
agent = "agent:solve"
tasks = "tasks.jsonl"
output = "runs/x.jsonl"
samples = 9
name = "of the file"
retries = 1
[collect.reward]
right = { function = "agent.py:exact", weight = 0.5 }
"""
    (folder / "run.toml").write_text(text)
    args = ["--config", "run.toml", "--set", "samples=3", "--set", "reward.right.weight=2", "--samples", "2"]
    done = command(folder, "collect", *args, "--json")
    assert done.code == 0, done.err
    assert done.json["planned"] == 6
    assert {(one.name, one.reward) for one in rt.read(folder / "runs" / "x.jsonl")} == {("of the file", 2.0)}


def test_other_processes_find_the_agent(folder: Path, server: ScriptedServer) -> None:
    args = ["--executor", "process", "--set", "executor.processes=1", "--reward", "agent.py:exact", "--json"]
    done = collect(folder, "agent:solve", *args)
    assert done.code == 0, done.err
    assert (done.json["by_status"], done.json["mean_reward"]) == ({"completed": 3}, 1.0)


def test_a_dry_run_changes_nothing(folder: Path, server: ScriptedServer) -> None:
    collect(folder, "agent:solve", "--limit", "1")
    before = {name: (folder / name).read_bytes() for name in names(folder) if name != "__pycache__"}
    args = ["--samples", "2", "--reward", "agent:exact", "--logs", "--dry-run"]
    done = collect(folder, "agent:solve", *args)
    assert done.code == 0, done.err
    assert "6 = 3 tasks x 2: 1 in the output, 5 to make" in done.out
    assert "sum/0, sum/1, sum/2" in done.out
    assert "reward=agent:exact" in done.out
    found = collect(folder, "agent:solve", *args, "--json").json
    assert (found["planned"], found["earlier"], found["to_make"]) == (6, 1, 5)
    assert found["task_ids"] == [task["id"] for task in TASKS]
    for output in ("new.jsonl", "new/", "new/deep/x.jsonl.gz"):
        assert collect(folder, "agent:solve", *args, "--json", output=output).json["to_make"] == 6
    assert {name: (folder / name).read_bytes() for name in names(folder) if name != "__pycache__"} == before
    assert len(server.requests) == 1


def test_a_dry_run_reads_journals_and_leaves_them(folder: Path, server: ScriptedServer) -> None:
    program = (
        "import os, rollout_trace as rt\n"
        "def killed(task, result, trajectory):\n"
        "    os.kill(os.getpid(), 9)\n"
        "import agent\n"
        "rt.collect(agent.solve, 'tasks.jsonl', output='x.jsonl', concurrency=1, reward=killed)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, timeout=60)
    before = names(folder), names(folder / "x.jsonl.journal")
    found = collect(folder, "agent:solve", "--dry-run", "--json").json
    # It was cut, and is made again.
    assert (found["in_journals"], found["unfinished"], found["to_make"]) == (1, 1, 3)
    assert (names(folder), names(folder / "x.jsonl.journal")) == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give the argument MODULE:AGENT (or agent in --config), and --tasks (or tasks in --config), and --output"),
        (["agent:sove", "--tasks", "tasks.jsonl", "-o", "x.jsonl"], "agent has no 'sove'. Did you mean solve?"),
        (["agnt:solve", "--tasks", "tasks.jsonl", "-o", "x.jsonl"], "there is no module 'agnt'. Did you mean agent?"),
        (["agnt.py:solve", "--tasks", "tasks.jsonl", "-o", "x.jsonl"], "/agnt.py. Did you mean agent.py?"),
        (["agent:tasks", "--tasks", "tasks.jsonl", "-o", "x.jsonl"], "takes no positional argument"),
        (["agent:echo", "--tasks", "task.jsonl", "-o", "x.jsonl"], "task.jsonl. Did you mean tasks.jsonl?"),
        (["agent:echo", "--tasks", "bad.jsonl", "-o", "x.jsonl"], "bad.jsonl, line 2, column 2: not valid JSON"),
        (["agent:echo", "--tasks", "agent:task", "-o", "x.jsonl"], "agent has no 'task'. Did you mean tasks?"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "agent.py/x.jsonl"], "agent.py"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--task-ids", "sum/9"], "'sum/9'. Did you mean sum"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--reward", "agent:exat"], "agent has no 'exat'"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--reward", "agent:echo"], "three arguments"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--reward", "exact"], "--reward: expected"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--executor", "x"], "--executor: expected one of"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--set", "sample=1"], "Did you mean samples"),
        (["agent:echo", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--samples", "0"], "--samples: expected"),
        (["--config", "none.toml"], "none.toml"),
        (["--config", "bad.toml"], "bad.toml, [collect] retris: there is no setting 'retris'. Did you mean retries"),
    ],
)  # fmt: skip
def test_wrong_use_is_told_before_any_rollout(folder: Path, args: list[str], said: str) -> None:
    (folder / "bad.jsonl").write_text('{"id": 1}\n{id: 2}\n')
    (folder / "bad.toml").write_text("[collect]\nretris = 1\n")
    before = names(folder)
    done = command(folder, "collect", *args)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert [name for name in names(folder) if name != "__pycache__"] == before


def test_no_resume_refuses_an_output_that_holds_something(folder: Path) -> None:
    assert collect(folder, "agent:echo", "--no-resume", "--quiet").code == 0
    for dry in ([], ["--dry-run"]):
        done = collect(folder, "agent:echo", "--no-resume", *dry)
        assert done.code == 2
        assert "x.jsonl is not empty" in done.err


@pytest.mark.skipif(os.name == "nt", reason="has no SIGINT for one process")
def test_ctrl_c_writes_and_says_how_to_go_on(folder: Path) -> None:
    args = ["agent:wait", "--tasks", "tasks.jsonl", "-o", "x.jsonl", "--concurrency", "1"]
    program = "import sys\nfrom rollout_trace.cli import main\nsys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, "collect", *args],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "run it again to continue" in err
    assert "planned" in err
    assert [one.status for one in rt.read(folder / "x.jsonl")] == ["aborted"]
    done = collect(folder, "agent:echo", "--name", "wait", "--json")
    assert (done.code, done.json["by_status"]) == (0, {"completed": 3})


def test_the_options_are_settings(folder: Path) -> None:
    from rollout_trace.cli.collect import collect as found
    from rollout_trace.collection.settings import SETTINGS

    own: set[Any] = {"further", "config", "overrides", "dry_run", "quiet", "as_json"}
    assert {option.name for option in found.params} - own <= set(SETTINGS)
