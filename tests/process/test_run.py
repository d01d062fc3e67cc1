"""What ``rollout-trace run`` records of an unmodified program, and what it prints at its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.cli.waiting import why_unseen
from rollout_trace.testing import Answer, Fault, ScriptedServer
from tests.amount import some

from .running import CALL, CALL_BY_SDK, COMMAND, Done, environment, recorded, run

TWO = CALL + "ask()\nask('there')\n"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: "hello") as server:
        yield server


def _run(server: ScriptedServer, folder: Path, program: str, *args: str, options: tuple[str, ...] = ()) -> Done:
    (folder / "agent.py").write_text(program)
    return run(folder, *options, "agent.py", *args, SERVER=server.base_url)


def test_a_program_is_one_trajectory(server: ScriptedServer, tmp_path: Path) -> None:
    options = ("--engine", "vllm", "--task", "task-1", "-o", "runs/out.jsonl")
    done = _run(server, tmp_path, CALL_BY_SDK + "ask()\nask('there')\n", options=options)
    (trajectory,) = recorded(tmp_path / "runs/out.jsonl")
    assert (trajectory.name, trajectory.status, trajectory.task) == ("agent", "completed", rt.Task(id="task-1"))
    assert [(step.messages or [{}])[0]["content"] for step in trajectory.steps] == ["hi", "there"]
    assert all(step.token_source == "engine" and step.logprobs is not None for step in trajectory.steps)
    assert len(server.requests) == 2
    assert (done.code, done.out) == (0, "")
    count = trajectory.n_input_tokens
    assert done.err == (
        f"rollout-trace: 1 trajectory, 2 steps, {count} prompt tokens, 12 sampled tokens in runs/out.jsonl\n"
    )
    assert sorted(os.listdir(tmp_path / "runs")) == ["out.jsonl"]


NAMES = [
    (["agent.py"], "agent"),
    (["-m", "agent"], "agent"),
    (["-m", "package"], "package"),
    (["--name", "mine", "agent.py"], "mine"),
    (["-c", "import agent"], "python"),
]


@pytest.mark.parametrize(
    ("args", "name"),
    some(NAMES, *NAMES[2::2]),
)
def test_its_name(args: list[str], name: str, server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for file in ("agent.py", "package/__main__.py"):
        (tmp_path / file).write_text(CALL + "ask()")
    assert run(tmp_path, "-q", *args, SERVER=server.base_url) == (0, "", "")
    assert [one.name for one in recorded(tmp_path / "rollouts.jsonl")] == [name]


ENDS = {
    "return": ("", 0, "completed", None),
    "sys.exit(3)": ("sys.exit(3)", 3, "completed", None),
    "an uncaught exception": ("raise KeyError('mine')", 1, "failed", "KeyError"),
    "a function of its own for uncaught exceptions": (
        "sys.excepthook = lambda *args: None\nraise KeyError('mine')",
        1,
        "failed",
        "KeyError",
    ),
    "Ctrl-C": ("import signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "aborted", "KeyboardInterrupt"),
    "SIGTERM": ("import signal; os.kill(os.getpid(), signal.SIGTERM); input()", -signal.SIGTERM, "aborted", None),
    "os._exit(4)": ("os._exit(4)", 4, "completed", None),
    "an exception that it handles": ("try:\n    1 / 0\nexcept Exception:\n    pass", 0, "completed", None),
}


@pytest.mark.parametrize("name", some(ENDS, *list(ENDS)[2::4]))
def test_how_it_ended(name: str, server: ScriptedServer, tmp_path: Path) -> None:
    end, code, status, error = ENDS[name]
    done = _run(server, tmp_path, TWO + end)
    (trajectory,) = recorded(tmp_path / "rollouts.jsonl")
    assert done.code == code
    assert (trajectory.status, trajectory.error and trajectory.error.type) == (status, error)
    assert len(trajectory.steps) == 2
    assert done.err.count("rollout-trace: 1 trajectory, 2 steps") == 1


def test_calls_at_the_end_of_the_program(server: ScriptedServer, tmp_path: Path) -> None:
    """Registered before the library was imported, so run after what that registers; in a forked process too."""
    program = "import atexit\natexit.register(lambda: ask('last'))\n" + CALL
    done = _run(
        server, tmp_path, program + "if not os.fork():\n    ask('child')\n    sys.exit()\nos.wait()\nask('first')\n"
    )
    found = recorded(tmp_path / "rollouts.jsonl")
    texts = [[(step.messages or [{}])[0]["content"] for step in one.steps] for one in found]
    assert sorted(texts) == [["child", "last"], ["first", "last"]]
    assert [one.status for one in found] == ["completed"] * 2
    assert done.err.startswith("rollout-trace: 2 trajectories, 4 steps, ")


def test_a_program_that_is_killed_leaves_a_journal(server: ScriptedServer, tmp_path: Path) -> None:
    done = _run(server, tmp_path, TWO + "import signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done == (-signal.SIGKILL, "", "")
    (trajectory,) = rt.recover(tmp_path / "rollouts.jsonl")
    assert (trajectory.status, len(trajectory.steps)) == ("aborted", 2)


SILENT = {
    "no library": "print('done')",
    "a library without a call": "import httpx; print('done')",
    "rollout_trace itself": "import rollout_trace as rt; print('done')",
    "children without a call": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(\"done\")'])",
}


@pytest.mark.parametrize("name", some(SILENT, *list(SILENT)[1::2]))
def test_a_program_without_calls_leaves_nothing(name: str, server: ScriptedServer, tmp_path: Path) -> None:
    done = _run(server, tmp_path, SILENT[name])
    assert (done.code, done.out) == (0, "done\n")
    assert " ".join(done.err.split()) == (
        "rollout-trace: nothing was recorded: no call of a model was seen. In Python, these are recorded: the SDKs "
        "openai, anthropic and google-genai, and calls of models through httpx, httpx2, aiohttp and requests."
    )
    assert os.listdir(tmp_path) == ["agent.py"]


OWN = """
import rollout_trace as rt
from rollout_trace.cli.waiting import why_unseen
ask("outside")
assert rt.current().name == "agent"
rt.reward(2.0)
with rt.trajectory("inner"):
    assert rt.current().name == "inner"
    ask("inside")
with rt.recording("own.jsonl"):
    ask("outside too")
    with rt.trajectory("elsewhere"):
        ask("elsewhere")
with rt.tool_run("search") as tool:
    tool.result = "found"
"""


def test_what_the_program_opens_itself_is_its_own(server: ScriptedServer, tmp_path: Path) -> None:
    done = _run(server, tmp_path, CALL + OWN)
    assert (done.code, done.out) == (0, "")
    found = {one.name: one for one in recorded(tmp_path / "rollouts.jsonl")}
    assert {name: len(one.steps) for name, one in found.items()} == {"agent": 2, "inner": 1}
    assert (found["agent"].reward, found["inner"].reward) == (2.0, None)
    assert [tool.name for tool in found["agent"].tool_runs] == ["search"]
    assert found["inner"].parent_id is None
    assert [one.name for one in recorded(tmp_path / "own.jsonl")] == ["elsewhere"]
    assert "3 trajectories, 4 steps" in done.err
    assert "in rollouts.jsonl, own.jsonl" in " ".join(done.err.split())


AT_ONCE = """
import threading
threads = [threading.Thread(target=ask) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.mark.parametrize("calls", ["ask()\n", AT_ONCE], ids=["one", "at once"])
@pytest.mark.parametrize("client", some(["httpx", "openai"], "httpx"))
def test_it_begins_with_its_first_call(client: str, calls: str, server: ScriptedServer, tmp_path: Path) -> None:
    _run(server, tmp_path, {"httpx": CALL, "openai": CALL_BY_SDK}[client] + calls)
    (trajectory,) = recorded(tmp_path / "rollouts.jsonl")
    assert trajectory.started_at == min(step.started_at for step in trajectory.steps if step.started_at is not None)


CLOSED = """
import threading, rollout_trace as rt
with rt.trajectory("first"):
    late = rt.propagate(ask)
    ask()
late()
"""


def test_a_call_of_a_closed_trajectory_goes_to_no_other(server: ScriptedServer, tmp_path: Path) -> None:
    done = _run(server, tmp_path, CALL + CLOSED)
    assert [(one.name, len(one.steps)) for one in recorded(tmp_path / "rollouts.jsonl")] == [("first", 1)]
    assert "rollout-trace: no file has 1 call of trajectories that had closed already" in done.err


CHILDREN = """
import multiprocessing, subprocess
def work(text):
    ask(text)
if __name__ == "__main__":
    ask("main")
    for method in ("spawn", "fork", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work, args=(method,))
        process.start()
        process.join()
    subprocess.run([sys.executable, "child.py"], check=True)
    if os.fork() == 0:
        work("os.fork")
        sys.exit(0)
    os.wait()
"""


def test_python_children_are_recorded_too(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CALL + "ask('subprocess')")
    done = _run(server, tmp_path, CALL + CHILDREN)
    found = {(one.steps[0].messages or [{}])[0]["content"]: one for one in recorded(tmp_path / "rollouts.jsonl")}
    assert found.keys() == {"main", "spawn", "fork", "forkserver", "subprocess", "os.fork"}
    assert all(len(one.steps) == 1 and one.status == "completed" for one in found.values())
    assert {one.episode_id for one in found.values()} == {found["main"].episode_id}
    for forked in ("fork", "os.fork"):
        assert found[forked].parent_id == found["main"].id
    assert len({one.environment["pid"] for one in found.values() if one.environment}) == 6
    assert done.err.startswith("rollout-trace: 6 trajectories, 6 steps")
    assert sorted(os.listdir(tmp_path)) == ["agent.py", "child.py", "rollouts.jsonl"]


def test_a_program_whose_children_alone_make_calls(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CALL + "ask()")
    done = _run(server, tmp_path, "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'])")
    assert done.err.startswith("rollout-trace: 1 trajectory, 1 step")
    assert sorted(os.listdir(tmp_path)) == ["agent.py", "child.py", "rollouts.jsonl"]


def test_a_shell_script_is_summed_up_once(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(TWO)
    script = 'python3() { "$PYTHON" "$@"; }; python3 -c "pass"; python3 agent.py; python3 agent.py; exit 5'
    done = run(tmp_path, "bash", "-c", script, SERVER=server.base_url, PYTHON=sys.executable)
    assert done.code == 5
    assert done.err.startswith("rollout-trace: 2 trajectories, 4 steps")
    assert done.err.count("in rollouts.jsonl") == 1
    assert len(recorded(tmp_path / "rollouts.jsonl")) == 2
    assert sorted(os.listdir(tmp_path)) == ["agent.py", "rollouts.jsonl"]


def test_a_program_without_python_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    for program, why in (
        (["sh", "-c", "exit 3"], "sh is not Python"),
        ([sys.executable, "-Werror", "-Ic", "raise SystemExit(3)"], "python is Python with -I, -E or -S"),
    ):
        done = run(tmp_path, *program)
        text = " ".join(done.err.split())
        assert (done.code, done.out) == (3, "")
        assert text.startswith("rollout-trace: nothing was recorded: ")
        assert f"{why}, and neither it nor a Python program that it started called a model" in text
        assert run(tmp_path, "-q", *program) == (3, "", "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_a_program_without_python_gets_signals_and_ends_by_them(name: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    command = [*COMMAND, "sh", "-c", "trap 'echo got; exit 7' TERM INT; echo $$; while :; do sleep 0.01; done"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        os.kill(program if name == "SIGKILL" else process.pid, number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == ((-number, "") if name == "SIGKILL" else (7, "got\n"))
    assert "nothing was recorded" in err


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("#!/usr/bin/env python3", "", None),
        ("#!/usr/bin/env -S python3 -u", "", None),
        ("#!/opt/python3.12 -Es", "", "tool is Python with -I, -E or -S"),
        ("#!/bin/sh", '\'\'\'exec\' "/a long path/bin/python" "$0" "$@"', None),
        ("#!/bin/sh", "python agent.py", "tool is not Python"),
        ("\x7fELF", "", "tool is not Python"),
    ],
)
def test_which_tools_load_the_recorder(first: str, second: str, why: str | None, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text(f"{first}\n{second}\n")
    assert why_unseen(str(tmp_path / "tool"), ["./tool", "-I"]) == why


RUNS_ON = """
import subprocess, sys
process = subprocess.Popen([sys.executable, "child.py"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(process.stdout.readline())
"""


def test_a_child_that_runs_on_is_not_waited_for(server: ScriptedServer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ended")
    # It goes on when the test opens the pipe, and holds it until its end.
    (tmp_path / "child.py").write_text(CALL + "ask()\nprint('called', flush=True)\nended = open('ended', 'w')")
    done = _run(server, tmp_path, RUNS_ON)
    assert (done.code, done.out) == (0, "b'called\\n'\n")
    assert "nothing was recorded" in done.err
    assert (tmp_path / "ended").read_text() == ""
    assert [len(one.steps) for one in recorded(tmp_path / "rollouts.jsonl")] == [1]
    assert sorted(os.listdir(tmp_path)) == ["agent.py", "child.py", "ended", "rollouts.jsonl"]


def test_why_steps_have_no_ids(tmp_path: Path) -> None:
    answers: list[Answer] = ["one", Fault(status=500), "two"]
    with ScriptedServer(answers) as server:
        program = CALL + "ask('a')\ntry:\n    ask('b')\nexcept Exception:\n    pass\nask('c')\n"
        done = _run(server, tmp_path, program)
    text = " ".join(done.err.split())
    assert "rollout-trace: 1 trajectory, 3 steps, 40 prompt tokens, 8 sampled tokens in rollouts.jsonl" in text
    assert (
        "rollout-trace: no token ids in 3 of 3 steps: the server sent no completion token ids, and was not asked for "
        "them (2); the call failed (1); --engine asks for them"
    ) in text
    assert max(map(len, done.err.splitlines())) < 100


def test_quiet_prints_nothing(server: ScriptedServer, tmp_path: Path) -> None:
    assert _run(server, tmp_path, TWO, options=("-q",)) == (0, "", "")
    assert len(recorded(tmp_path / "rollouts.jsonl")) == 1


@pytest.mark.more
def test_a_second_run_is_appended(server: ScriptedServer, tmp_path: Path) -> None:
    for _ in range(2):
        _run(server, tmp_path, TWO)
    first, second = recorded(tmp_path / "rollouts.jsonl")
    assert first.episode_id != second.episode_id


def test_what_cannot_be_written_is_reported_and_the_program_goes_on(server: ScriptedServer, tmp_path: Path) -> None:
    # As a full disk would.
    program = "import os; os.symlink('missing/rollouts.jsonl', 'rollouts.jsonl')\n" + TWO + "print('done')"
    done = _run(server, tmp_path, program)
    assert (done.code, done.out) == (0, "done\n")
    assert re.search(r"nothing was recorded to \S+rollouts.jsonl: FileNotFoundError", done.err)
