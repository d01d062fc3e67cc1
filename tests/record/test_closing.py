"""What other threads, forks and interrupts do while a trajectory closes, and while its recording ends."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.record import recording as recording_module
from rollout_trace.record.log import StepLog
from rollout_trace.record.state import Episode
from rollout_trace.testing import Fault, ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


def client_of(server: ScriptedServer) -> openai.OpenAI:
    return rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0))


def ask(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **options)


class Held:
    """A target whose `write` waits until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.written: list[rt.Trajectory] = []

    def write(self, trajectory: rt.Trajectory) -> None:
        self.begun.set()
        assert self.released.wait(60)
        self.written.append(trajectory)


def test_a_thread_that_closes_after_the_recording_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The thread has no context of the recording's; the trajectory opened in it all the same."""
    opened, go = threading.Event(), threading.Event()

    def agent() -> None:
        with rt.trajectory():
            opened.set()
            assert go.wait(60)

    before = rt.stats().trajectories_lost
    with rt.recording(tmp_path / "runs.jsonl"):
        thread = threading.Thread(target=agent)
        thread.start()
        assert opened.wait(60)
    go.set()
    thread.join()
    assert rt.stats().trajectories_lost == before + 1
    assert "was not written to a file: its recording had ended before it did" in caplog.text


def test_nothing_is_queued_behind_the_end() -> None:
    recording = rt.recording(Held())
    with recording:
        queue = recording._queue
        assert queue is not None
        with rt.trajectory() as trajectory:
            pass
        recording._target.released.set()  # type: ignore[union-attr]
    assert not queue.put(Episode([trajectory]))
    assert queue._thread is not None
    queue._thread.join(60)
    assert not queue._thread.is_alive()


def test_what_changes_after_the_block_is_not_in_the_line(tmp_path: Path) -> None:
    """Dicts and lists that a user gave stay the user's: the state of an environment, the messages of an agent."""
    path = tmp_path / "runs.jsonl"
    board: dict[str, Any] = {"moves": [1, (2, [3])]}
    path.touch()
    holder = os.open(path, os.O_RDWR)
    with rt.recording(path):
        fcntl.flock(holder, fcntl.LOCK_EX)
        with rt.trajectory(task={"id": "x", "board": board}, metadata={"board": board}) as trajectory:
            assert trajectory.metadata is not None
            with rt.tool_run("look") as run:
                run.result = board
        board["moves"][1][1].append("later")
        board["more"] = "later"
        trajectory.metadata["board"] = "later"
        run.result = "later"
        os.close(holder)
    (read,) = rt.read(path)
    expected = {"moves": [1, [2, [3]]]}
    assert read.task is not None
    assert (read.task.data["board"], read.metadata) == (expected, {"board": expected})
    assert read.tool_runs[0].result == expected


def test_a_fork_while_a_trajectory_is_completed(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that completes it is not in the forked process, which completes it anew."""
    target, decoding, go = Held(), threading.Event(), threading.Event()
    target.released.set()
    of_log = StepLog.steps

    def wait(log: StepLog) -> list[rt.Step]:
        if threading.current_thread() is not threading.main_thread():
            decoding.set()
            assert go.wait(60)
        return of_log(log)

    monkeypatch.setattr(StepLog, "steps", wait)
    with client_of(server) as client, rt.recording(target):
        with rt.trajectory() as trajectory:
            ask(client)
        assert decoding.wait(60)
        child = os.fork()
        if child == 0:
            os._exit(len(trajectory.steps))
        go.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert len(trajectory.steps) == 1


def test_a_forked_process_does_not_write_what_the_other_one_keeps(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.touch()
    recording = rt.recording(path, lock_timeout=0.0)
    with recording:
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        with rt.trajectory():
            pass
        assert recording.flush(60)
        child = os.fork()
        if child == 0:
            assert recording._sink is not None
            os._exit(0 if recording._sink.retry_in is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.close(holder)
    assert len(list(rt.read(path))) == 1


def test_a_stream_that_ends_while_its_steps_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Any] = []
    asked = StepLog.is_running.fget  # type: ignore[attr-defined]

    def ask_and_end(log: StepLog) -> bool:
        is_running: bool = asked(log)
        while streams:
            streams.pop().close()
        return is_running

    with ScriptedServer(Fault("fine", hold_after=1)) as server, client_of(server) as client:
        with rt.trajectory() as trajectory:
            stream = ask(client, stream=True)
        monkeypatch.setattr(StepLog, "is_running", property(ask_and_end))
        streams.append(stream)
        assert len(trajectory.steps) == 1
        assert [step.status for step in trajectory.steps] == ["abandoned"]
        server.release()


def test_a_function_for_redaction_that_exits_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")

    def leave(text: str, place: str) -> str:
        while recording._queue is not None and recording._queue._items.empty():
            pass
        raise SystemExit("no more")

    recording = rt.recording(tmp_path / "runs.jsonl", redact=leave, journal=False)
    recording.__enter__()
    with rt.trajectory(metadata={"a": "text"}):
        pass
    assert recording.flush(30)
    with pytest.raises(rt.WriteError, match=r"1 trajectory could not be written to .* \(1 could not be redacted\)"):
        recording.__exit__(None, None, None)


def test_recordings_that_are_left_in_the_order_they_were_entered(tmp_path: Path) -> None:
    first, second = rt.recording(tmp_path / "a.jsonl"), rt.recording(tmp_path / "b.jsonl")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with rt.trajectory("b"):
        pass
    second.__exit__(None, None, None)
    assert recording_module.current_recording() is None
    assert [one.name for one in rt.read(tmp_path / "b.jsonl")] == ["b"]
