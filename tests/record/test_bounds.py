"""What waits to be written, or cannot be, is bounded by the bytes that it takes: those of users and frameworks too."""

from __future__ import annotations

import fcntl
import gc
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pydantic
import pytest

import rollout_trace as rt
from rollout_trace.integration import ModelFrame
from rollout_trace.record import sink
from rollout_trace.record.decoder import held_bytes
from rollout_trace.record.state import log_of
from rollout_trace.testing import ScriptedServer
from tests.amount import some

LIMIT = 1_000_000
EACH = 50_000


@dataclass
class Result:
    text: str


class Answer(pydantic.BaseModel):
    text: str


def text() -> str:
    return os.urandom(EACH // 2).hex()


def with_metadata(trajectory: rt.Trajectory) -> None:
    trajectory.metadata = {"page": [text()]}


def with_task(trajectory: rt.Trajectory) -> None:
    trajectory.task = rt.Task(id="t", data={"question": text()})


def with_tool_run(_: rt.Trajectory) -> None:
    with rt.tool_run("look", arguments={"what": text()}):
        pass


def with_result(_: rt.Trajectory) -> None:
    with rt.tool_run("look") as run:
        run.result = {"found": (text(),)}


def with_record(_: rt.Trajectory) -> None:
    with rt.tool_run("look") as run:
        run.result = Result(text())


def with_model(_: rt.Trajectory) -> None:
    with rt.tool_run("look") as run:
        run.result = [Answer(text=text())]


def with_messages(_: rt.Trajectory) -> None:
    frame = ModelFrame("a-framework", messages=[{"role": "user", "content": text()}])
    frame.answered({"completion": rt.Completion(content="hi")})
    frame.end()


def with_answer(_: rt.Trajectory) -> None:
    frame = ModelFrame("a-framework", messages=[{"role": "user", "content": "hi"}])
    frame.answered({"completion": rt.Completion(content=text())})
    frame.end()


def with_child(_: rt.Trajectory) -> None:
    with rt.trajectory("child", metadata={"page": text()}):
        pass


KINDS: list[Callable[[rt.Trajectory], None]] = [
    with_metadata, with_task, with_tool_run, with_result, with_record, with_model, with_messages, with_answer,
    with_child,
]  # fmt: skip


def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    # Under pytest the guard raises what it keeps from the agent otherwise.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


@pytest.mark.parametrize("journal", [False, True], ids=["no journal", "journal"])
@pytest.mark.parametrize("put", some(KINDS, *KINDS[::4]), ids=lambda put: put.__name__)
def test_memory_grows_no_further_while_a_file_cannot_be_written(
    put: Callable[[rt.Trajectory], None], journal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", LIMIT)
    monkeypatch.setattr(sink, "FIRST_RETRY", 3600.0)
    path = tmp_path / "runs.jsonl"
    path.touch()
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    recording = rt.recording(path, journal=journal, lock_timeout=0.0)
    grown, names = 0, []

    def run() -> None:
        nonlocal grown
        with recording:
            for number in range(60):
                if number == 10:
                    # All is imported, and what is made once is made.
                    assert recording.flush(60)
                    gc.collect()
                    tracemalloc.start()
                with rt.trajectory(f"{number}", metadata={}) as trajectory:
                    put(trajectory)
                names.append(trajectory.name)
                del trajectory
            assert recording.flush(60)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            os.close(holder)

    if journal:
        run()
        # Nothing is lost for it.
        assert sorted(one.name for one in rt.read(path) if one.name != "child") == sorted(names)
    else:
        with pytest.raises(rt.WriteError, match="had no room in memory"):
            run()
    assert grown < 1.3 * LIMIT


def test_what_a_writer_of_ones_own_refuses_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", LIMIT)

    class Refuses:
        def write(self, trajectory: rt.Trajectory) -> None:
            raise ValueError("not this one")

    recording = rt.recording(Refuses())

    def run() -> None:
        with recording:
            for number in range(40):
                with rt.trajectory(f"{number}", metadata={"page": text()}):
                    pass

    before = rt.stats().trajectories_lost
    with pytest.raises(rt.WriteError, match="more had no room in memory") as raised:
        run()
    assert 10 < len(recording.lost) < 20
    assert len(raised.value.lost) == len(recording.lost)
    assert rt.stats().trajectories_lost == before + 40


def test_the_same_object_is_counted_once() -> None:
    page = text()
    turns = [{"role": "user", "content": page}]
    seen: set[int] = set()
    first = held_bytes([turns], seen)
    assert EACH < first < EACH + 1000
    assert held_bytes([turns, [*turns, {"role": "user", "content": page}]], seen) < 500
    loop: list[Any] = [page]
    loop.append(loop)
    assert held_bytes([loop], set()) < EACH + 1000


def test_arrays_count_with_what_they_hold() -> None:
    array = np.zeros(100_000, np.float32)
    assert held_bytes([array], set()) >= 400_000
    assert held_bytes([array[:]], set()) >= 400_000


def test_no_object_of_a_users_fails_it() -> None:
    class Odd:
        def __sizeof__(self) -> int:
            raise RuntimeError("no")

        @property
        def nbytes(self) -> int:
            raise RuntimeError("no")

    assert held_bytes([Odd(), Odd, {Odd(): object()}], set()) > 0


def test_the_messages_that_each_reported_call_repeats_are_counted_once() -> None:
    messages = [{"role": "user", "content": text()}]
    with rt.trajectory() as trajectory:
        for _ in range(20):
            frame = ModelFrame("a-framework", messages=list(messages))
            frame.answered({"completion": rt.Completion(content="hi")})
            frame.end()
        log = log_of(trajectory)
        assert log is not None
        assert EACH < log.size_in_memory() < 2 * EACH


def test_there_is_room_again_once_what_was_kept_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_production(monkeypatch)
    monkeypatch.setattr(sink, "KEEP_LIMIT", 100_000)
    path = tmp_path / "runs.jsonl"
    path.touch()
    recording = rt.recording(path, lock_timeout=0.0, journal=False)
    with recording:
        for name in "abc":
            holder = os.open(path, os.O_RDWR)
            fcntl.flock(holder, fcntl.LOCK_EX)
            with rt.trajectory(name, metadata={"page": text()}):
                pass
            assert recording.flush(60)
            assert recording._sink is not None
            # It is kept, although those before it together would leave no room.
            assert (len(recording._sink._kept), len(recording._sink.dropped)) == (1, 0)
            os.close(holder)
            monkeypatch.setattr(recording._sink, "_retry_at", 0.0)
            recording._sink.retry()
    assert [one.name for one in rt.read(path)] == ["a", "b", "c"]
    assert recording.lost == []


def test_a_family_that_waited_for_its_stream_leaves_the_queue_once() -> None:
    written: list[rt.Trajectory] = []

    class Target:
        def write(self, trajectory: rt.Trajectory) -> None:
            written.append(trajectory)

    recording = rt.recording(Target())
    with ScriptedServer("a long answer") as server, recording:
        with rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none")) as client:
            with rt.trajectory():
                stream = client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
            assert recording.flush(60)
            # It waits for its stream, and is not in the way of others.
            assert (len(written), recording.backlog) == (0, 0)
            for _ in stream:
                pass
        assert recording.flush(60)
        assert (len(written), recording.backlog) == (1, 0)


MANY_ORPHANS = """
import logging
import rollout_trace as rt
from rollout_trace.clients import recorder
from rollout_trace.record.settings import Settings

logging.disable()
for _ in range(1001):
    recorder.ended(recorder.begin(Settings(lambda method, path: None), "openai.chat"))
assert (len(rt.orphans()), rt.stats().orphans_dropped) == (1000, 1)
"""


@pytest.mark.processes
def test_orphans_of_a_new_process_are_bounded() -> None:
    """As it is documented. Each test has orphans of its own: those of the module are seen in a process alone."""
    from tests.file.processes import run

    run(MANY_ORPHANS)
