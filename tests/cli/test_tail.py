"""``rollout-trace ls --last`` and ``ls -f``: the end of files, and what is written while it looks."""

from __future__ import annotations

import gzip
import io
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.file import lines as tail_module
from rollout_trace.file.lines import begin_of_last, end_of_whole, newlines_before
from rollout_trace.view.last import Follower, Line, Lines

from .command import command


def write(path: Path, *ids: str) -> None:
    with rt.JSONLWriter(path) as out:
        for one in ids:
            out.write(rt.Trajectory(id=one))


def ids_in(text: str) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_the_last_lines(suffix: str, tmp_path: Path) -> None:
    name = f"a.jsonl{suffix}"
    write(tmp_path / name, *map(str, range(30)))
    assert ids_in(command(tmp_path, "ls", "--last", "--raw", name).out) == [str(number) for number in range(20, 30)]
    every = command(tmp_path, "ls", "--last", "--raw", "-n", "99", name).out
    assert ids_in(every) == [str(number) for number in range(30)]
    done = command(tmp_path, "ls", "--last", "--raw", "-n", "2", name, "--where", "id < '2'")
    assert (done.code, ids_in(done.out)) == (0, ["18", "19"])


def test_of_several_files_those_of_all_together(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", "a", "b")
    write(tmp_path / "2.jsonl.gz", "c")
    assert ids_in(command(tmp_path, "ls", "--last", "--raw", "-n", "2", ".").out) == ["b", "c"]
    rt.annotate(tmp_path / "1.jsonl", "b", reward=1)
    done = command(tmp_path, "ls", "--last", ".", "--where", "reward == 1", "--columns", "id,reward")
    assert (done.code, done.out, done.err) == (0, "id\treward\nb\t1.0\n", "")


def test_a_line_that_cannot_be_read_is_counted_from_the_beginning(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *map(str, range(7)))
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("x\n")
    done = command(tmp_path, "ls", "--last", "--raw", "-n", "2", "a.jsonl")
    assert (done.code, ids_in(done.out)) == (1, ["5", "6"])
    assert done.err.count("a.jsonl, line 8: ") == 1


@given(st.lists(st.sampled_from(["", "a", "bcd", "  ", "é" * 9]), max_size=9), st.integers(0, 11), st.booleans())
def test_the_offset_of_the_last_lines(lines: list[str], count: int, ends: bool) -> None:
    data = "\n".join(lines).encode() + b"\n" * (ends and bool(lines))
    before, tail_module._BLOCK = tail_module._BLOCK, 4
    try:
        file = io.BytesIO(data)
        begin = begin_of_last(file, count, len(data))
        assert data[begin:] == b"".join(data.splitlines(keepends=True)[-count:] if count else [])
        assert newlines_before(file, begin) == data[:begin].count(b"\n")
        whole = end_of_whole(file, 0, "x")
        assert data[:whole] == data[: data.rfind(b"\n") + 1]
    finally:
        tail_module._BLOCK = before


# What is written while one looks


def ids(found: list[Line]) -> list[str]:
    return [line.trajectory.id for line in found]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_file_that_grows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    lines = Lines(None)
    follower = Follower([str(path)], lines)
    assert follower.begin(10) == []
    assert follower.more() == []
    write(path, "1", "2")
    assert ids(follower.more()) == ["1", "2"]
    assert follower.more() == []
    write(tmp_path / f"b.jsonl{suffix}", "3")
    data = (tmp_path / f"b.jsonl{suffix}").read_bytes()
    for begin, end in ((0, 5), (5, len(data) - 1)):
        with path.open("ab") as file:
            file.write(data[begin:end])
        assert follower.more() == []
    with path.open("ab") as file:
        file.write(data[-1:])
    assert ids(follower.more()) == ["3"]
    assert lines.problems == []


def test_it_begins_with_the_last_lines_and_goes_on_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, *"abc")
    with path.open("a") as file:
        file.write('{"schema":')
    follower = Follower([str(path)], lines := Lines(None))
    assert ids(follower.begin(2)) == ["b", "c"]
    assert (follower.more(), lines.problems) == ([], [])


@pytest.mark.parametrize("how", ["shorter", "longer", "removed"])
def test_a_file_that_is_replaced(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1", "2")
    follower = Follower([str(path)], Lines(None))
    assert ids(follower.begin(9)) == ["1", "2"]
    if how == "removed":
        path.unlink()
        assert follower.more() == []
    write(tmp_path / "new", *(["3"] if how == "shorter" else "3456"))
    (tmp_path / "new").replace(path)
    assert ids(follower.more()) == (["3"] if how == "shorter" else list("3456"))


def test_a_file_that_is_written_anew_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1")
    follower = Follower([str(path)], Lines(None))
    follower.begin(9)
    write(tmp_path / "b.jsonl", "x", "y")
    path.write_bytes((tmp_path / "b.jsonl").read_bytes())
    assert ids(follower.more()) == ["x", "y"]


def test_folders_with_new_shards_and_notes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    follower = Follower([str(folder), str(tmp_path / "*.x.jsonl")], lines := Lines(lambda run: run.reward == 1))
    assert follower.begin(5) == []
    folder.mkdir()
    assert follower.more() == []
    write(folder / "1.jsonl", "a")
    rt.annotate(folder / "1.jsonl", "a", reward=1)
    assert ids(follower.more()) == ["a"]
    write(folder / "2.jsonl.gz", "b", "c")
    rt.annotate(folder / "2.jsonl.gz", "c", reward=1)
    assert ids(follower.more()) == ["c"]
    assert lines.problems == []


def test_a_damaged_member_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    write(path, "1")
    follower = Follower([str(path)], lines := Lines(None))
    follower.begin(5)
    with path.open("ab") as file:
        file.write(b"\x1f\x8b\x08 this is no gzip at all" + bytes(30))
    assert follower.more() == []
    assert len(lines.problems) == 1
    write(tmp_path / "b.jsonl.gz", "2")
    with path.open("ab") as file:
        file.write((tmp_path / "b.jsonl.gz").read_bytes())
    assert ids(follower.more()) == ["2"]
    assert len(lines.problems) == 1


@pytest.fixture
def following(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-W", "error", "-m", "rollout_trace", "ls", "-f", "--raw", "a.jsonl"]
    process = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def line_of(stream: IO[str] | None) -> str:
    """The next line, for which a minute is waited."""
    assert stream is not None
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        assert selector.select(60)
    return stream.readline()


def test_the_command_follows_until_it_is_interrupted(following: subprocess.Popen[str], tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "1")
    assert ids_in(line_of(following.stdout)) == ["1"]
    write(tmp_path / "a.jsonl", "2")
    assert ids_in(line_of(following.stdout)) == ["2"]
    os.kill(following.pid, signal.SIGINT)
    assert following.wait(60) == 130


@pytest.mark.parametrize("path", ["-", "s3://bucket/run.jsonl"])
def test_what_cannot_be_followed(path: str, tmp_path: Path) -> None:
    done = command(tmp_path, "ls", "-f", path)
    assert done.code == 2
    assert f"-f can follow only local files and folders, not '{path}'." in done.err


def test_a_compressed_file_that_was_packed_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "1", "2")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert ids_in(command(tmp_path, "ls", "--last", "--raw", "-n", "1", "b.jsonl.gz").out) == ["2"]
