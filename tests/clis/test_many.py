"""Many rollouts of Claude Code at a time, some of which end badly: each has its own account."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.clients.loopback.server import THREAD
from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer
from rollout_trace.testing.script import Answer
from rollout_trace.wire import decode
from tests.amount import amount
from tests.consumers import closed_exchange

from . import claude_code
from .installed import CLAUDE_CODE, program

COUNT = amount(10, 20, 50)
KILLED, HANGING, BROKEN = ("task-001", "task-006"), "task-003", "task-008"
KEY, BROKEN_KEY = "sk-ant-0123456789-whole", "sk-ant-0123456789-broken"
LIMIT = 240.0
"""Seconds of a rollout: many times what one takes here."""


class Model:
    """Runs a tool, then says which task it was; kills some programs, and leaves one without an answer."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = places
        self.listed: list[str] = []
        """Commands of processes, while the programs ran, that have a key in them."""

    def __call__(self, request: Mapping[str, Any], record: RequestRecord) -> Answer:
        """The answer to a request."""
        self.listed += [one for one in commands() if KEY in one or BROKEN_KEY in one]
        if record.headers["x-api-key"] == BROKEN_KEY:
            wrong = {"type": "authentication_error", "message": "invalid x-api-key"}
            return Fault(status=401, body={"type": "error", "error": wrong})
        said = json.dumps(request["messages"])
        names = set(re.findall(r"task-\d{3}", said))
        (name,) = names
        if '"tool_result"' not in said:
            command = f"echo of {name} > {name}.txt; cat {name}.txt"
            return Reply(f"runs {name}", tool_calls=[("Bash", json.dumps({"command": command, "description": name}))])
        if name in KILLED:
            os.kill(int((self._places[name] / "pid").read_text()), signal.SIGKILL)
        return Fault(stall=True) if name in (HANGING, *KILLED) else f"done {name}"


def commands() -> list[str]:
    """Those of all processes, as any user may list them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return found


def left_running(folder: Path) -> list[str]:
    """The commands of processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_each_rollout_has_its_account(tmp_path: Path) -> None:
    binary = str(program(CLAUDE_CODE))
    places: dict[str, Path] = {}

    async def agent(task: str, rollout: Any) -> str:
        places[task] = folder = Path(rollout.folder)
        key = BROKEN_KEY if task == BROKEN else KEY
        variables = {**claude_code.VARIABLES, "ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": server.url}
        own = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **variables}
        # Its shell becomes the program, with the same number.
        start = 'echo $$ > pid; exec "$0" --dangerously-skip-permissions -p "$1"'
        done = await rt.run_program(["sh", "-c", start, binary, task], cli="claude-code", cwd=folder, env=own)
        if done.returncode != 0:
            raise RuntimeError(f"Claude Code ended with {done.returncode}: {done.stdout[-200:]}")
        return done.stdout + (folder / f"{task}.txt").read_text()

    tasks = [f"task-{number:03}" for number in range(COUNT)]
    output = tmp_path / "out.jsonl"
    with ScriptedServer(model := Model(places)) as server:
        summary = rt.collect(agent, tasks, output=output, concurrency=8, timeout=LIMIT, progress=False)
        sent = Counter(
            name
            for record in server.requests
            if record.method == "POST" and record.headers["x-api-key"] == KEY
            for name in set(re.findall(r"task-\d{3}", record.body.decode()))
        )
    assert left_running(tmp_path) == []
    assert [one.name for one in threading.enumerate() if one.name == THREAD] == []
    found = {str(one.task.id): one for one in rt.read(output) if one.task is not None}
    assert sorted(found) == tasks
    bad = {**dict.fromkeys(KILLED, "failed"), HANGING: "timeout", BROKEN: "failed"}
    expected = {**dict.fromkeys(tasks, "completed"), **bad}
    assert {name: one.status for name, one in found.items()} == expected, summary
    assert model.listed == []
    # Claude Code's own files are in its home.
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and ".claude" not in str(path)]
    assert output in kept
    for word in (KEY, BROKEN_KEY):
        assert [path for path in kept if word.encode() in path.read_bytes()] == []
    for name, one in found.items():
        check_account(name, one, sent[name])
        # The file that BenchFlow has of a rollout; of those that failed too.
        path = tmp_path / name / "llm_trajectory.jsonl"
        path.parent.mkdir()
        lines = export.write_exchanges(path, one)
        assert len([closed_exchange.read(line) for line in path.read_bytes().splitlines()]) == lines > 0
    assert len({(one.metadata or {})["session_id"] for one in found.values()}) == COUNT


def check_account(name: str, one: rt.Trajectory, sent: int) -> None:
    """One rollout: its own calls alone, each of which an exchange tells of."""
    rows = export.exchanges(one)
    assert {row["metadata"]["trajectory_id"] for row in rows} == {one.id}
    assert [row["metadata"]["step_ids"] for row in rows if row["metadata"]["attempt"] == 0] == [
        [step.id] for step in one.steps
    ]
    for row in rows:
        assert (row["response"]["status_code"] == 200) == (row["status"] == "ok")
        assert (row["error"] is None) == (row["status"] == "ok")
        decode(
            "openai.chat",
            json.dumps(row["request"]["body"]).encode(),
            json.dumps(row["response"]["body"]).encode(),
            status=row["response"]["status_code"],
        )
    said = {other for row in rows for other in re.findall(r"task-\d{3}", json.dumps(row))}
    assert said == {name}
    if name == BROKEN:
        assert {attempt.status for step in one.steps for attempt in step.attempts} == {401}
        return
    assert len(rows) == sent == 2
    (run,) = one.tool_runs
    assert f"of {name}" in str(run.result)
    answers = [step.completion and step.completion.content for step in one.steps]
    if name in KILLED or name == HANGING:
        assert answers == [f"runs {name}", None]
        assert one.steps[1].status == "cancelled"
    else:
        assert answers == [f"runs {name}", f"done {name}"]
