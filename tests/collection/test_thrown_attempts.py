"""Attempts that others take the places of: no step of theirs is trained on, whoever wrote it and wherever it stands."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from tests.amount import some

PROGRAM = """
import pathlib, sys, time
from tests.collection.asking import ask
address, folder, name = sys.argv[1:]
print(ask(address, [{"role": "user", "content": name}]))
pathlib.Path(folder, name + ".asked").touch()
while name != "short" and not pathlib.Path(folder, name + ".go").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(Reply("four")) as server:
        yield server


@pytest.fixture
def aclient(server: ScriptedServer) -> openai.AsyncOpenAI:
    # Each collect has a loop of its own, and a connection that is kept belongs to one.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    return openai.AsyncOpenAI(base_url=server.base_url, api_key="key", max_retries=0, http_client=http)


def collect(agent: Any, tasks: Any, output: Path | str, **options: Any) -> rt.CollectSummary:
    return rt.collect(agent, tasks, output=output, progress=False, engine="vllm", name="a", **options)


def start(server: ScriptedServer, folder: Path, name: str) -> subprocess.Popen[bytes]:
    """A program that makes one call, says so, and unless its name is ``short`` waits for a sign."""
    command = [sys.executable, "-c", PROGRAM, server.base_url, str(folder), name]
    return subprocess.Popen(command, env={**os.environ, **rt.child_environment()}, stdout=subprocess.PIPE)


def asked(program: subprocess.Popen[bytes]) -> None:
    assert program.stdout is not None
    program.stdout.readline()


def trained(output: Path | str) -> list[str]:
    """The statuses of the attempts with rows, one for each row."""
    found = list(rt.read(output))
    status = {one.episode_id: one.status for one in found if one.parent_id is None}
    return sorted(status[one.episode_id] for one in found for _ in one.sequences())


def reordered(output: Path, order: str) -> None:
    """Writes the lines of an output in another order; in a folder into two shards."""
    files = sorted(output.glob("part-*")) if output.is_dir() else [output]
    lines = [one.to_json() for one in rt.read(files)]
    if order == "began":
        lines.sort(key=lambda line: str(json.loads(line)["started_at"]))
    elif order == "inside first":
        lines.sort(key=lambda line: "parent_id" not in json.loads(line))
    else:
        random.Random(0).shuffle(lines)
    for file in files:
        file.unlink()
    places = [output / f"part-other-{at}-0000aaaa-1.jsonl" for at in range(2)] if output.is_dir() else files
    for at, file in enumerate(places):
        data = b"".join(line.encode() + b"\n" for line in lines[at :: len(places)])
        file.write_bytes(gzip.compress(data) if file.name.endswith(".gz") else data)


@pytest.mark.parametrize(
    ("output", "order"),
    [
        ("x.jsonl", "began"),
        ("x.jsonl", "inside first"),
        ("x.jsonl", "shuffled"),
        ("x.jsonl.gz", "began"),
        ("x/", "shuffled"),
    ],
)
def test_sub_agents_of_attempts_made_again(
    output: str, order: str, tmp_path: Path, aclient: openai.AsyncOpenAI
) -> None:
    """Lines of rollouts are interleaved where processes write one file, after a recovery, and in sorted files."""
    fails = True

    async def agent(task: str) -> None:
        for _ in range(2):
            with rt.trajectory("sub"):
                await aclient.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])
        if fails:
            raise RuntimeError("no")

    place = str(tmp_path / "x") + "/" if output == "x/" else tmp_path / output
    collect(agent, ["1", "2", "3"], place, max_consecutive_failures=0)
    reordered(Path(place), order)
    fails = False
    summary = collect(agent, ["1", "2", "3"], place, retry_failed=True)
    assert summary.by_status == {"completed": 3}
    assert trained(place) == ["completed"] * 6
    notes = sorted(tmp_path.rglob("*.notes.jsonl"))
    before = [one.read_bytes() for one in notes]
    collect(agent, ["1", "2", "3"], place)
    assert [one.read_bytes() for one in notes] == before


@pytest.mark.parametrize("output", some(["x.jsonl", "x/"], "x.jsonl"))
def test_a_program_of_an_attempt_that_is_tried_again(output: str, tmp_path: Path, server: ScriptedServer) -> None:
    """Its calls are counted, and not trained on; nor where the attempt is made again by the next run."""
    failures = iter([True, True, False])

    def agent(task: str) -> None:
        program = start(server, tmp_path, "short")
        program.communicate()
        if next(failures):
            raise RuntimeError("no")

    place = tmp_path / output if output == "x.jsonl" else str(tmp_path / "x") + "/"
    summary = collect(agent, ["1"], place, retries=1, retry_wait=0)
    assert (summary.by_status, summary.usage.calls) == ({"failed": 1}, 2)
    # The last attempt counts, though it failed.
    assert trained(place) == ["failed"]
    assert sum(len(one.sequences()) for one in rt.read(place)) == 1
    assert collect(agent, ["1"], place, retry_failed=True).by_status == {"completed": 1}
    assert trained(place) == ["completed"]


@pytest.mark.parametrize("output", some(["x.jsonl", "x.jsonl.gz", "x/"], "x/"))
def test_programs_that_live_longer_than_their_attempt(output: str, tmp_path: Path, server: ScriptedServer) -> None:
    """One writes its line after the run, another is killed and recovered: the attempt's line says what they are of."""
    programs: list[subprocess.Popen[bytes]] = []
    failures = iter([True, False])

    def agent(task: str) -> None:
        if next(failures):
            programs.extend(start(server, tmp_path, name) for name in ("late", "killed"))
            for program in programs:
                asked(program)
            raise RuntimeError("no")

    place = str(tmp_path / "x") + "/" if output == "x/" else tmp_path / output
    collect(agent, ["1"], place, retries=1, retry_wait=0)
    assert [one.parent_id for one in rt.read(place)] == [None, None]
    programs[1].send_signal(signal.SIGKILL)
    programs[1].communicate()
    assert [[step.status for step in one.steps] for one in rt.recover(place)] == [["superseded"]]
    (tmp_path / "late.go").touch()
    programs[0].communicate()
    if output != "x/":
        # It has seen that its attempt was thrown away. One that writes a shard of its own does not look at others.
        assert trained(place) == []
    (found,) = rt.recover(place, write=True)
    assert [step.status for step in found.steps] == ["superseded"]
    assert sorted(len(one.steps) for one in rt.read(place)) == [0, 0, 1, 1]
    assert trained(place) == []


@pytest.mark.more
@pytest.mark.parametrize("output", ["x.jsonl", "x/"])
def test_a_program_of_an_attempt_that_is_cut(output: str, tmp_path: Path, server: ScriptedServer) -> None:
    """As by Ctrl-C: what was written by then is noted by the run that was cut, the rest by the program or the next."""
    late: list[subprocess.Popen[bytes]] = []
    cut = threading.Event()

    async def agent(task: str) -> None:
        if not cut.is_set():
            program = start(server, tmp_path, "short")
            await asyncio.to_thread(program.communicate)
            late.append(start(server, tmp_path, "late"))
            await asyncio.to_thread(asked, late[0])
            cut.set()
            await asyncio.Event().wait()

    place = str(tmp_path / "x") + "/" if output == "x/" else str(tmp_path / output)

    async def main() -> None:
        made = asyncio.ensure_future(rt.acollect(agent, ["1"], output=place, progress=False, engine="vllm", name="a"))
        await asyncio.to_thread(cut.wait)
        made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made

    asyncio.run(main())
    assert sorted(len(one.steps) for one in rt.read(place)) == [0, 1]
    assert trained(place) == []
    (tmp_path / "late.go").touch()
    late[0].communicate()
    assert trained(place) == ([] if output == "x.jsonl" else ["aborted"])
    assert collect(agent, ["1"], place).by_status == {"completed": 1}
    assert trained(place) == []
    assert sorted(len(one.steps) for one in rt.read(place)) == [0, 0, 1, 1]


def test_at_an_address_nothing_can_be_noted(
    tmp_path: Path, aclient: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, and only where there is something to note."""
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_TRACE_SPOOL", str(tmp_path / "spool"))
    fails = True

    async def agent(task: str) -> None:
        await aclient.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])
        if fails:
            raise RuntimeError("no")

    output = "memory://thrown-attempts/runs"
    rt.collect(agent, ["1"], output=output, progress=None, engine="vllm", name="a")
    rt.collect(agent, ["1"], output=output, progress=None, engine="vllm", name="a")
    assert "cannot be marked" not in capsys.readouterr().err
    fails = False
    rt.collect(agent, ["1"], output=output, progress=None, engine="vllm", name="a", retry_failed=True)
    rt.collect(agent, ["1"], output=output, progress=None, engine="vllm", name="a")
    assert " ".join(capsys.readouterr().err.split()).count("and at an address they cannot be marked") == 1


def test_a_sub_agent_that_closes_after_its_attempt(tmp_path: Path, server: ScriptedServer) -> None:
    """It was open when the time of the attempt was up, in a thread that could not be stopped."""
    client = openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0)
    hanging, threads = threading.Event(), list[threading.Thread]()

    def agent(task: str) -> None:
        if threads:
            hanging.set()
            threads[0].join()
            return
        threads.append(threading.current_thread())
        with rt.trajectory("sub"), rt.trajectory("below"):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
            hanging.wait()

    output = tmp_path / "x.jsonl"
    options = {"timeout": 2, "retries": 1, "retry_wait": 0, "retry_on": "TimeoutError"}
    assert collect(agent, ["1"], output, **options).by_status == {"completed": 1}
    found = {one.name: one for one in rt.read(output)}
    assert [step.status for step in found["below"].steps] == ["superseded"]
    assert found["sub"].episode_id == found["below"].episode_id


def test_what_a_judge_opens_is_not_trained_on(tmp_path: Path, aclient: openai.AsyncOpenAI) -> None:
    """A reward function that is an agent itself: at any depth, and though it is closed before the reward is."""

    async def ask() -> None:
        await aclient.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])

    async def agent(task: str) -> None:
        await ask()

    async def judge(task: str, result: object, trajectory: rt.Trajectory) -> float:
        with rt.trajectory("judge"), rt.trajectory("below"):
            await ask()
        return 1.0

    collect(agent, ["1"], tmp_path / "x.jsonl", reward=judge)
    assert {one.name: len(one.sequences()) for one in rt.read(tmp_path / "x.jsonl") if one.steps} == {
        "a": 1,
        "below": 0,
    }
