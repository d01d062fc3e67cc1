"""Locks between processes: waited for with a limit, of both kinds, and what is told when one is not free in time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter, read
from rollout_trace.file import locking
from tests.amount import amount, some
from tests.file.processes import FLOCK, LOCK_FILE, Holder, environment, run, stopped_holder
from tests.file.test_writer import SUFFIXES, WORKER, names, written

has_filelock = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import filelock"], capture_output=True).returncode != 0,
    reason="filelock is not installed",
)
KINDS = ["flock", pytest.param("lock file", marks=has_filelock)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of lock: a system's own, or that of Windows, which the library uses where there is no fcntl."""
    kind: str = request.param
    if kind != "flock":
        monkeypatch.setattr(locking, "fcntl", None)
    return kind


class Clock:
    """The module ``time`` of the waiting loop, with pauses in which something happens."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep
        self.monotonic = time.monotonic


@pytest.fixture(params=SUFFIXES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"rollouts{request.param}"


@pytest.fixture
def holder(path: Path, kind: str) -> Iterator[Holder]:
    """A stopped process that holds the lock of a file with one line."""
    written("first", path=path)
    with stopped_holder(path, FLOCK if kind == "flock" else LOCK_FILE) as holder:
        yield holder


def test_a_stopped_process_is_waited_for_no_longer_than_asked(path: Path, kind: str, holder: Holder) -> None:
    before, trajectory = path.read_bytes(), rt.Trajectory(name="second")
    with JSONLWriter(path, lock_timeout=0.01) as out:
        with pytest.raises(rt.WriteError) as refused:
            out.write(trajectory)
        assert path.read_bytes() == before
        ((lost, cause),) = refused.value.lost
        assert (lost, type(cause), refused.value.__cause__) == (trajectory, TimeoutError, cause)
        assert not refused.value.is_in_file
        holder.release()
        out.write(trajectory)
    assert names(path) == ["first", "second"]
    who = f"process {holder.pid} holds its lock" if kind == "flock" else f"another process holds its lock, {path}.lock"
    if kind == "flock" and not sys.platform.startswith("linux"):
        who = "another process holds its lock"
    message = str(refused.value)
    assert message.startswith(
        f"trajectory {trajectory.id} could not be written to {path}: {who}, which was not free within"
    )
    assert " 0.01 seconds (" in message
    assert message.endswith(". Nothing of its line is in the file, and the trajectory can be written again.")


@pytest.mark.usefixtures("holder")
def test_zero_tries_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(locking, "time", Clock(pauses.append))
    with JSONLWriter(path, lock_timeout=0) as out, pytest.raises(rt.WriteError, match="not free within 0 seconds"):
        out.write(rt.Trajectory())
    assert pauses == []


def test_a_killed_holder_frees_the_lock(path: Path, holder: Holder) -> None:
    with JSONLWriter(path, lock_timeout=60) as out:
        holder.kill()
        out.write(rt.Trajectory(name="second"))
    assert names(path) == ["first", "second"]


def test_pauses_between_attempts_grow(path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            holder.release()

    with JSONLWriter(path, lock_timeout=3600) as out:
        monkeypatch.setattr(locking, "time", Clock(sleep))
        out.write(rt.Trajectory(name="second"))
    assert pauses == [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    assert names(path) == ["first", "second"]


def test_a_file_that_is_rotated_while_its_lock_is_waited_for(
    path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is in the file that has the name when the lock is free."""
    rotated = path.with_name(f"old-{path.name}")

    def sleep(seconds: float) -> None:
        path.rename(rotated)
        holder.release()

    with JSONLWriter(path, lock_timeout=3600) as out:
        monkeypatch.setattr(locking, "time", Clock(sleep))
        out.write(rt.Trajectory(name="second"))
    assert (names(rotated), names(path)) == (["first"], ["second"])


def test_ctrl_c_while_the_lock_is_waited_for(path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    with JSONLWriter(path) as out, JSONLWriter(path, lock_timeout=0) as other:
        monkeypatch.setattr(locking, "time", Clock(sleep))
        with pytest.raises(KeyboardInterrupt):
            out.write(rt.Trajectory(name="interrupted"))
        holder.release()
        other.write(rt.Trajectory(name="second"))
        out.write(rt.Trajectory(name="third"))
    assert names(path) == ["first", "second", "third"]


def test_another_thread_of_the_process_is_waited_for_no_longer_either(path: Path) -> None:
    with JSONLWriter(path, lock_timeout=0.01) as out:
        with out._lock, pytest.raises(rt.WriteError, match=r"another thread of this process .* 0\.01 seconds") as found:
            out.write(rt.Trajectory())
        out.write(rt.Trajectory(name="a"))
    assert isinstance(found.value.__cause__, TimeoutError)
    assert names(path) == ["a"]


@pytest.mark.usefixtures("kind")
def test_two_writers_of_one_process_exclude_each_other(path: Path) -> None:
    with JSONLWriter(path, lock_timeout=0) as first, JSONLWriter(path, lock_timeout=0) as second:
        for number in range(4):
            (first, second)[number % 2].write(rt.Trajectory(name=str(number)))
        first._file._lock.acquire(first._file._file, 0)  # type: ignore[arg-type]
        with pytest.raises(rt.WriteError, match="holds its lock"):
            second.write(rt.Trajectory())
        first._file._lock.release(first._file._file)  # type: ignore[arg-type]
        second.write(rt.Trajectory(name="4"))
    assert names(path) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("path", some(SUFFIXES, ".jsonl.gz"), indirect=True)
@pytest.mark.amount
@has_filelock
def test_processes_of_several_threads_write_one_file_with_a_lock_file(path: Path) -> None:
    processes = amount(2, 4, 4)
    program = f"from rollout_trace.file import locking\nlocking.fcntl = None\n{WORKER}"
    command = [sys.executable, "-c", program, str(path)]
    workers = [
        subprocess.Popen(
            [*command, str(n), "4", "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        for n in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"\n"
    for worker in workers:
        worker.communicate(b"\n", timeout=120)
    assert [worker.returncode for worker in workers] == [0] * processes
    found = sorted(one.name for one in read(path))
    assert found == sorted(f"{a}-{b}-{c}" for a in range(processes) for b in range(4) for c in range(10))


# Locks that are held


@pytest.mark.usefixtures("kind")
def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    place = tmp_path / "1.journal"
    first, second = (os.open(place, os.O_RDWR | os.O_CREAT) for _ in range(2))
    lock = locking.hold(first, place)
    assert lock is not None
    assert locking.hold(second, place) is None
    lock.release(first)
    again = locking.hold(second, place)
    assert again is not None
    again.release(second)
    again.release(second)
    for file in (first, second):
        os.close(file)


@pytest.mark.parametrize("program", [FLOCK, pytest.param(LOCK_FILE, marks=has_filelock)])
def test_a_dead_process_holds_nothing(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "fcntl", fcntl if program == FLOCK else None)
    place = tmp_path / "1.journal"
    file = os.open(place, os.O_RDWR | os.O_CREAT)
    with stopped_holder(place, program) as holder:
        assert locking.hold(file, place) is None
        holder.kill()
        lock = locking.hold(file, place)
    assert lock is not None
    lock.release(file)
    os.close(file)


def test_a_file_system_without_locks_is_told_from_a_held_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(locking.NoFileLocks, match=r"^the file system of .*x has no file locks \(No locks available\)"):
        locking.hold(0, tmp_path / "x")


# The option


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), float("-inf")])
def test_a_time_that_cannot_be_waited_is_refused(value: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        JSONLWriter(tmp_path / "a.jsonl", lock_timeout=value)
    assert str(refused.value) == f"lock_timeout is {value!r}; give seconds, such as lock_timeout=10.0; 0 tries once."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["10", None, True, [1], 1j])
def test_what_is_no_time_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^lock_timeout is .*; give seconds, such as lock_timeout=10\.0; 0 tries once"):
        JSONLWriter(tmp_path / "a.jsonl", lock_timeout=value)
    assert list(tmp_path.iterdir()) == []


def test_years_can_be_waited(tmp_path: Path) -> None:
    with JSONLWriter(tmp_path / "a.jsonl", lock_timeout=1e300) as out:
        out.write(rt.Trajectory(name="a"))
    assert names(tmp_path / "a.jsonl") == ["a"]


def test_a_pickled_writer_waits_as_long(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with JSONLWriter(path, lock_timeout=0, mode=0o600) as out, pickle.loads(pickle.dumps(out)) as sent:
        path.unlink()
        sent.write(rt.Trajectory(name="a"))
        assert path.stat().st_mode & 0o777 == 0o600
        with stopped_holder(path), pytest.raises(rt.WriteError, match="not free within 0 seconds"):
            sent.write(rt.Trajectory())


CHILD_OF_A_HOLDER = """
import json, os, sys, warnings
import rollout_trace as rt

warnings.simplefilter("ignore")
out = rt.JSONLWriter(sys.argv[1], lock_timeout=0)
out.write(rt.Trajectory(name="parent"))
out._file._lock.acquire(out._file._file, 0)  # As if another thread were writing at the moment of the fork.
read, write = os.pipe()
child = os.fork()
if child == 0:
    try:
        out.write(rt.Trajectory(name="refused"))
    except rt.WriteError as error:
        os.write(write, json.dumps(str(error)).encode())
    os._exit(0)
os.close(write)
os.waitpid(child, 0)
out._file._lock.release(out._file._file)
print(os.read(read, 65536).decode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_share_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert "holds its lock" in json.loads(run(CHILD_OF_A_HOLDER, path))
    assert names(path) == ["parent"]
