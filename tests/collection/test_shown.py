"""What a person sees of ``rt.collect``, with real agents: on a terminal, in a log, in the files beside the output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("pty", reason="this system has no terminals of this kind")

from rollout_trace.testing import ScriptedServer
from tests.collection.screen import LIBRARY, on_terminal

PROGRAM = """
import asyncio, logging, os, sys
import rollout_trace as rt
from tests.collection.asking import ask_async

logging.basicConfig(level=logging.WARNING, format="%(message)s")

async def solve(task, rollout):
    await ask_async(os.environ["SERVER"], [{"role": "user", "content": task["question"]}])
    rollout.log.info("asked")
    logging.getLogger("agent").warning("logged of %s", task["id"])
    print("printed of", task["id"])
    if task["id"] == "t3":
        raise ValueError("no \\x1b[31m answer")
    if "HANGS" in os.environ and task["id"] == "t5":
        print("hangs")
        await asyncio.sleep(600)
    return "4"

tasks = [{"id": f"t{number}", "question": f"{number}?"} for number in range(20)]
try:
    rt.collect(solve, tasks, output="runs/x.jsonl", samples=2, concurrency=4, logs=True, reward=lambda *_: 0.5)
except KeyboardInterrupt:
    print("stopped")
    sys.exit(3)
"""


def test_on_a_terminal(tmp_path: Path) -> None:
    """Each line that agents print and log is there once, and one bar."""
    with ScriptedServer("4") as server:
        code, screen = on_terminal(f"import os; os.chdir({str(tmp_path)!r})\n" + PROGRAM, width=90,
                                   environment={"SERVER": server.base_url})  # fmt: skip
    assert code == 0, screen.lines
    for number in range(20):
        assert screen.lines.count(f"printed of t{number}") == 2
        assert screen.lines.count(f"logged of t{number}") == 2
    assert sum("━" in line for line in screen.lines) == 1
    (bar,) = (line for line in screen.lines if "━" in line)
    assert "40/40  100%" in bar
    assert sum(r"failed: ValueError: no \x1b[31m answer" in line for line in screen.lines) == 1
    assert screen.has_cursor
    status = json.loads((tmp_path / "runs" / "x.status.json").read_text())
    assert (status["state"], status["done"], status["by_status"]) == ("ended", 40, {"completed": 38, "failed": 2})
    assert (status["mean_reward"], status["n_scored"], status["calls"]) == (0.5, 38, 40)
    logs = {path.name: path.read_text() for path in (tmp_path / "runs" / "x.logs").iterdir()}
    assert len(logs) == 40
    assert all(text.count(": asked\n") == text.count("WARNING agent: logged of ") == 1 for text in logs.values())
    assert sorted(name for name, text in logs.items() if "ValueError" in text) == ["t3-0-1.log", "t3-1-1.log"]


@pytest.mark.more
def test_in_a_log(tmp_path: Path) -> None:
    """Lines without returns and colours on stderr; what the agents print is on stdout alone."""
    with ScriptedServer("4") as server:
        environment = {**os.environ, "SERVER": server.base_url, "PYTHONPATH": LIBRARY, "FORCE_COLOR": "1"}
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"printed of") == 40
    assert b"\r" not in done.stderr
    assert b"\x1b" not in done.stderr
    lines = done.stderr.decode().splitlines()
    assert sum(line.startswith("collect: 40 rollouts, to ") for line in lines) == 1
    assert sum(line.startswith("collect: ended: 40/40, 100%, in ") for line in lines) == 1


@pytest.mark.more
def test_ctrl_c(tmp_path: Path) -> None:
    """The terminal is clean, the cursor is there, and the status says that nothing runs any more."""
    with ScriptedServer("4") as server:
        code, screen = on_terminal(
            f"import os; os.chdir({str(tmp_path)!r})\n" + PROGRAM,
            width=90,
            environment={"SERVER": server.base_url, "HANGS": "1"},
            react=lambda seen: b"\x03" if seen.count("hangs") >= 2 and "38/40" in seen else None,
        )
    assert code == 3, screen.lines
    assert sum("━" in line for line in screen.lines) == 1
    assert not any("^C" in line for line in screen.lines)
    assert screen.lines[-1] == "stopped"
    assert screen.has_cursor
    status = json.loads((tmp_path / "runs" / "x.status.json").read_text())
    assert (status["state"], status["running"], status["done"]) == ("ended", 0, 38)
