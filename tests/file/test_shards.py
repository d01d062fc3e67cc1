"""Folders of shards: the same trajectories as in one file, whole files, no file written to twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.errors import WriteError
from rollout_trace.file.encode import encode
from rollout_trace.file.shards import Settings, ShardWriter, lines_among, suffix_of
from rollout_trace.testing import ScriptedServer
from tests.amount import amount
from tests.file import disks
from tests.file.processes import environment, run
from tests.record.journaled import close_clients, sdk

PLAIN: dict[str, Any] = {"compression": "none"}


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(number: int) -> rt.Trajectory:
    return rt.Trajectory(id=f"run{number}", task=rt.Task(id=str(number)), metadata={"text": "x" * 100})


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def shard(number: int, suffix: str = ".jsonl") -> str:
    host = "".join(one if one.isalnum() or one in "._-" else "_" for one in os.uname().nodename)
    return f"part-{host}-{os.getpid()}-{number}{suffix}"


def writer(folder: Path, clock: Clock | None = None, **settings: Any) -> ShardWriter:
    return ShardWriter(folder, Settings(**{**PLAIN, **settings}), {}, clock=clock or Clock())


def test_a_recording_to_a_folder_is_read_as_one_to_a_file(tmp_path: Path) -> None:
    ids: dict[str, list[str]] = {}
    with ScriptedServer("an answer") as server:
        client = sdk(server)
        for name, target in (("file", tmp_path / "one.jsonl"), ("folder", f"{tmp_path}/many/")):
            with rt.recording(target):
                for number in range(4):
                    with rt.trajectory(task=str(number)) as trajectory:
                        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                    trajectory_ids = ids.setdefault(name, [])
                    trajectory_ids.append(trajectory.id)
        close_clients()
    assert names(tmp_path / "many") == [shard(0, suffix_of(None))]
    for name, target in (("file", tmp_path / "one.jsonl"), ("folder", tmp_path / "many")):
        found = list(rt.read(target))
        assert [one.id for one in found] == ids[name]
        assert [len(one.steps) for one in found] == [1] * 4


def test_a_folder_that_exists_needs_no_slash_and_a_bare_name_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("there", "bare"):
        with rt.recording(tmp_path / name), rt.trajectory():
            pass
    assert (tmp_path / "bare").is_file()
    assert names(tmp_path / "there") == [shard(0, suffix_of(None))]
    with rt.recording(f"file://{tmp_path}/by-address/", compression="gz"), rt.trajectory():
        pass
    assert names(tmp_path / "by-address") == [shard(0, ".jsonl.gz")]
    assert len(list(rt.read(f"file://{tmp_path}/by-address"))) == 1


def test_a_shard_is_complete_when_it_is_large_enough(tmp_path: Path) -> None:
    line = len(encode(made(0)))
    with writer(tmp_path, shard_bytes=2 * line) as shards:
        for number in range(5):
            shards.write(made(number))
    counts = [len(list(rt.read(tmp_path / shard(number)))) for number in range(3)]
    assert (counts, len(names(tmp_path))) == ([2, 2, 1], 3)
    assert [one.id for one in rt.read(tmp_path)] == [f"run{number}" for number in range(5)]


def test_a_shard_is_complete_when_it_is_old_enough(tmp_path: Path) -> None:
    clock = Clock()
    with writer(tmp_path, clock, shard_seconds=10) as shards:
        shards.write(made(0))
        clock.now += 9
        shards.write(made(1))
        assert shards.rotate_if_due() == 1.0
        clock.now += 1
        shards.write(made(2))
        clock.now += 10
        assert shards.rotate_if_due() is None
        assert len(names(tmp_path)) == 2
    assert [len(list(rt.read(tmp_path / name))) for name in names(tmp_path)] == [2, 1]


def test_no_file_is_written_to_that_is_there(tmp_path: Path) -> None:
    """Of another machine of this name, or of an earlier process of this id."""
    for number in (0, 2):
        (tmp_path / shard(number)).write_bytes(encode(made(100 + number)))
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    with writer(tmp_path, shard_bytes=1) as shards:
        for number in range(3):
            shards.write(made(number))
    assert names(tmp_path) == [shard(number) for number in range(5)]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len({one.id for one in rt.read(tmp_path)}) == 5


def test_nothing_written_leaves_no_file(tmp_path: Path) -> None:
    with rt.recording(tmp_path):
        pass
    assert names(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="there is no file of trajectories in"):
        rt.read(tmp_path)


def test_a_folder_is_read_without_what_is_not_trajectories(tmp_path: Path) -> None:
    with writer(tmp_path) as shards:
        shards.write(made(1))
    rt.annotate(tmp_path, "run1", reward=0.5)
    for name in ("history.jsonl", ".hidden.jsonl", "status.json", "log.txt"):
        (tmp_path / name).write_text("no trajectory\n")
    (tmp_path / "inner.jsonl").mkdir()
    assert lines_among(names(tmp_path)) == ["inner.jsonl", shard(0), shard(0).replace(".jsonl", ".notes.jsonl")]
    assert [(one.id, one.reward) for one in rt.read(tmp_path)] == [("run1", 0.5)]


def test_a_note_goes_beside_the_shard_that_has_the_trajectory(tmp_path: Path) -> None:
    with writer(tmp_path, shard_bytes=1) as shards:
        for number in range(3):
            shards.write(made(number))
    rt.annotate(f"{tmp_path}/", "run1", reward=1)
    assert (tmp_path / shard(1).replace(".jsonl", ".notes.jsonl")).exists()
    assert [one.reward for one in rt.read(tmp_path)] == [None, 1.0, None]
    with pytest.raises(ValueError, match=r"has trajectory 'run7': no note was written\.$"):
        rt.annotate(tmp_path, "run7", reward=1)


PROCESSES = """
import os, sys
import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
import openai.resources.chat.completions

def record(folder, process):
    with ScriptedServer("fine") as server, openai.OpenAI(base_url=server.base_url, api_key="none") as client:
        rt.wrap_openai(client, engine="vllm")
        with rt.recording(folder, shard_bytes=3000):
            for number in range(20):
                with rt.trajectory(task=f"{process}/{number}"):
                    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

children = []
for process in range(int(sys.argv[2])):
    children.append(os.fork())
    if not children[-1]:
        try:
            record(sys.argv[1], process)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
print(*children)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


@pytest.mark.amount
def test_processes_at_once(tmp_path: Path) -> None:
    processes = amount(2, 8, 8)
    # Forked before any of them has recorded: each need not import the SDK.
    command = [sys.executable, "-c", PROCESSES, f"{tmp_path}/out/", str(processes)]
    children = subprocess.run(command, env=environment(), check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert len(children) == processes
    tasks = [one.task.id for one in rt.read(tmp_path / "out") if one.task is not None]
    assert sorted(map(str, tasks)) == sorted(
        f"{process}/{number}" for process in range(processes) for number in range(20)
    )
    shards = names(tmp_path / "out")
    assert len(shards) > processes
    assert {name.split("-")[-2] for name in shards} == set(children)


def _in_fork(folder: str) -> None:
    with rt.trajectory(task="child"):
        pass


def test_a_forked_process_has_shards_of_its_own(tmp_path: Path) -> None:
    program = f"""
import multiprocessing, rollout_trace as rt
from tests.file.test_shards import _in_fork
with rt.recording({str(tmp_path)!r} + "/out/"):
    with rt.trajectory(task="before"):
        pass
    child = multiprocessing.get_context("fork").Process(target=_in_fork, args=("",))
    child.start(); child.join(); assert child.exitcode == 0
    with rt.trajectory(task="after"):
        pass
"""
    folder = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=folder, env=environment(), check=True)
    by_file = {
        name: [one.task.id for one in rt.read(tmp_path / "out" / name) if one.task] for name in names(tmp_path / "out")
    }
    assert sorted(by_file.values()) == [["before", "after"], ["child"]]


def test_a_full_disk_loses_nothing_and_a_shard_goes_on(tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk") as disk, writer(disk / "out") as shards:
        shards.write(made(0))
        filler = disks.fill(disk, 0)
        written = 1

        def fill_up() -> None:
            nonlocal written
            while True:
                shards.write(made(written))
                written += 1

        with pytest.raises(WriteError, match="No space left on device"):
            fill_up()
        filler.unlink()
        shards.write(made(written))
        assert [one.id for one in rt.read(disk / "out")] == [f"run{one}" for one in range(written + 1)]


def test_what_a_recording_could_not_write_is_in_its_error(tmp_path: Path) -> None:
    """The folder is a file by the time a shard is begun."""
    (tmp_path / "out").mkdir()

    def run_in(folder: Path) -> None:
        with rt.recording(folder, journal=False):
            folder.rmdir()
            folder.write_text("no folder any more")
            with rt.trajectory(task="kept"):
                pass

    with pytest.raises(WriteError, match="1 trajectory could not be written") as found:
        run_in(tmp_path / "out")
    assert found.value.write(tmp_path / "other.jsonl") == 1
    assert [one.task.id for one in rt.read(tmp_path / "other.jsonl") if one.task] == ["kept"]


@pytest.mark.parametrize(
    ("target", "options", "kind", "said"),
    [
        ("out/", {"shard_bytes": 0}, ValueError, "shard_bytes is 0; give a number above 0"),
        ("out/", {"shard_bytes": "1 MB"}, TypeError, "shard_bytes is '1 MB'; give a number"),
        ("out/", {"shard_seconds": float("nan")}, ValueError, "shard_seconds is nan"),
        ("out/", {"compression": "xz"}, ValueError, "compression is 'xz'; it can be"),
        ("out/", {"spool": 3}, TypeError, "spool is 3; give the path of a folder"),
        ("out.jsonl", {"shard_bytes": 5}, ValueError, "shard_bytes=5 is for shards. Give a folder"),
        (rt.JSONLWriter, {"compression": "gz"}, ValueError, "compression='gz' is for shards"),
    ],
)
def test_bad_settings_are_refused(
    target: Any, options: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    place = f"{tmp_path}/{target}" if isinstance(target, str) else target(tmp_path / "own.jsonl")
    with pytest.raises(kind, match=said.replace("(", r"\(")):
        rt.recording(place, **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NotADirectoryError, match="is a file: shards are written to a folder"),
        rt.recording(f"{tmp_path}/file/"),
    ):
        pass


def test_reading_imports_no_fsspec(tmp_path: Path) -> None:
    """Nor does writing a folder."""
    program = (
        "import logging, sys, rollout_trace as rt\n"
        "logging.disable()\n"
        "with rt.recording(sys.argv[1]), rt.trajectory():\n    pass\n"
        "print(len(list(rt.read(sys.argv[1]))), 'fsspec' in sys.modules)"
    )
    assert run(program, f"{tmp_path}/out/") == "1 False\n"
