"""``rt.recording(path, writer="process")``: the lines are those that the thread would write, whoever is killed."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.record import call as call_module
from rollout_trace.record import decoder
from rollout_trace.record import log as log_module
from rollout_trace.record.call_steps import recorded_steps
from rollout_trace.record.decoder import drain, pending
from rollout_trace.record.frames import ModelFrame
from rollout_trace.record.log import StepLog
from rollout_trace.record.sink import Sink
from rollout_trace.record.state import Episode, Member, log_of
from rollout_trace.record.writer_process import WriterProcess
from rollout_trace.testing import Reply, ScriptedServer, ToolCall

from .journaled import ask, sdk, talk
from .test_round_trip import SCENARIOS

pytestmark = pytest.mark.processes
PRICES = rt.PriceTable({"m": rt.Price(1.0, 2.0)})


@pytest.fixture
def by_thread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the trajectories that this process writes itself."""
    found: list[str] = []
    plain = Sink.write_one

    def write_one(sink: Sink, member: Member) -> None:
        found.append(member.trajectory.name)
        plain(sink, member)

    monkeypatch.setattr(Sink, "write_one", write_one)
    return found


def process_of(recording: rt.recording) -> Any:
    """The recording's writer process."""
    queue = recording._queue
    assert queue is not None
    return queue._process


def assert_lines(path: Path, recorded: list[rt.Trajectory]) -> None:
    """The file has a line for each, and it is the one that is made of the trajectory here."""
    lines = {rt_id(line): line for line in path.read_text().splitlines()}
    read = {one.id: one for one in rt.read(path)}
    assert set(lines) == {one.id for one in recorded}
    for one in recorded:
        assert read[one.id] == one, one.name
        # Of calls that were made at once, the segments of ids are in the order in which they ended.
        if one.name != "threads":
            assert lines[one.id] == one.to_json(), one.name


def rt_id(line: str) -> str:
    return line.split('"id":"', 1)[1].split('"', 1)[0]


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [(1.0, decoder.PENDING_LIMIT), (0.0, decoder.PENDING_LIMIT), (1.0, 0)],
    ids=["at the end", "in flight", "set aside"],
)
def test_lines_are_those_of_the_thread(
    seconds: float, limit: int, by_thread: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", seconds)
    # With 0 no bytes wait in memory: what is compared here was read in the journal again.
    monkeypatch.setattr(decoder, "PENDING_LIMIT", limit)
    path, recorded = tmp_path / "out.jsonl", []
    with rt.recording(path, writer="process", prices=PRICES):
        for name, (script, scenario) in SCENARIOS.items():
            with ScriptedServer(script) as server, rt.trajectory(name, task="t", metadata={"k": [1]}) as trajectory:
                scenario(server)
                trajectory.reward = 0.25
                # Read now: it has the packages that are imported by then.
                assert trajectory.environment
            recorded.append(trajectory)
    # A call that another thread decodes while it is being written to the journal is there as steps.
    assert set(by_thread) <= ({"threads"} if limit == 0 else set())
    assert_lines(path, recorded)
    assert all(one.steps for one in rt.read(path))
    assert not os.path.exists(f"{path}.journal")


def test_families_tools_and_rewards(by_thread: list[str], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    script: list[Any] = [Reply(None, [ToolCall("add", '{"a": 1}')]), *["done"] * 3]
    rt.environment(policy_version="step-1")
    with ScriptedServer(script) as server, rt.recording(path, writer="process", prices=PRICES):
        client = sdk(server)
        with rt.trajectory("outer", task={"id": 1, "half": "\ud83d", "big": 2**70}) as outer:
            answer = ask(client)
            (called,) = answer.choices[0].message.tool_calls
            with rt.tool_run("add", tool_call_id=called.id, arguments={"a": 1}) as run:
                run.result = {"sum": 1}
            with rt.trajectory("inner") as inner:
                ask(client)
            rt.reward(0.5, children=True)
            talk(client, 2)
            outer.metrics = {"turns": 3}
    assert by_thread == []
    assert_lines(path, [outer, inner])
    read = {one.name: one for one in rt.read(path)}
    assert read["outer"].tool_runs[0].step_id == read["outer"].steps[0].id
    assert read["outer"].environment is not None
    assert read["outer"].environment["policy_version"] == "step-1"
    assert read["outer"].environment["prices"]
    assert (read["inner"].reward, read["inner"].parent_id) == (0.5, outer.id)


def test_what_needs_the_steps_is_written_here(by_thread: list[str], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ScriptedServer("ok") as server, rt.recording(path, writer="process"):
        client = sdk(server)
        with rt.trajectory("looked at") as looked:
            ask(client)
            looked.steps[0].reward = 2.0
        with rt.trajectory("of a framework") as framed, ModelFrame("tiny", metadata={"node": 1}):
            ask(client)
        with rt.trajectory("empty") as empty:
            pass
        with rt.trajectory("plain") as plain:
            ask(client)
    assert by_thread == ["looked at", "of a framework", "empty"]
    assert_lines(path, [looked, framed, empty, plain])
    assert [one.steps[0].reward for one in rt.read(path) if one.name == "looked at"] == [2.0]


def test_rules_leave_nothing_to_the_process(by_thread: list[str], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    recording = rt.recording(path, writer="process", redact="secret")
    with ScriptedServer("a secret") as server, recording:
        assert process_of(recording) is None
        with rt.trajectory("one"):
            ask(sdk(server))
    assert by_thread == ["one"]
    assert b"secret" not in path.read_bytes()


def test_keys_are_cut_out_of_what_a_model_says(by_thread: list[str], tmp_path: Path) -> None:
    """Also where a stream has one in pieces, which the journal keeps as they came."""
    path, key = tmp_path / "out.jsonl", "sk-0123456789abcdef"
    with ScriptedServer(f"{key[:9]} {key[9:]}|{key}|") as server, rt.recording(path, writer="process"):
        with openai.OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
            rt.wrap_openai(client)
            with rt.trajectory("stream") as trajectory:
                for _ in ask(client, stream=True):
                    pass
    assert by_thread == []
    assert key.encode() not in path.read_bytes()
    assert b"[redacted]" in path.read_bytes()
    assert_lines(path, [trajectory])


def test_what_the_process_says_is_logged_and_counted_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rt_before = rt.stats()
    told: list[str] = []
    with ScriptedServer("ok") as server:
        for writer, calls in (("process", 1), ("process", 2), ("thread", 3)):
            with (
                rt.recording(tmp_path / f"{calls}.jsonl", writer=writer),  # type: ignore[arg-type]
                rt.trajectory("without ids"),
            ):
                for _ in range(calls):
                    ask(sdk(server), logprobs=False, extra_body={})
    # Once, whichever process says it.
    told = [one for one in caplog.messages if "hold no token ids" in one]
    assert len(told) == 1
    assert rt.stats().trajectories_written - rt_before.trajectories_written == 3
    assert rt.stats().recorder_errors == rt_before.recorder_errors


def test_shards(by_thread: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    with (
        ScriptedServer("ok") as server,
        rt.recording(f"{folder}/", writer="process", compression="gz", shard_bytes=1, shard_seconds=float("inf")),
    ):
        recorded = []
        for number in range(3):
            with rt.trajectory(f"{number}") as trajectory:
                ask(sdk(server))
            recorded.append(trajectory)
    assert by_thread == []
    assert len(list(folder.glob("part-*.jsonl.gz"))) == 3
    assert sorted(rt.read(folder), key=lambda one: one.name) == recorded
    assert not (folder / ".journal").exists()


def test_a_stream_that_is_read_after_its_trajectory(by_thread: list[str], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    recording = rt.recording(path, writer="process")
    with ScriptedServer("one two three") as server, recording:
        with rt.trajectory("read") as read:
            chunks = ask(sdk(server), stream=True)
        with rt.trajectory("left") as left:
            rest = ask(sdk(server), stream=True)
        for _ in chunks:
            pass
        assert recording.flush(60)
        assert [one.name for one in rt.read(path)] == ["read"]
    rest.close()
    assert by_thread == []
    assert_lines(path, [read, left])
    assert [one.steps[0].status for one in rt.read(path)] == ["ok", "abandoned"]


def test_flush_waits_for_the_process(by_thread: list[str], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    recording = rt.recording(path, writer="process")
    with ScriptedServer("ok") as server, recording:
        client = sdk(server)
        for number in range(20):
            with rt.trajectory(f"{number}"):
                ask(client)
        assert recording.flush(60)
        assert len(list(rt.read(path))) == 20
        assert recording.backlog == 0
    assert by_thread == []


def test_nothing_is_kept_of_what_is_written(tmp_path: Path) -> None:
    recording = rt.recording(tmp_path / "out.jsonl", writer="process")
    # Other tests may have left some, which are theirs.
    drain()
    before = set(pending._sizes)
    with ScriptedServer("ok") as server, recording:
        client = sdk(server)
        for _ in range(5):
            with rt.trajectory():
                ask(client)
        with rt.trajectory() as kept:
            ask(client)
        assert recording.flush(60)
        gc.collect()
        drain()
        assert len(set(pending._sizes) - before) == 1
        # Of the one that somebody has, the steps can be read.
        assert kept.steps[0].completion is not None
        assert not set(pending._sizes) - before


def test_bytes_that_wait_are_in_the_journal_alone(
    by_thread: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the limit no call is decoded here, unless somebody reads its steps; then it is read in the journal."""
    monkeypatch.setattr(decoder, "PENDING_LIMIT", 0)
    decoded: list[int] = []
    plain = StepLog.take_back

    def take_back(log: StepLog) -> None:
        decoded.append(log.size)
        plain(log)

    monkeypatch.setattr(StepLog, "take_back", take_back)
    path, recorded = tmp_path / "out.jsonl", []
    recording = rt.recording(path, writer="process")
    with ScriptedServer("some words") as server:
        # What decoding imports can be imported only where there are descriptors.
        with rt.trajectory() as first:
            ask(sdk(server))
        assert first.steps
    with ScriptedServer("some words") as server, recording:
        client = sdk(server)

        def agent(name: str) -> None:
            with rt.trajectory(name) as trajectory:
                talk(client, 4)
                log = log_of(trajectory)
                assert log is not None
                assert all(call.steps is None and not call.size() for call in log.calls[:-1])

        agent("not kept")
        assert recording.flush(60)
        assert (by_thread, decoded) == ([], [])
        with rt.trajectory("looked at") as looked:
            talk(client, 3)
            # Another program deletes what is read, and that is noticed.
            for file in Path(f"{path}.journal").iterdir():
                file.unlink()
            recording.journal.files.epoch += 1  # type: ignore[union-attr]
            looked.reward = 1.0
            # Nor is there a free descriptor. The first three are taken; with a limit below them the server's thread
            # could not poll its own.
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                steps = looked.steps
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert [len(step.messages or ()) for step in steps] == [1, 3, 5]
            assert all(step.token_issue is None for step in looked.steps)
        recorded.append(looked)
        process = process_of(recording)
        os.kill(process.pid, signal.SIGSTOP)
        with rt.trajectory("given back") as given:
            talk(client, 3)
        recorded.append(given)
        os.kill(process.pid, signal.SIGKILL)
    assert by_thread == ["looked at", "given back"]
    (name,) = {one.name for one in rt.read(path)} - {"looked at", "given back"}
    assert name == "not kept"
    lines = {one.id: one for one in rt.read(path)}
    for one in recorded:
        assert lines[one.id] == one
        assert all(step.token_issue is None for step in one.steps)


def test_a_process_that_is_killed(by_thread: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, recorded = tmp_path / "out.jsonl", []
    recording = rt.recording(path, writer="process")
    with ScriptedServer("ok") as server, recording:
        client, process = sdk(server), process_of(recording)
        for number in range(12):
            with rt.trajectory(f"{number}") as trajectory:
                ask(client)
            recorded.append(trajectory)
            if number == 2:
                assert recording.flush(60)
                # What it was given after that, it never looks at.
                os.kill(process.pid, signal.SIGSTOP)
            if number == 6:
                os.kill(process.pid, signal.SIGKILL)
    assert by_thread == [f"{number}" for number in range(3, 12)]
    assert_lines(path, recorded)
    (told,) = [one for one in caplog.messages if "has ended" in one]
    assert f"the writer process {process.pid} has ended (code -9)" in told
    assert not os.path.exists(f"{path}.journal")


def test_lines_that_a_killed_process_has_written_are_not_doubled(
    by_thread: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed, hand_over = threading.Semaphore(0), WriterProcess.hand_over

    def told(process: WriterProcess, episode: Episode, *, wait: bool) -> bool:
        is_handed = hand_over(process, episode, wait=wait)
        if is_handed:
            handed.release()
        return is_handed

    path = tmp_path / "out.jsonl"
    recording = rt.recording(path, writer="process")
    with ScriptedServer("ok") as server, recording:
        process = process_of(recording)
        monkeypatch.setattr(WriterProcess, "hand_over", told)
        with rt.trajectory("first") as first:
            ask(sdk(server))
        assert recording.flush(60)
        os.kill(process.pid, signal.SIGSTOP)
        with rt.trajectory("second") as second:
            ask(sdk(server))
        with rt.trajectory("third") as third:
            ask(sdk(server))
        # Not before: whoever reads their steps has them written here.
        assert all(handed.acquire(timeout=60) for _ in range(3))
        # As if it had written the second, and a part of the third, before it could say so.
        with path.open("a") as file:
            file.write(second.to_json() + "\n" + third.to_json()[:500])
        os.kill(process.pid, signal.SIGKILL)
    assert by_thread == ["third"]
    assert_lines(path, [first, second, third])


def test_a_file_that_is_locked(by_thread: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again here, and kept; the process is given none before the file can be written."""
    path = tmp_path / "out.jsonl"
    recording = rt.recording(path, writer="process", lock_timeout=0.0)
    with ScriptedServer("ok") as server, recording:
        recorded = []
        with path.open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for number in range(3):
                with rt.trajectory(f"{number}") as trajectory:
                    ask(sdk(server))
                recorded.append(trajectory)
            assert recording.flush(60)
    assert by_thread == ["0", "1", "2"]
    assert_lines(path, recorded)
    (told,) = [one for one in caplog.messages if "could not be written at once" in one]
    assert "3 were written later" in told
    assert recording.lost == []


def test_a_process_that_cannot_be_started(
    by_thread: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with ScriptedServer("ok") as server, rt.recording(tmp_path / "out.jsonl", writer="process"):
        with rt.trajectory("one") as one:
            ask(sdk(server))
    assert by_thread == ["one"]
    assert_lines(tmp_path / "out.jsonl", [one])
    (told,) = [message for message in caplog.messages if "writer process" in message]
    assert "cannot be started (FileNotFoundError" in told


def test_a_program_that_closes_the_pipes(by_thread: list[str], tmp_path: Path) -> None:
    path, recorded = tmp_path / "out.jsonl", []
    recording = rt.recording(path, writer="process")
    with ScriptedServer("ok") as server, recording:
        client, process = sdk(server), process_of(recording)._process
        for number in range(3):
            with rt.trajectory(f"{number}") as trajectory:
                ask(client)
            recorded.append(trajectory)
            if not number:
                with open(os.devnull, "r+b") as nothing:
                    # As closing it does, but that nobody else gets its number.
                    os.dup2(nothing.fileno(), process.stdin.fileno())
    assert_lines(path, recorded)


def test_a_journal_that_is_deleted_meanwhile(by_thread: list[str], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    recording = rt.recording(path, writer="process")
    with ScriptedServer("ok") as server, recording:
        with rt.trajectory("one") as one:
            ask(sdk(server))
            for file in Path(f"{path}.journal").iterdir():
                file.unlink()
    assert by_thread == ["one"]
    assert_lines(path, [one])


def test_two_recordings_inside_each_other_and_two_on_one_file(by_thread: list[str], tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    recorded: dict[Path, list[rt.Trajectory]] = {a: [], b: []}

    def agent(number: int, path: Path) -> None:
        with rt.trajectory(f"{number}") as trajectory:
            ask(client)
        recorded[path].append(trajectory)

    with ScriptedServer("ok") as server, ThreadPoolExecutor(8) as pool:
        client = sdk(server)
        with rt.recording(a, writer="process"):
            waiting = [pool.submit(rt.propagate(agent), number, a) for number in range(10)]
            with rt.recording(b, writer="process"), rt.recording(a, writer="process"):
                waiting += [pool.submit(rt.propagate(agent), number, a) for number in range(10, 20)]
                for one in waiting:
                    one.result()
            with rt.recording(b, writer="process"):
                for one in [pool.submit(rt.propagate(agent), number, b) for number in range(20, 25)]:
                    one.result()
    assert by_thread == []
    for path in (a, b):
        assert_lines(path, recorded[path])


def test_a_fork_writes_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ScriptedServer("ok") as server, rt.recording(path, writer="process"):
        with rt.trajectory("before"):
            ask(sdk(server))
        pid = os.fork()
        if not pid:
            code = 1
            try:
                with rt.trajectory("in the fork"):
                    ask(sdk(server))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        with rt.trajectory("after"):
            ask(sdk(server))
    assert sorted(one.name for one in rt.read(path)) == ["after", "before", "in the fork"]


_PROGRAM = """
import os, signal, sys
import openai
import rollout_trace as rt

client = rt.wrap_openai(openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0))
asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
with rt.recording(sys.argv[2], writer="process", prices=rt.PriceTable({"m": rt.Price(1, 2)})):
    for number in range(5):
        with rt.trajectory(f"{number}"):
            client.chat.completions.create(**asked)
    if sys.argv[3] == "fork" and not os.fork():
        signal.pause()
    with rt.trajectory("open"):
        client.chat.completions.create(**asked)
        if sys.argv[3] == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["kill", "exit", "fork"])
def test_a_parent_that_is_killed_leaves_nothing_to_recover(how: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ScriptedServer("ok") as server:
        program = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, server.base_url, str(path), how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        if how == "fork":
            # The fork, which goes on, holds nothing that the process waits for.
            assert program.stderr is not None
            assert program.wait() == -signal.SIGKILL
            told = program.stderr.readline()
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
        else:
            # Until its writer process has ended too, which has its standard error.
            told = program.communicate()[1]
            assert program.returncode == (0 if how == "exit" else -signal.SIGKILL)
    assert "ended without closing its recording" in told
    assert "1 of them as 'aborted'" in told
    read = {one.name: one for one in rt.read(path)}
    assert {name: one.status for name, one in read.items()} == {
        **{f"{number}": "completed" for number in range(5)},
        "open": "aborted",
    }
    assert all(len(one.steps) == 1 for one in read.values())
    assert all(one.steps[0].cost is not None for one in read.values())
    assert not os.path.exists(f"{path}.journal")
    assert rt.recover(path).report.is_clean


def test_a_call_that_ends_while_its_trajectory_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes the trajectory and the recording's thread both would: one does."""
    plain = Episode.on_call_end

    def on_call_end(episode: Episode, callback: Callable[[], object]) -> None:
        plain(episode, callback)
        callback()

    monkeypatch.setattr(Episode, "on_call_end", on_call_end)
    path, calls = tmp_path / "out.jsonl", 40
    with ScriptedServer(["yes"] * calls) as server, rt.recording(path, writer="process"):
        for number in range(calls):
            with rt.trajectory(f"t{number}"):
                ask(sdk(server), "q")
    assert sorted(one.name for one in rt.read(path)) == sorted(f"t{number}" for number in range(calls))


def test_ctrl_c_while_bytes_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "PENDING_LIMIT", 0)
    asked = []

    def interrupted(call: Any, *more: Any) -> Any:
        asked.append(call)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return recorded_steps(call, *more)

    path = tmp_path / "out.jsonl"
    with ScriptedServer(["a", "b", "c", "d"]) as server, rt.recording(path, writer="process"):
        with rt.trajectory("t") as trajectory:
            for number in range(4):
                ask(sdk(server), f"q{number}")
                drain()
            monkeypatch.setattr(log_module, "recorded_steps", interrupted)
            with pytest.raises(KeyboardInterrupt):
                _ = trajectory.steps
            monkeypatch.setattr(log_module, "recorded_steps", recorded_steps)
            here = [step.completion and step.completion.content for step in trajectory.steps]
    # Only the one in whose middle it came is without its answer.
    assert [here[0], *here[2:]] == ["a", "c", "d"]
    (read,) = rt.read(path)
    assert [step.completion and step.completion.content for step in read.steps] == here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"writer": "threads"}, 'writer is \'threads\'; it can be "thread" or "process".'),
        ({"writer": None}, "writer is None"),
        ({"writer": "process", "journal": False}, 'writer="process" needs the journal'),
        ({"writer": "process", "target": "s3://bucket/run"}, "for a file or folder of this machine"),
        ({"writer": "process", "target": rt.JSONLWriter}, "for a file or folder of this machine"),
    ],
)
def test_what_cannot_be_asked_for(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    target: Any = arguments.pop("target", tmp_path / "out.jsonl")
    if target is rt.JSONLWriter:
        target = rt.JSONLWriter(tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match="writer") as raised:
        rt.recording(target, **arguments)
    assert message in str(raised.value)


@pytest.fixture(autouse=True)
def plain_environment() -> Iterator[None]:
    yield
    rt.environment(policy_version=None)
    logging.getLogger("rollout_trace").setLevel(logging.NOTSET)
