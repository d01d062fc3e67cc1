"""Disks, files and locks that fail under a recording with its journal; calls that are longer than memory.

The agent sees what it sees without a recording, and what became of its trajectories adds up: the file, the ``lost`` of
the error and the journal have each of them, with every step.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response
from rollout_trace.file import journal as journal_files
from rollout_trace.record import call as call_module
from rollout_trace.record import sink
from rollout_trace.testing import LoopbackServer, RequestRecord, ScriptedServer
from tests.file.disks import fail, failing_disk, fill, small_disk
from tests.file.processes import stopped_holder

from . import fault_agent
from .fault_agent import ROLLOUTS, TURNS, Between, agent, flush, on_a_server, recorded, said
from .started import ROOT, starter

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the faults are made with what POSIX has")

ALL = [str(number) for number in range(ROLLOUTS)]


@pytest.fixture(autouse=True)
def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides that this is a test, in which the recorder's failures are raised; what failed is tried again soon."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(sink, "FIRST_RETRY", 0.001)
    # A deleted journal is noticed with the next record.
    monkeypatch.setattr(journal_files, "CHECK_SECONDS", 0.0)


@pytest.fixture(scope="module")
def bare() -> list[list[str]]:
    """What the agent sees without us."""
    return on_a_server(agent, wraps=False)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Gives the lines of the log so far."""
    caplog.set_level(logging.INFO, "rollout_trace")
    return lambda: caplog.messages


class Counted:
    """What was counted since."""

    def __init__(self) -> None:
        self._before = rt.stats()

    def __call__(self) -> tuple[int, int]:
        """Trajectories written, and lost."""
        now, before = rt.stats(), self._before
        return (
            now.trajectories_written - before.trajectories_written,
            now.trajectories_lost - before.trajectories_lost,
        )


def expected(results: list[list[str]], names: list[str] = ALL) -> dict[str, list[str | None]]:
    return {name: list(results[int(name)]) for name in names}


def journal_of(path: Path) -> Path:
    return Path(f"{path}.journal")


def at(place: tuple[int, int], path: Path, fault: Callable[[], object]) -> Between:
    """Calls the fault before this turn of this rollout, when what has closed before is in the file."""

    def between(number: int, turn: int) -> None:
        if (number, turn) == place:
            assert flush(path)
            fault()

    return between


# Full disks


def test_a_disk_that_is_full_for_a_while(tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]) -> None:
    counted = Counted()
    with small_disk(tmp_path / "disk") as disk:
        path, filler = disk / "rollouts.jsonl", []

        def between(number: int, turn: int) -> None:
            if (number, turn) == (2, 0):
                assert flush(path)
                filler.append(fill(disk, leave=0))
            if (number, turn) == (5, 0):
                assert flush(path)
                filler[0].unlink()

        run = recorded(path, between)
        assert (run.results, run.error, run.lost) == (bare, None, [])
        assert said(rt.read(path)) == expected(bare)
        assert (counted(), journal_of(path).exists(), rt.recover(path)) == ((ROLLOUTS, 0), False, [])
    assert sum("No space left on device" in line and "kept in memory" in line for line in told()) == 1
    assert sum("cannot be written" in line and "the agent goes on" in line.lower() for line in told()) >= 1
    assert sum("were written later" in line for line in told()) == 1
    assert not any("lost` of" in line or "The journal has" in line for line in told())


def test_a_disk_that_stays_full(tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]) -> None:
    """The journal is on the same disk: no message claims that it has what it has not."""
    counted = Counted()
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "rollouts.jsonl"
        run = recorded(path, at((2, 0), path, lambda: fill(disk, leave=0)))
        assert run.results == bare
        assert run.error is not None
        assert said(rt.read(path)) == expected(bare, ALL[:2])
        assert said(run.lost) == expected(bare, ALL[2:])
        assert counted() == (2, 4)
        assert rt.recover(path) == []
        assert run.error.write(tmp_path / "saved.jsonl") == 4
    assert said(rt.read(tmp_path / "saved.jsonl")) == expected(bare, ALL[2:])
    assert "4 are in the `lost` of the recording. The journal has only parts of them" in told()[-1]


def in_a_process(fault: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Runs the agent under a fault of ``fault_agent``; its exit code and what it printed."""
    program = "import sys\nfrom tests.record import fault_agent\nfault_agent.begin(sys.argv[1:])"
    code, out, error = starter().run(program, [fault, str(folder)], cwd=ROOT)
    assert out, error.decode()
    shown: dict[str, Any] = json.loads(out)
    return code, shown


@pytest.mark.more
def test_a_file_that_may_not_grow(tmp_path: Path, bare: list[list[str]]) -> None:
    """The journal has what the file has not: each trajectory is in one of the two."""
    code, shown = in_a_process("limited", tmp_path)
    path = tmp_path / "rollouts.jsonl"
    assert (code, shown["results"]) == (0, bare)
    assert (shown["lost"], shown["saved"]) == (ALL[2:], 4)
    assert (shown["counts"]["written"], shown["counts"]["lost"]) == (2, 4)
    earlier: dict[str, list[str | None]] = {"earlier": []}
    assert said(rt.read(path)) == earlier | expected(bare, ALL[:2])
    assert said(rt.read(tmp_path / "saved.jsonl")) == expected(bare, ALL[2:])
    assert f"The journal has them: rt.recover({str(path)!r})" in shown["messages"][-1]
    assert said(rt.recover(path, write=True)) == expected(bare, ALL[2:])
    assert said(rt.read(path)) == earlier | expected(bare)
    assert (rt.recover(path, write=True), journal_of(path).exists()) == ([], False)


# Permissions


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Not under pytest's own folder, which no other user may enter."""
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_permission_that_was_lost(open_folder: Path, bare: list[list[str]]) -> None:
    code, shown = in_a_process("forbidden", open_folder)
    path = open_folder / "rollouts.jsonl"
    assert (code, shown["results"], shown["lost"]) == (0, bare, ALL[2:])
    assert said(rt.read(open_folder / "moved.jsonl")) == expected(bare, ALL[:2])
    assert said(rt.read(open_folder / "saved.jsonl")) == expected(bare, ALL[2:])
    assert sum("Permission denied" in line and "kept in memory" in line for line in shown["messages"]) == 1
    assert sum("the journal" in line and "cannot be written" in line for line in shown["messages"]) == 1
    # There was no journal to write: nothing claims that it has them.
    assert rt.recover(path) == []
    assert not any("The journal has them" in line for line in shown["messages"])


@pytest.mark.more
def test_a_folder_without_room_for_a_journal(open_folder: Path, bare: list[list[str]]) -> None:
    code, shown = in_a_process("no_place", open_folder)
    assert (code, shown["results"], shown["lost"]) == (0, bare, [])
    assert said(rt.read(open_folder / "rollouts.jsonl")) == expected(bare)
    assert sum("cannot be written" in line for line in shown["messages"]) == 1
    assert shown["counts"]["errors"] >= ROLLOUTS * TURNS


# Files that go away


def test_a_deleted_file(tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]) -> None:
    counted, path = Counted(), tmp_path / "rollouts.jsonl"
    run = recorded(path, at((2, 1), path, path.unlink))
    assert (run.results, run.error) == (bare, None)
    assert said(rt.read(path)) == expected(bare, ALL[2:])
    assert counted() == (ROLLOUTS, 0)
    assert (told(), journal_of(path).exists()) == ([], False)


def test_a_deleted_folder(tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]) -> None:
    """With the journal of a trajectory that is under way: it is written whole all the same."""
    counted, path = Counted(), tmp_path / "runs" / "rollouts.jsonl"
    run = recorded(path, at((2, 1), path, lambda: shutil.rmtree(path.parent)))
    assert (run.results, run.error) == (bare, None)
    assert said(rt.read(path)) == expected(bare, ALL[2:])
    assert counted() == (ROLLOUTS, 0)
    assert [line for line in told() if "another program deleted the journal" not in line] == []
    assert not journal_of(path).exists()


def test_a_deleted_journal_has_the_trajectories_that_are_lost_afterwards(
    tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]
) -> None:
    """Calls that were in the deleted file are in the new one when their trajectory has closed."""
    path = tmp_path / "rollouts.jsonl"

    path.touch()
    with stopped_holder(path):
        run = recorded(path, at((2, 2), path, lambda: shutil.rmtree(journal_of(path))), lock_timeout=0.0)
    assert run.results == bare
    assert said(run.lost) == expected(bare)
    assert said(rt.recover(path)) == expected(bare, ALL[2:])
    assert "6 are in the `lost` of the recording. The journal has 4 of these 6 whole: rt.recover" in told()[-1]


def test_a_rotated_file(tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]) -> None:
    counted, path = Counted(), tmp_path / "rollouts.jsonl"
    run = recorded(path, at((2, 1), path, lambda: path.rename(tmp_path / "rollouts.1.jsonl")))
    assert (run.results, run.error) == (bare, None)
    assert said(rt.read(tmp_path / "rollouts.1.jsonl")) == expected(bare, ALL[:2])
    assert said(rt.read(path)) == expected(bare, ALL[2:])
    assert (counted(), told(), journal_of(path).exists()) == ((ROLLOUTS, 0), [], False)


def test_a_file_system_that_became_read_only(
    tmp_path: Path, bare: list[list[str]], told: Callable[[], list[str]]
) -> None:
    counted = Counted()
    with failing_disk(tmp_path / "disk") as disk:
        path = disk / "rollouts.jsonl"
        run = recorded(path, at((2, 0), path, lambda: fail(disk)))
        assert run.results == bare
        assert run.error is not None
        assert said(run.lost) == expected(bare, ALL[2:])
        assert run.error.write(tmp_path / "saved.jsonl") == 4
        assert said(rt.recover(path)) == {}
    assert said(rt.read(tmp_path / "saved.jsonl")) == expected(bare, ALL[2:])
    assert counted()[1] == 4
    assert not any("The journal has them" in line for line in told())


# Locks


async def tasks(address: str, *, wraps: bool) -> list[str]:
    """An agent of an event loop, three rollouts at a time."""
    async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
        if wraps:
            rt.wrap_openai(client)

        async def one(number: int) -> str:
            async with rt.trajectory(f"{number}"):
                said: Any = [{"role": "user", "content": f"{number}"}]
                answer = await client.chat.completions.create(messages=said, **fault_agent.ASKED)
                return str(answer.choices[0].message.content)

        return list(await asyncio.gather(*(one(number) for number in range(3))))


@pytest.mark.parametrize("is_freed", [True, False], ids=["freed", "held to the end"])
def test_a_lock_that_a_stopped_process_holds(is_freed: bool, tmp_path: Path, told: Callable[[], list[str]]) -> None:
    counted, path = Counted(), tmp_path / "rollouts.jsonl"
    with ScriptedServer(fault_agent.script) as server:
        plain = asyncio.run(tasks(server.base_url, wraps=False))
    recording = rt.recording(path, lock_timeout=0.01)

    async def run(address: str) -> list[str]:
        async with recording:
            results = await tasks(address, wraps=True)
            assert await asyncio.to_thread(recording.flush, 60)
            assert path.read_bytes() == b""
            if is_freed:
                holder.kill()
            return results

    path.touch()
    with stopped_holder(path) as holder, ScriptedServer(fault_agent.script) as server:
        if is_freed:
            assert asyncio.run(run(server.base_url)) == plain
        else:
            with pytest.raises(rt.WriteError, match="3 trajectories could not be written") as raised:
                asyncio.run(run(server.base_url))
    names = {f"{number}": [answer] for number, answer in enumerate(plain)}
    # On a busy machine nothing of the 0.01 seconds may be left when the lock is asked for.
    assert re.search(rf"process {holder.pid} holds its lock, which was not free within 0(\.01)? seconds", told()[0])
    if is_freed:
        assert (said(rt.read(path)), counted(), rt.recover(path)) == (names, (3, 0), [])
        assert told()[-1].endswith("3 trajectories could not be written at once: 3 were written later.")
        return
    assert counted() == (0, 3)
    assert said(one for one, _ in raised.value.lost) == names
    assert "The journal has them" in told()[-1]
    assert said(rt.recover(path, write=True)) == names
    assert said(rt.read(path)) == names


# Kills


def test_a_process_that_is_killed_in_the_middle_of_a_line(tmp_path: Path, bare: list[list[str]]) -> None:
    code, shown = in_a_process("killed", tmp_path)
    path = Path(shown["path"])
    assert code == -signal.SIGKILL
    assert not path.read_bytes().endswith(b"\n")
    found = rt.recover(path)
    assert [(one.name, one.status) for one in found] == [("2", "completed"), ("3", "aborted")]
    assert said(found) == {**expected(bare, ["2"]), "3": bare[3][:2]}
    assert found.report.is_clean
    report = rt.recover(path, write=True).report
    assert report.bytes_cut > 0
    assert said(rt.read(path)) == {**expected(bare, ALL[:3]), "3": bare[3][:2]}
    assert (rt.recover(path, write=True), journal_of(path).exists()) == ([], False)


# Calls that are longer than memory

LIMIT = 20_000
_BODY = b'{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, '
_BODY += b'"message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}]'
_EVENT = b'data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, '
_EVENT += b'"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n\n'
ANSWERS: dict[str, tuple[list[tuple[str, str]], list[bytes]]] = {
    "heartbeats": (
        [("content-type", "text/event-stream")],
        [b": ping\n\n" * 500] * 25 + [_EVENT, b"data: [DONE]\n\n"],
    ),
    "a gzip bomb": (
        [("content-type", "application/json"), ("content-encoding", "gzip")],
        [gzip.compress(_BODY + b" " * 5_000_000 + b"}")],
    ),
    "a long answer": ([("content-type", "application/json")], [_BODY, *[b" " * 10_000] * 100, b"}"]),
    "a long request": ([("content-type", "application/json")], [_BODY, b"}"]),
}


class Long(LoopbackServer):
    """Answers with the bytes of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.headers, self.parts = ANSWERS[kind]

    def answer(self, record: RequestRecord) -> Response:
        return Response(200, self.headers, self.parts, chunked=True)


def long_call(kind: str, *, wraps: bool) -> str:
    """What the agent sees of the call."""
    said: Any = [{"role": "user", "content": "x" * 200_000 if kind == "a long request" else "hi"}]
    with Long(kind) as server, openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        if wraps:
            rt.wrap_openai(client, max_call_bytes=LIMIT)
        if kind != "heartbeats":
            return str(client.chat.completions.create(messages=said, model="m").choices[0].message.content)
        chunks = client.chat.completions.create(messages=said, model="m", stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("kind", ANSWERS)
def test_long_calls(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is bounded as memory is, and what is recovered of the call is what was recorded."""
    # On a busy machine the stream takes seconds, and what came by then would be written each second.
    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", 3600.0)
    path = tmp_path / "rollouts.jsonl"
    path.touch()
    recording = rt.recording(path, lock_timeout=0.0)
    with stopped_holder(path):
        recording.__enter__()
        with rt.trajectory("0"):
            assert long_call(kind, wraps=True) == long_call(kind, wraps=False) == "fine"
        assert recording.flush(60)
        size = sum(file.stat().st_size for file in journal_of(path).iterdir())
        with pytest.raises(rt.WriteError) as raised:
            recording.__exit__(None, None, None)
    assert size < 2 * LIMIT + 4000
    ((lost, _),) = raised.value.lost
    (found,) = rt.recover(path, write=True)
    assert found.steps == lost.steps
    (step,) = found.steps
    if kind == "heartbeats":
        # They hold nothing: the answer is whole without them.
        assert step.token_issue is not None
        assert (step.status, step.token_issue.code) == ("ok", "ids_missing")
    else:
        assert step.token_issue is not None
        assert step.token_issue.code == "bytes_left_out"
    ((written,),) = (one.steps for one in rt.read(path))
    assert written == step
