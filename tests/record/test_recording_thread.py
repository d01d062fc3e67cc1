"""The recording's own thread: what it does, and what the agent's threads do not wait for."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import rollout_trace as rt
from rollout_trace.record import sink, write_queue
from rollout_trace.record.redaction import Redactor
from rollout_trace.record.state import Episode
from rollout_trace.testing import Fault, ScriptedServer


class Held:
    """A target whose `write` waits until it is released, and tells when it has begun."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.threads: set[str] = set()
        self.written: list[rt.Trajectory] = []

    def write(self, trajectory: rt.Trajectory) -> None:
        self.begun.set()
        assert self.released.wait(60)
        self.threads.add(threading.current_thread().name)
        self.written.append(trajectory)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


def client_of(server: ScriptedServer, **options: Any) -> openai.OpenAI:
    return rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, **options))


def ask(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **options)


def test_closing_does_not_wait_for_the_target(server: ScriptedServer) -> None:
    target = Held()
    with client_of(server) as client, rt.recording(target):
        for number in range(3):
            with rt.trajectory(str(number)):
                ask(client)
        assert target.begun.wait(60)
        assert target.written == []
        target.released.set()
    assert [(one.name, len(one.steps)) for one in target.written] == [("0", 1), ("1", 1), ("2", 1)]
    assert target.threads == {"rollout_trace recording"}


def test_past_the_limit_a_close_waits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(write_queue, "QUEUE_LIMIT", 1000)
    target, closed = Held(), threading.Event()

    def run(client: openai.OpenAI) -> None:
        with rt.trajectory():
            ask(client, user="x" * 2000)
        closed.set()

    with ScriptedServer("fine") as server, client_of(server) as client, rt.recording(target):
        thread = threading.Thread(target=run, args=[client])
        thread.start()
        assert target.begun.wait(60)
        assert not closed.is_set()
        target.released.set()
        assert closed.wait(60)
        thread.join()
    assert len(target.written) == 1
    assert [message for message in caplog.messages if "close faster than the disk writes them" in message]


def test_an_event_loop_goes_on_while_its_recording_ends() -> None:
    target = Held()

    async def run() -> list[str]:
        done = []

        async def other() -> None:
            await asyncio.to_thread(target.begun.wait, 60)
            done.append("other")
            target.released.set()

        async with rt.recording(target):
            task = asyncio.create_task(other())
            async with rt.trajectory():
                pass
        done.append("recording")
        await task
        return done

    assert asyncio.run(run()) == ["other", "recording"]
    assert len(target.written) == 1


def test_the_line_has_what_was_set_inside_the_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "runs.jsonl"
    with rt.recording(path):
        with rt.trajectory(metadata={"a": 1}) as trajectory:
            trajectory.reward = 1.0
            trajectory.rewards = {"format": 0.5}
        trajectory.reward = 2.0
        assert trajectory.rewards is not None
        trajectory.rewards["format"] = 0.75
        trajectory.metadata = {"b": 2}
    (read,) = rt.read(path)
    assert (read.reward, read.rewards, read.metadata) == (1.0, {"format": 0.5}, {"a": 1})
    (warning,) = [message for message in caplog.messages if "was set after" in message]
    assert "Trajectory.reward was set after the trajectory had closed: its line in" in warning
    assert "rt.annotate()" in warning


def test_what_a_step_was_given_inside_the_block_is_in_the_line(server: ScriptedServer, tmp_path: Path) -> None:
    with client_of(server) as client, rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as trajectory:
        ask(client)
        trajectory.steps[0].reward = 3.0
        ask(client)
    (read,) = rt.read(tmp_path / "runs.jsonl")
    assert [step.reward for step in read.steps] == [3.0, None]


def test_flush_waits_for_what_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    recording = rt.recording(path)
    with recording:
        for number in range(100):
            with rt.trajectory(str(number)):
                pass
        assert recording.flush(60)
        assert len(list(rt.read(path))) == 100


def test_a_closed_trajectory_has_its_tool_runs_linked_when_they_are_read(server: ScriptedServer) -> None:
    target = Held()
    with client_of(server) as client, rt.recording(target):
        with rt.trajectory() as trajectory:
            ask(client)
            with rt.tool_run("f", tool_call_id="call_1"):
                pass
        assert [run.name for run in trajectory.tool_runs] == ["f"]
        assert trajectory.steps[0].agent == "agent"
        target.released.set()


# Streams that outlive their trajectory.


def test_a_stream_read_after_the_block_is_written_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    def handler(client: openai.OpenAI) -> Any:
        with rt.trajectory("handler"):
            return ask(client, stream=True)

    recording = rt.recording(path)
    with ScriptedServer(Fault("fine", hold_after=1)) as server, client_of(server) as client, recording:
        stream = handler(client)
        next(stream)
        assert recording.flush(60)
        assert list(rt.read(path)) == []
        server.release()
        assert len(list(stream)) > 1
        assert recording.flush(60)
        (written,) = rt.read(path)
    assert [(one.status, one.completion.content) for one in written.steps if one.completion] == [("ok", "fine")]
    assert written.status == "completed"


def test_a_parent_waits_for_the_stream_of_its_child(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    recording = rt.recording(path)
    with ScriptedServer(Fault("fine", hold_after=1)) as server, client_of(server) as client, recording:
        with rt.trajectory("parent"):
            with rt.trajectory("child"):
                stream = ask(client, stream=True)
        assert recording.flush(60)
        assert list(rt.read(path)) == []
        server.release()
        list(stream)
        assert recording.flush(60)
        assert [(one.name, [step.status for step in one.steps]) for one in rt.read(path)] == [
            ("parent", []),
            ("child", ["ok"]),
        ]


def test_the_end_of_the_recording_abandons_what_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with ScriptedServer(Fault("a longer answer", hold_after=2)) as server, client_of(server) as client:
        with rt.recording(path):
            with rt.trajectory():
                stream = ask(client, stream=True)
                next(stream)
                next(stream)
        (written,) = rt.read(path)
        server.release()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == " longer answer"
    (step,) = written.steps
    assert (step.status, step.completion.content if step.completion else None) == ("abandoned", "a")


def test_a_call_that_begins_after_its_trajectory_is_an_orphan(server: ScriptedServer, tmp_path: Path) -> None:
    """Only calls that began inside go on: in whose trajectory else should it be?"""
    started = threading.Event()

    def late(client: openai.OpenAI) -> None:
        assert started.wait(60)
        ask(client)

    with client_of(server) as client, rt.recording(tmp_path / "runs.jsonl"):
        with rt.trajectory("closed"):
            thread = threading.Thread(target=rt.propagate(late), args=[client])
            thread.start()
        before = rt.stats().orphans
        started.set()
        thread.join()
        assert rt.stats().orphans == before + 1
    assert [len(one.steps) for one in rt.read(tmp_path / "runs.jsonl")] == [0]


@pytest.mark.parametrize("is_asked", [True, False], ids=["with a call before", "without"])
def test_a_trajectory_that_outlives_its_recording_is_counted_and_told(
    is_asked: bool, server: ScriptedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal ended with the recording: what it has is told, and no more."""
    before = rt.stats().trajectories_lost
    path = tmp_path / "runs.jsonl"
    with client_of(server) as client:
        with rt.recording(path):
            late = rt.trajectory("late")
            trajectory = late.__enter__()
            if is_asked:
                ask(client)
        ask(client)
        late.__exit__(None, None, None)
    assert rt.stats().trajectories_lost == before + 1
    (told,) = [message for message in caplog.messages if "was not written to a file" in message]
    assert trajectory.id in told
    assert ("The journal has its calls that ended before" in told) == is_asked
    assert [len(one.steps) for one in rt.recover(path)] == [1] * is_asked


def test_a_device_has_no_journal(server: ScriptedServer) -> None:
    with client_of(server) as client, rt.recording(os.devnull) as writer, rt.trajectory():
        ask(client)
        assert not os.path.exists(f"{os.devnull}.journal")
        assert isinstance(writer, rt.JSONLWriter)


# Files that cannot be written for a while.


def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides that this is a test, in which the recorder's failures are raised (pytest says so anew in each phase)."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


def test_a_locked_file_is_written_when_the_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "FIRST_RETRY", 0.001)
    path, before = tmp_path / "runs.jsonl", rt.stats().trajectories_lost
    recording = rt.recording(path, lock_timeout=0.01)
    with recording:
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        for number in range(3):
            with rt.trajectory(str(number)):
                pass
        assert recording.flush(60)
        assert path.read_bytes() == b""
        os.close(holder)
        with rt.trajectory("3"):
            pass
    assert [one.name for one in rt.read(path)] == ["0", "1", "2", "3"]
    first, last = [message for message in caplog.messages if "model call" not in message]
    assert "holds its lock" in first
    assert "tried again. The agent goes on" in first
    assert last.startswith(f"{path}: ")
    assert "trajectories could not be written at once: " in last
    assert last.endswith(" were written later.")
    assert (recording.lost, rt.stats().trajectories_lost) == ([], before)


def test_past_the_limit_of_memory_they_are_counted(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", 65_000)
    before = rt.stats().trajectories_lost
    path = tmp_path / "runs.jsonl"
    path.touch()
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def run() -> None:
        with client_of(server) as client, rt.recording(path, lock_timeout=0.0, journal=False):
            for _ in range(3):
                with rt.trajectory():
                    ask(client, user="x" * 10_000)

    with pytest.raises(rt.WriteError) as raised:
        run()
    os.close(holder)
    assert len(raised.value.lost) == 2
    assert str(raised.value).startswith("2 trajectories could not be written to ")
    assert str(raised.value).endswith(" 1 more had no room in memory. There is no journal of them.")
    assert rt.stats().trajectories_lost == before + 3
    assert "2 are in the `lost` of the recording, 1 had no room in memory. There is no journal" in caplog.text
    assert raised.value.write(path) == 2
    assert len(list(rt.read(path))) == 2


def test_the_queue_is_bounded_again_once_the_file_can_be_written(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after some had no room in memory: those are written from the journal when the recording ends."""
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", 0)
    path = tmp_path / "runs.jsonl"
    recording = rt.recording(path, lock_timeout=0.0)
    failing = []

    def run() -> None:
        with client_of(server) as client, recording:
            holder = os.open(path, os.O_RDWR)
            fcntl.flock(holder, fcntl.LOCK_EX)
            for name in "ab":
                with rt.trajectory(name):
                    ask(client)
                assert recording.flush(60)
                assert recording._sink is not None
                failing.append(recording._sink.is_failing)
                fcntl.flock(holder, fcntl.LOCK_UN)
            os.close(holder)

    run()
    assert failing == [True, False]
    assert [one.name for one in rt.read(path)] == ["b", "a"]


def test_what_only_the_journal_had_is_in_lost_where_the_file_is_locked_to_the_end(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "JOURNALED_LIMIT", 0)
    path = tmp_path / "runs.jsonl"
    path.touch()
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    closed = []

    def run() -> None:
        with client_of(server) as client, rt.recording(path, lock_timeout=0.0):
            for name in "abc":
                with rt.trajectory(name) as trajectory:
                    ask(client)
                closed.append(trajectory)

    with pytest.raises(rt.WriteError, match=r"3 trajectories could not be written") as raised:
        run()
    os.close(holder)
    assert sorted((one for one, _ in raised.value.lost), key=lambda one: one.name) == closed
    assert raised.value.write(tmp_path / "other.jsonl") == 3
    assert sorted(rt.read(tmp_path / "other.jsonl"), key=lambda one: one.name) == closed
    assert sorted(rt.recover(path), key=lambda one: one.name) == closed


def test_what_only_the_journal_had_is_written_as_soon_as_the_file_can_be(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "JOURNALED_LIMIT", 30_000)
    monkeypatch.setattr(sink, "FIRST_RETRY", 0.0)
    path = tmp_path / "runs.jsonl"
    path.touch()
    recording = rt.recording(path, lock_timeout=0.0)
    with client_of(server) as client, recording:
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        for name in "abc":
            with rt.trajectory(name):
                ask(client)
        assert recording.flush(60)
        os.close(holder)
        assert recording._sink is not None
        monkeypatch.setattr(recording._sink, "_retry_at", 0.0)
        with rt.trajectory("d"):
            ask(client)
        assert recording.flush(60)
        assert [one.name for one in rt.read(path)] == ["a", "b", "c", "d"]


def test_what_memory_had_no_room_for_stays_in_the_journal_of_a_file_that_is_locked_to_the_end(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", 0)
    path = tmp_path / "runs.jsonl"
    path.touch()
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def run() -> None:
        with client_of(server) as client, rt.recording(path, lock_timeout=0.0), rt.trajectory("a"):
            ask(client)

    with pytest.raises(rt.WriteError, match=r"1 trajectory could not be written .* The journal has it:"):
        run()
    os.close(holder)
    assert [one.name for one in rt.recover(path, write=True)] == ["a"]
    assert [one.name for one in rt.read(path)] == ["a"]


def test_what_memory_had_no_room_for_is_written_from_the_journal(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", 65_000)
    path = tmp_path / "runs.jsonl"
    path.touch()
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    closed = []
    with client_of(server) as client, rt.recording(path, lock_timeout=0.0):
        for number in range(6):
            with rt.trajectory(str(number), metadata={"number": number}) as trajectory:
                ask(client, user="x" * 10_000)
                ask(client, user="y" * 10_000)
                with rt.tool_run("f") as run:
                    run.result = "done"
                trajectory.reward = float(number)
            closed.append(trajectory)
        os.close(holder)
    assert sorted(rt.read(path), key=lambda one: one.name) == closed
    assert caplog.messages[-1] == f"{path}: 6 trajectories could not be written at once: 6 were written later."
    assert sorted(os.listdir(tmp_path)) == ["runs.jsonl"]


def test_a_writer_of_ones_own_that_exits_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Exits:
        def write(self, trajectory: rt.Trajectory) -> None:
            raise SystemExit("no more")

    def run() -> None:
        with recording:
            for _ in range(2):
                with rt.trajectory():
                    pass

    recording = rt.recording(Exits())
    with caplog.at_level(logging.ERROR), pytest.raises((rt.WriteError, RuntimeError)):
        run()
    assert [type(cause) for _, cause in recording.lost] == [SystemExit, SystemExit]


@pytest.mark.parametrize("name", ["fsync", "lock_timeout", "mode", "media"])
def test_settings_of_files_are_refused_for_a_writer(name: str) -> None:
    values: dict[str, Any] = {"fsync": True, "lock_timeout": 1.0, "mode": 0o600, "media": "folder"}
    options: dict[str, Any] = {name: values[name]}
    make: Callable[..., Any] = rt.recording
    with pytest.raises(ValueError, match=r"works only with a path\. Give it to the writer"):
        make(Held(), **options)


def test_one_that_cannot_be_encoded_does_not_hold_up_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production(monkeypatch)
    path = tmp_path / "runs.jsonl"
    step = rt.Step(id="a.0", call_id="a", completion_token_ids=np.zeros(2, np.int32), logprobs=np.zeros(1, np.float32))
    bad = rt.Trajectory(name="bad", steps=[step])
    with rt.JSONLWriter(path, lock_timeout=0.0) as writer:
        target = sink.Sink(writer, str(path), close=lambda: None, redactor=Redactor())
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        for trajectory in (rt.Trajectory(name="first"), bad, rt.Trajectory(name="last")):
            target.write(Episode([trajectory]))
        os.close(holder)
        target.finish()
    assert [one.name for one in rt.read(path)] == ["first", "last"]
    assert [(one.name, type(cause)) for one, cause in target.lost] == [("bad", ValueError)]
    assert target.written_later == 2


def test_a_line_that_is_in_the_file_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fsync fails at the second attempt, on a disk that takes nothing back either."""
    in_production(monkeypatch)

    def refuse(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "runs.jsonl"
    with rt.JSONLWriter(path, lock_timeout=0.0, fsync=True) as writer:
        target = sink.Sink(writer, str(path), close=lambda: None, redactor=Redactor())
        holder = os.open(path, os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        target.write(Episode([rt.Trajectory(name="one")]))
        os.close(holder)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", refuse)
            patched.setattr(os, "ftruncate", refuse)
            monkeypatch.setattr(target, "_retry_at", 0.0)
            target.retry()
        target.finish()
    assert [one.name for one in rt.read(path)] == ["one"]
    assert target.lost == []


@pytest.mark.parametrize(("name", "value"), [("lock_timeout", -1.0), ("mode", 0o10000), ("mode", "rw"), ("media", "x")])
def test_settings_of_files_are_checked_when_they_are_given(name: str, value: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises((TypeError, ValueError)):
        rt.recording(tmp_path / "runs.jsonl", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_has_been_written_is_not_held_until_the_next_one_comes(tmp_path: Path) -> None:
    freed = threading.Event()
    with rt.recording(tmp_path / "rollouts.jsonl"):
        with rt.trajectory() as trajectory:
            pass
        weakref.finalize(trajectory, freed.set)
        del trajectory
        deadline = time.monotonic() + 30
        while not freed.wait(0.02) and time.monotonic() < deadline:
            gc.collect()
        assert freed.is_set()
