"""The index of files: it has what is in them, also when they grow, are replaced, are damaged, or get notes."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

import rollout_trace as rt
from rollout_trace.file.annotate import annotate
from rollout_trace.view import index as index_module
from rollout_trace.view import index_build
from rollout_trace.view.index import Index
from rollout_trace.view.index_cache import cache_folder
from rollout_trace.view.model import Summary
from rollout_trace.view.summary import summarize
from tests.view.files import run, write

Open: TypeAlias = "Callable[..., Index]"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens indexes of paths, in a cache of the test's own, built to their end; closes them."""
    every: list[Index] = []

    def start(*paths: Path | str, cache: Path | None = tmp_path / "cache", built: bool = True) -> Index:
        index = Index(list(map(str, paths)), cache)
        every.append(index)
        if built:
            index.wait()
        return index

    yield start
    for index in every:
        index.close()


def rows(index: Index) -> list[Any]:
    """The summaries with their keys, as in the files."""
    found = [(row, json.loads(summary)) for row, summary in index.rows(0, 0, 1000)]
    found.sort(key=lambda one: (one[0].file, one[0].place.number, one[0].part))
    return [{**summary, "key": row.key} for row, summary in found]


def ids(index: Index) -> list[str]:
    return [row["id"] for row in rows(index)]


def keys(index: Index) -> dict[str, str]:
    return {row["id"]: row["key"] for row in rows(index)}


# What it has


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_what_it_has_is_what_is_in_the_file(tmp_path: Path, opened: Open, name: str) -> None:
    path = write(tmp_path / name, map(run, range(9)))
    index = opened(path)
    expected = list(rt.read(path))
    assert index.total == 9
    for row, trajectory in zip(rows(index), expected, strict=True):
        assert index.trajectory(*index.row(row.pop("key"))) == trajectory
        assert row == msgspec.to_builtins(summarize(trajectory))
    assert index.progress is None
    assert index.problems() == []


def test_lines_that_are_far_inside_a_member_are_kept_unpacked(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "FAR", 1000)
    plain = write(tmp_path / "x.jsonl", map(run, range(20)))
    path = tmp_path / "foreign.jsonl.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    index = opened(path)
    expected = list(rt.read(path))
    assert [index.trajectory(*index.row(row["key"])) for row in rows(index)] == expected
    assert index.store.lines_path.stat().st_size > 1000
    assert index.search('"answer 17" in text').keys == ["1-18"]


def test_nothing_is_written_beside_the_files(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "runs/x.jsonl", map(run, range(3)))
    before = sorted((tmp_path / "runs").iterdir())
    opened(tmp_path / "runs")
    opened(tmp_path / "runs", cache=None)
    assert sorted((tmp_path / "runs").iterdir()) == before


def test_a_line_with_half_a_surrogate_pair(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl", [run(0, name="cut \ud83d", text="</script>\x1b[31m\ud83d")])
    index = opened(path)
    assert rows(index)[0]["name"] == "cut \ud83d"
    assert index.search('"\\ud83d" in text').keys == [rows(index)[0]["key"]]


# Files that change


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_a_file_that_grows(tmp_path: Path, opened: Open, name: str) -> None:
    path = write(tmp_path / name, map(run, range(3)))
    index = opened(path)
    before, generation = keys(index), index.generation
    write(path, [run(3)])
    index.wait()
    assert ids(index) == ["t0", "t1", "t2", "t3"]
    assert before.items() <= keys(index).items()
    assert index.generation > generation
    index.wait()
    same = index.generation
    index.wait()
    assert index.generation == same


def test_an_index_is_kept_and_goes_on(tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.jsonl", map(run, range(3)))
    first = opened(path)
    before = keys(first)
    first.close()
    write(path, [run(3)])
    read: list[str] = []

    def counted(found: rt.Trajectory) -> Summary:
        read.append(found.id)
        return summarize(found)

    monkeypatch.setattr(index_build, "summarize", counted)
    again = opened(path)
    assert again.store.path == first.store.path
    assert read == ["t3"]
    assert before.items() <= keys(again).items()


@pytest.mark.parametrize("how", ["another file", "the same size", "shorter"])
def test_a_file_that_was_replaced(tmp_path: Path, opened: Open, how: str) -> None:
    path = write(tmp_path / "x.jsonl", map(run, range(3)))
    index = opened(path)
    old = keys(index)["t0"]
    other = write(tmp_path / "other.jsonl", map(run, range(5, 8 if how == "the same size" else 7)))
    if how == "another file":
        write(other, [run(7), run(8)])
        other.replace(path)
    else:
        with path.open("rb+") as file:
            file.write(other.read_bytes())
            file.truncate()
        os.utime(path, ns=(1, 1))
    index.wait()
    assert ids(index) == [one.id for one in rt.read(path)]
    with pytest.raises(KeyError, match="its file was replaced"):
        index.row(old)


def test_files_of_a_folder_come_and_go(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "runs/a.jsonl", [run(0)])
    b = write(tmp_path / "runs/b.jsonl", [run(1)])
    index = opened(tmp_path / "runs")
    before = keys(index)
    write(tmp_path / "runs/0.jsonl.gz", [run(2)])
    index.wait()
    assert before.items() <= keys(index).items()
    assert sorted(ids(index)) == ["t0", "t1", "t2"]
    b.unlink()
    index.wait()
    assert sorted(ids(index)) == ["t0", "t2"]


def test_damaged_lines_are_problems_until_they_are_whole(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl", map(run, range(2)))
    whole = path.read_bytes()
    path.write_bytes(whole + b"{nothing\n" + whole[:-20])
    index = opened(path)
    assert ids(index) == ["t0", "t1", "t0"]
    assert [problem.split(": ")[0].split(", ")[1] for problem in index.problems()] == ["line 3", "line 5"]
    with path.open("ab") as file:
        file.write(whole[-20:])
    index.wait()
    assert ids(index) == ["t0", "t1", "t0", "t1"]
    assert len(index.problems()) == 1


def test_a_cut_member_is_a_problem_until_it_is_whole(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl.gz", map(run, range(3)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    index = opened(path)
    assert ids(index)[:2] == ["t0", "t1"]
    assert "the file ends inside of them" in index.problems()[0]
    with path.open("ab") as file:
        file.write(whole[-30:])
    index.wait()
    assert ids(index) == ["t0", "t1", "t2"]
    assert index.problems() == []


def test_many_problems_are_counted(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{\n" * 3000)
    problems = opened(path).problems()
    assert len(problems) == 21
    assert "more" in problems[-1]


def test_a_file_that_cannot_be_read_does_not_hide_others(tmp_path: Path, opened: Open) -> None:
    write(tmp_path / "good.jsonl", [run(0)])
    gone = write(tmp_path / "gone.jsonl", [run(1)])
    index = opened(tmp_path / "good.jsonl", gone)
    gone.unlink()
    gone.mkdir()
    index.wait()
    assert "t0" in ids(index)


# Notes


def test_notes_are_applied_and_taken_back(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl.gz", map(run, range(3)))
    annotate(path, "t1", reward=7.0)
    index = opened(path)
    assert [row["reward"] for row in rows(index)] == [0.0, 7.0, 1.0]
    generation = index.generation
    annotate(path, "t2", reward=9, metadata={"note": "Look!"})
    index.wait()
    assert (rows(index)[2]["note"], rows(index)[2]["reward"]) == ("Look!", 9)
    assert index.search("reward == 9 and metadata.note is not None").keys == [keys(index)["t2"]]
    assert index.generation > generation
    assert index.trajectory(*index.row(keys(index)["t2"])).reward == 9
    (tmp_path / "x.notes.jsonl").unlink()
    index.wait()
    assert [row["reward"] for row in rows(index)] == [0.0, 0.5, 1.0]


def test_a_damaged_note_is_a_problem(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl", [run(0)])
    annotate(path, "t0", reward=7)
    with (tmp_path / "x.notes.jsonl").open("a") as file:
        file.write("{nothing\n")
    index = opened(path)
    assert rows(index)[0]["reward"] == 7
    assert "x.notes.jsonl, line 2" in index.problems()[0]


# Where it is built, and kept


@pytest.mark.processes
def test_a_process_of_its_own_builds_a_large_one(tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_LARGE", 0)
    monkeypatch.setattr(index_build, "summarize", None)  # Of this process.
    path = write(tmp_path / "rün \udcff.jsonl", map(run, range(5)))
    index = opened(path)
    assert ids(index) == [f"t{number}" for number in range(5)]
    assert index.problems() == []


@pytest.mark.processes
def test_a_process_that_cannot_start_is_a_problem(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_LARGE", 0)
    monkeypatch.setattr(index_module, "prepare", _no_room)
    index = opened(write(tmp_path / "x.jsonl", [run(0)]))
    assert len(index.problems()) == 1
    assert index.problems()[0].startswith("the index could not be built: BrokenProcessPool")


def _no_room(stop: object) -> None:
    raise MemoryError


def test_two_pages_of_one_file_do_not_share_an_index(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl", map(run, range(3)))
    first, second = opened(path), opened(path)
    assert first.store.path != second.store.path
    assert ids(first) == ids(second)
    folder = second.store.path.parent
    second.close()
    assert not folder.exists()
    first.close()
    assert opened(path).store.path == first.store.path


def test_a_damaged_index_is_built_anew(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl", map(run, range(3)))
    first = opened(path)
    first.close()
    first.store.path.write_bytes(b"nothing of a database" * 1000)
    assert ids(opened(path)) == ["t0", "t1", "t2"]


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert ids(opened(write(tmp_path / "x.jsonl", [run(0)]))) == ["t0"]
    assert "the index cannot be kept" in caplog.text


def test_an_index_that_nobody_used_for_a_month_is_deleted(tmp_path: Path, opened: Open) -> None:
    first = opened(write(tmp_path / "x.jsonl", [run(0)]))
    first.close()
    os.utime(f"{first.store.path}.lock", (1, 1))
    opened(write(tmp_path / "y.jsonl", [run(0)]))
    assert not first.store.path.exists()


def test_closing_does_not_wait_for_the_end_and_it_goes_on(tmp_path: Path, opened: Open, monkeypatch: Any) -> None:
    path = write(tmp_path / "x.jsonl", map(run, range(3)))
    monkeypatch.setattr(index_build, "_PAUSE", 0)
    reached, go_on = threading.Event(), threading.Event()

    def slow(found: rt.Trajectory) -> Summary:
        if found.id == "t1":
            reached.set()
            go_on.wait(60)
        return summarize(found)

    with monkeypatch.context() as patch:
        patch.setattr(index_build, "summarize", slow)
        index = opened(path, built=False)
        assert reached.wait(60)
        assert ids(index) == ["t0"]
        assert index.progress is not None
        closing = threading.Thread(target=index.close)
        closing.start()
        go_on.set()
        closing.join(60)
    assert ids(opened(path)) == ["t0", "t1", "t2"]


def test_the_folder_for_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rollout-trace"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache/rollout-trace"


# Searches in whole trajectories


def test_a_search_goes_on_with_what_changes(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "x.jsonl", [run(number, text) for number, text in enumerate(["a", "b", "a\nHello"])])
    index = opened(path)
    wanted = "any('a' == step.messages[0].content[0] for step in steps) and reward < 5"
    assert index.search(wanted).keys == ["1-1", "1-3"]
    write(path, [run(3, "a again")])
    annotate(path, "t0", reward=9)
    index.wait()
    assert index.search(wanted).keys == ["1-3", "1-4"]
    path.unlink()
    write(tmp_path / "x.jsonl", [run(7, "a")])
    index.wait()
    assert index.search(wanted) == (["2-1"], 1, None)
