"""The writer: whole lines from any number of threads and processes, whatever else happens to the file."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import UserDict
from collections.abc import Callable, ItemsView
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter, Step, guard, read
from rollout_trace.record.write_queue import wait_for_all
from tests.amount import amount, some

SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst"]


@pytest.fixture(params=SUFFIXES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of each kind, which does not exist yet."""
    return tmp_path / f"rollouts{request.param}"


def written(*names: str, path: Path) -> None:
    with JSONLWriter(path) as out:
        for name in names:
            out.write(rt.Trajectory(name=name))


def names(path: Path) -> list[str]:
    return [trajectory.name for trajectory in read(path)]


def test_lines_are_appended_in_order_and_readable_at_once(path: Path) -> None:
    with JSONLWriter(path) as out:
        assert out.path == path
        assert names(path) == []
        for number in range(3):
            out.write(rt.Trajectory(name=str(number)))
            assert names(path) == [str(n) for n in range(number + 1)]
    written("3", path=path)
    assert names(path) == ["0", "1", "2", "3"]


def test_a_compressed_file_is_what_its_suffix_says(tmp_path: Path) -> None:
    import zstandard

    for suffix in SUFFIXES:
        written("a", "b", path=tmp_path / f"x{suffix}")
    plain = (tmp_path / "x.jsonl").read_bytes()
    assert len(plain.splitlines()) == 2
    assert json.loads(plain.splitlines()[0])["schema"] == "rollout-trace/1"
    unpacked = gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()).splitlines()
    assert [json.loads(line)["name"] for line in unpacked] == ["a", "b"]
    packed = (tmp_path / "x.jsonl.zst").read_bytes()
    unpacked = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read().splitlines()
    assert [json.loads(line)["name"] for line in unpacked] == ["a", "b"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "today" / "rollouts.jsonl"
    written("a", path=target)
    assert names(target) == ["a"]


@pytest.mark.parametrize("left", [b'{"schema":"rollout-trace/1","id":"x","na', b"x"])
def test_half_a_line_of_a_killed_writer_does_not_swallow_the_next(left: bytes, tmp_path: Path) -> None:
    target = tmp_path / "rollouts.jsonl"
    written("first", path=target)
    with target.open("ab") as file:
        file.write(left)
    written("second", "third", path=target)
    assert target.read_bytes().count(b"\n") == 4
    reader = read(target, on_error="skip")
    assert [trajectory.name for trajectory in reader] == ["first", "second", "third"]
    assert len(reader.skipped) == 1


def test_half_a_line_between_two_of_an_open_writer_does_not_swallow_the_second(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(id="first"))
        with path.open("ab") as other:
            other.write(b'{"schema": "rollout-tr')
        out.write(rt.Trajectory(id="second"))
        out.write(rt.Trajectory(id="third"))
    reader = rt.read(path, on_error="skip")
    assert [one.id for one in reader] == ["first", "second", "third"]
    assert len(reader.skipped) == 1
    assert b"\n\n" not in path.read_bytes()


@pytest.mark.parametrize("change", [list.pop, list.clear, lambda steps: steps.append(Step(id="new", call_id="new"))])
def test_a_list_of_steps_that_changes_while_it_is_written_loses_no_trajectory(
    change: Callable[[list[Step]], object], tmp_path: Path
) -> None:
    """A recording writes on its own thread, and the agent may change the list of a closed trajectory."""

    class Changing(UserDict[str, str]):
        def items(self) -> ItemsView[str, str]:
            change(trajectory.steps)
            return super().items()

    steps = [Step(id=name, call_id=name, messages=[Changing(role="user")]) for name in "ab"]
    trajectory = rt.Trajectory(id="t", steps=steps)
    with JSONLWriter(tmp_path / "out.jsonl") as out:
        out.write(trajectory)
    (read,) = rt.read(tmp_path / "out.jsonl")
    assert [step.id for step in read.steps] == ["a", "b"]


def test_half_a_line_in_a_file_of_the_old_length_does_not_swallow_the_next(tmp_path: Path) -> None:
    """The file was emptied by a rotation, and another writer was killed where it had grown to that length again."""
    path = tmp_path / "out.jsonl"
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(id="first"))
        whole = path.read_bytes()
        # In place: it remains the file that the writer has open.
        path.write_bytes(whole[:-1] + b" ")
        out.write(rt.Trajectory(id="second"))
    assert [one.id for one in rt.read(path)] == ["first", "second"]


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize("kept", [3, 12, -1])
def test_half_a_member_of_a_killed_writer_does_not_swallow_the_next(suffix: str, kept: int, tmp_path: Path) -> None:
    target, other = tmp_path / f"rollouts{suffix}", tmp_path / f"other{suffix}"
    written("first", path=target)
    # An id of its own choice: one member in 256 ends with the byte with which the next one begins, and is whole then.
    with JSONLWriter(other) as out:
        out.write(rt.Trajectory(id="0" * 24, name="lost"))
    with target.open("ab") as file:
        file.write(other.read_bytes()[:kept])
    written("second", "third", path=target)
    reader = read(target, on_error="skip")
    assert [trajectory.name for trajectory in reader if trajectory.name != "lost"] == ["first", "second", "third"]
    assert len(reader.skipped) >= 1


def test_an_open_trajectory_is_refused(tmp_path: Path) -> None:
    with JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        with rt.trajectory(name="solver") as trajectory:
            with pytest.raises(ValueError) as refused:
                out.write(trajectory)
        out.write(trajectory)
    assert str(refused.value) == (
        f"trajectory 'solver' ({trajectory.id}) is still open. "
        "Write it after its `with rt.trajectory(...)` block has ended."
    )
    assert names(tmp_path / "rollouts.jsonl") == ["solver"]


def test_logprobs_that_do_not_fit_the_ids_are_refused(tmp_path: Path) -> None:
    step = rt.Step(id="a.0", call_id="a", completion_token_ids=[1, 2, 3], logprobs=[-0.5])  # type: ignore[arg-type]
    with JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        with pytest.raises(
            ValueError, match=r"^step a\.0 has 3 completion ids and 1 logprobs: give one logprob for each id"
        ):
            out.write(rt.Trajectory(steps=[step]))
    assert names(tmp_path / "rollouts.jsonl") == []


@pytest.mark.parametrize("ids", [[], [1]])
def test_more_logprobs_than_ids_are_refused_too(ids: list[int], tmp_path: Path) -> None:
    facts: dict[str, Any] = {"prompt_token_ids": [4, 5], "completion_token_ids": ids, "logprobs": [-0.5, -0.25, -1.0]}
    with JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        with pytest.raises(ValueError, match=rf"^step a\.0 has {len(ids)} completion ids and 3 logprobs"):
            out.write(rt.Trajectory(steps=[rt.Step(id="a.0", call_id="a", **facts)]))
    assert names(tmp_path / "rollouts.jsonl") == []


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    out = JSONLWriter(tmp_path / "rollouts.jsonl")
    out.close()
    out.close()
    with pytest.raises(ValueError, match=r"^the writer of .*rollouts\.jsonl is closed"):
        out.write(rt.Trajectory())


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write stops in the middle; the file is then as it was, and takes the same line later."""
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    written("first", path=path)
    before = path.read_bytes()
    trajectory = rt.Trajectory(name="second")
    with JSONLWriter(path) as out:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(rt.WriteError, match=r"No space left on device\. The file is as it was") as refused:
                out.write(trajectory)
        assert trajectory.id in str(refused.value)
        assert path.read_bytes() == before
        out.write(trajectory)
    assert names(path) == ["first", "second"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_takes_each_line_in_one_write(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard.reset()
    real, pieces = os.write, []

    def write(file: int, data: bytes) -> int:
        pieces.append(bytes(data))
        return real(file, data)

    monkeypatch.setattr(fcntl, "flock", no_locks(number))
    monkeypatch.setattr(os, "write", write)
    written("first", "second", path=path)
    assert names(path) == ["first", "second"]
    assert b"".join(pieces) == path.read_bytes()
    assert len(pieces) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"the file system of {path} has no file locks ({os.strerror(number)})")


def test_without_locks_a_line_that_was_taken_in_part_is_told_and_cuts_off_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks(errno.ENOLCK))
    real: Callable[[int, bytes], int] = os.write
    trajectory = rt.Trajectory(name="second")
    written("first", path=path)
    before = path.read_bytes()
    with JSONLWriter(path) as out:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda file, data: real(file, data[:20]))
            with pytest.raises(
                rt.WriteError,
                match=r"only 20 of the \d+ bytes .* A part of its line is at the end .*\(20 of \d+ bytes\)",
            ):
                out.write(trajectory)
        assert path.read_bytes()[:-20] == before
        out.write(trajectory)
    reader = read(path, on_error="skip")
    assert [one.name for one in reader] == ["first", "second"]
    assert len(reader.skipped) == 1


def test_a_lock_that_fails_otherwise_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with JSONLWriter(path) as out, monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks(errno.EIO))
        with pytest.raises(rt.WriteError, match="Nothing of its line is in the file"):
            out.write(rt.Trajectory())
    assert names(path) == []


def no_locks(number: int) -> Callable[[int, int], None]:
    def flock(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def test_what_is_no_file_is_told_as_what_it_is(path: Path) -> None:
    os.mkfifo(path)
    for target, kind in ((path, "a named pipe"), (Path("/dev/full"), "a device")):
        with pytest.raises(OSError, match=rf"expected a file of lines, got {kind}: '{target}'$"):
            JSONLWriter(target)
        with pytest.raises(OSError, match=kind), rt.recording(target):
            pass
    with JSONLWriter(os.devnull) as out:
        out.write(rt.Trajectory())


def test_what_cannot_be_undone_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after the first bytes, and the file cannot be cut back either."""
    real: Callable[[int, bytes], int] = os.write

    def refuse(*_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    def full(file: int, data: bytes) -> int:
        real(file, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with JSONLWriter(path) as out, monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(
            rt.WriteError, match=r"No space left on device\. A part of its line is at the end of the file \(5 of"
        ):
            out.write(rt.Trajectory())


def test_ctrl_c_during_a_write_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording's thread goes on, whether the main thread is in the agent or waits for the recording's end."""
    real: Callable[[int, bytes], int] = os.write
    interrupts = [signal.SIGINT]

    def interrupted(file: int, data: bytes) -> int:
        while interrupts:
            os.kill(os.getpid(), interrupts.pop())
        return real(file, data[:5])

    def run() -> None:
        with recording:
            with rt.trajectory("whole"):
                pass
            recording.flush()
            monkeypatch.setattr(os, "write", interrupted)
            with rt.trajectory("parent"):
                with rt.trajectory("child"):
                    pass

    recording = rt.recording(path, journal=False)
    with pytest.raises(KeyboardInterrupt):
        run()
    wait_for_all(time.monotonic() + 60)
    assert recording.lost == []
    assert names(path) == ["whole", "parent", "child"]


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[int, bytes], int] = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    written("a", "b", path=path)
    assert names(path) == ["a", "b"]


def test_fsync_is_asked_for_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "fsync", asked.append)
    with JSONLWriter(tmp_path / "rollouts.jsonl", fsync=True) as out:
        out.write(rt.Trajectory())
        out.write(rt.Trajectory())
    assert len(asked) == 2


def test_a_file_that_was_removed_is_begun_anew(path: Path) -> None:
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(name="a"))
        path.unlink()
        out.write(rt.Trajectory(name="b"))
        out.write(rt.Trajectory(name="c"))
    assert names(path) == ["b", "c"]


def test_a_writer_can_be_sent_to_another_process(path: Path) -> None:
    with JSONLWriter(path, fsync=True) as out, pickle.loads(pickle.dumps(out)) as sent:
        out.write(rt.Trajectory(name="a"))
        sent.write(rt.Trajectory(name="b"))
    assert repr(sent) == repr(out)
    assert names(path) == ["a", "b"]


WORKER = """
import sys, threading
import rollout_trace as rt
from rollout_trace import JSONLWriter

path, process, threads, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
out = JSONLWriter(path)
print(flush=True)
sys.stdin.readline()  # Until all processes are here.

def work(thread):
    for number in range(each):
        name = f"{process}-{thread}-{number}"
        steps = [rt.Step(id=name, call_id=name, messages=[{"content": name * (50 * (number % 7))}])]
        out.write(rt.Trajectory(name=name, steps=steps))

running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
for thread in running:
    thread.start()
for thread in running:
    thread.join()
"""


@pytest.mark.parametrize("path", some(SUFFIXES, ".jsonl.gz"), indirect=True)
@pytest.mark.amount
def test_processes_of_eight_threads_write_one_file(path: Path) -> None:
    processes = amount(2, 8, 8)
    command = [sys.executable, "-c", WORKER, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen([*command, str(n), "8", "12"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        for n in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"\n"
    for worker in workers:
        worker.communicate(b"\n", timeout=120)
    assert [worker.returncode for worker in workers] == [0] * processes
    found = list(read(path))
    assert sorted(one.name for one in found) == sorted(
        f"{process}-{thread}-{number}" for process in range(processes) for thread in range(8) for number in range(12)
    )
    for trajectory in found:
        (step,) = trajectory.steps
        number = int(trajectory.name.rpartition("-")[2])
        assert step.messages == [{"content": trajectory.name * (50 * (number % 7))}]


FORK = """
import os, sys, warnings
import rollout_trace as rt
from rollout_trace import JSONLWriter

warnings.simplefilter("ignore")
out = JSONLWriter(sys.argv[1])
out.write(rt.Trajectory(name="before"))
out._lock.acquire()  # As if another thread were in the middle of a line at the moment of the fork.
child = os.fork()
if child == 0:
    for number in range(200):
        out.write(rt.Trajectory(name=f"child-{number}"))
    os._exit(0)
out._lock.release()
for number in range(200):
    out.write(rt.Trajectory(name=f"parent-{number}"))
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_writes_with_a_lock_of_its_own(tmp_path: Path) -> None:
    target = tmp_path / "rollouts.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", FORK, str(target)], check=True, timeout=120, env=environment)
    expected = ["before", *(f"{who}-{number}" for who in ("child", "parent") for number in range(200))]
    assert sorted(names(target)) == sorted(expected)


def test_without_zstandard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "rollouts.jsonl.zst"
    written("a", path=target)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    expected = (
        f"{target} is compressed with zstd, which needs the package zstandard. Install it with: pip install zstandard"
    )
    with pytest.raises(ImportError) as refused:
        JSONLWriter(target)
    assert str(refused.value) == expected
    with pytest.raises(ImportError) as refused:
        names(target)
    assert str(refused.value) == expected


def test_without_any_file_locks_the_package_still_works(tmp_path: Path) -> None:
    """As on Windows, which has no fcntl, if somebody installed the package without what it needs."""
    program = """
import sys
import time
sys.modules["fcntl"] = sys.modules["filelock"] = None
import rollout_trace as rt
with rt.JSONLWriter("rollouts.jsonl") as out:
    out.write(rt.Trajectory(name="a"))
    out.write(rt.Trajectory(name="b"))
print(*(trajectory.name for trajectory in rt.read("rollouts.jsonl")))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("this system locks files with the package filelock, which is not installed (pip install")
    assert done.stdout == "a b\n"
