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
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.file.annotate import annotate
from rollout_trace.file.lines import Place
from rollout_trace.view import index as index_module
from rollout_trace.view import index_build, text_search
from rollout_trace.view.aggregate import aggregate, histogram
from rollout_trace.view.index import Index
from rollout_trace.view.index_cache import cache_folder
from rollout_trace.view.index_store import Row, Store, add_row
from rollout_trace.view.model import Summary
from rollout_trace.view.query import predicate, read_query
from rollout_trace.view.query_sql import order, where
from rollout_trace.view.summary import summarize
from tests.view.files import run, write
from tests.view.test_query import CASES, SUMMARIES

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


def rows(index: Index, query: str = "", sort: str = "", **options: Any) -> list[Any]:
    """The summaries of a list, with their keys."""
    return [json.loads(row) for row in index.listed(query, sort, **options)["rows"]]


def ids(index: Index, query: str = "", sort: str = "", **options: Any) -> list[str]:
    return [row["id"] for row in rows(index, query, sort, **options)]


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
    assert ids(index, 'text:"answer 17"') == ["t17"]


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
    assert ids(index, "name:cut") == ["t0"]
    assert ids(index, 'text:"\ud83d"') == ["t0"]


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
    assert ids(index, "note:look reward:9") == ["t2"]
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
    monkeypatch.setattr("rollout_trace.view.index_worker._PROGRAM", "raise SystemExit('no room')")
    index = opened(write(tmp_path / "x.jsonl", [run(0)]))
    assert index.problems() == ["the index could not be built: no room"]


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
    assert "the index is not kept" in caplog.text


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


# Queries


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A database with the summaries of the table of queries."""
    found = Store(tmp_path_factory.mktemp("store") / "x.sqlite")
    with found.connection() as database:
        for number, summary in enumerate(SUMMARIES, 1):
            add_row(database, Row(0, 1, Place(0, 0, number), 1), summary)
    yield found
    found.close()


def found_by_sql(store: Store, query: str) -> list[str]:
    condition, values = where(read_query(query), lambda text: [])
    return [id for (id,) in store.read(f"SELECT trajectory FROM rows WHERE {condition} ORDER BY line", values)]


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["query"] or "empty")
def test_queries_in_sql(store: Store, case: dict[str, Any]) -> None:
    assert found_by_sql(store, case["query"]) == case["ids"]


_names = st.sampled_from(
    ["status", "reward", "task", "finding", "steps", "rewards.correct", "note", "started", "drift"]
)
_values = st.sampled_from(["none", "1", ">0", "<=5", "0..1", "=failed", "comp", '"a b"', "2026-11-23", "..", "%", "_"])


@given(st.lists(st.tuples(st.sampled_from(["", "-"]), _names, _values).map("{0[0]}{0[1]}:{0[2]}".format), max_size=3))
def test_sql_and_python_agree(store: Store, terms: list[str]) -> None:
    matches = predicate(read_query(" ".join(terms)))
    assert found_by_sql(store, " ".join(terms)) == [one.id for one in SUMMARIES if matches(one)]


def test_sorting(store: Store) -> None:
    def by(field: str, *, reverse: bool = False) -> list[str]:
        return [id for (id,) in store.read(f"SELECT trajectory FROM rows ORDER BY {order(field, reverse=reverse)}")]

    assert by("") == ["aa11", "bb22", "cc33", "dd44", "ee55"]
    assert by("", reverse=True) == ["ee55", "dd44", "cc33", "bb22", "aa11"]
    assert by("reward") == ["ee55", "bb22", "aa11", "cc33", "dd44"]
    assert by("reward", reverse=True) == ["aa11", "bb22", "ee55", "cc33", "dd44"]
    assert by("grade", reverse=True) == ["cc33", "bb22", "aa11", "dd44", "ee55"]
    assert by("findings", reverse=True)[0] == "bb22"
    assert by("agents")[:2] == ["cc33", "aa11"]
    with pytest.raises(ValueError, match="Nothing can be sorted by reward; DROP"):
        order("reward; DROP TABLE rows", reverse=False)


def test_pages_of_a_list(tmp_path: Path, opened: Open) -> None:
    index = opened(write(tmp_path / "x.jsonl", map(run, range(10))))
    assert ids(index, offset=4, limit=3) == ["t4", "t5", "t6"]
    found = index.listed("reward:1 colour:red", "nothing", limit=2)
    assert (found["total"], found["matched"], len(found["rows"])) == (10, 3, 2)
    assert len(found["problems"]) == 2


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_text_in_the_lines(tmp_path: Path, opened: Open, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_search, "_WINDOW", 1000)
    texts = ['say "hello"\nWorld \\ 数', "nothing", "HELLO", "naïve", "C:\\new"]
    path = write(tmp_path / name, [run(number, text) for number, text in enumerate(texts)])
    index = opened(path)
    assert ids(index, "text:hello") == ["t0", "t2"]
    assert ids(index, "-text:hello reward:0") == ["t3"]
    assert ids(index, 'text:"World \\ 数"') == ["t0"]
    assert ids(index, "text:数") == ["t0"]
    assert ids(index, "text:naïve") == ["t3"]
    assert ids(index, "text:C:\\new") == ["t4"]
    assert ids(index, "text:absent") == []
    write(path, [run(5, "hello again")])
    index.wait()
    assert ids(index, "text:hello") == ["t0", "t2", "t5"]


# What many come to


def test_aggregate(tmp_path: Path, opened: Open) -> None:
    given = [run(number) for number in range(9)] + [run(9, reward=None, task=None, group_id=None, status="Odd")]
    index = opened(write(tmp_path / "x.jsonl", given))
    found = aggregate(index.store, index.matches("").condition)
    assert (found.n, found.n_groups) == (10, 3)
    assert [(group.group, group.n, group.rewards) for group in found.groups] == [
        ("task/0", 4, [0, 0.5, 1, 0]),
        ("task/1", 4, [0.5, 1, 0, 0.5]),
        ("task/2", 1, [1]),
    ]
    assert found.groups[1].keys[0] == keys(index)["t4"]
    assert found.statuses == {"completed": 9, "Odd": 1}
    assert found.mean_reward == 0.5
    assert found.std_reward == pytest.approx(0.4330127)
    assert found.over_time[0] == (given[0].started_at.timestamp(), 0.0)  # type: ignore[union-attr]
    assert len(found.over_time) == 9
    assert sum(found.histograms["reward"].counts) == 9
    assert found.findings["reward_missing"] == 1
    assert found.cost is None
    assert aggregate(index.store, index.matches("id:nothing").condition).n == 0


def test_histograms() -> None:
    nan = float("nan")
    assert histogram([]) == histogram([nan])
    assert (histogram([2, 2, nan]).edges, histogram([2, 2, nan]).counts) == ([2, 2], [2])
    whole = histogram(list(range(41)))
    assert whole.edges[:3] == [0, 3, 6]
    assert sum(whole.counts) == 41
    assert histogram([0.0, 0.25, 1.0]).counts == [1, 0, 0, 0, 0, 1, *[0] * 13, 1]
