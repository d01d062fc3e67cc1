"""``rollout-trace split``: groups and episodes stay together, bytes stay the same."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.file.split import Entry, by_fractions, by_number, by_size, by_value

from .command import command
from .runs import write_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_runs(tmp_path / "a.jsonl")
    return tmp_path


def groups(path: Path) -> list[str]:
    return sorted({str(run.group_id) for run in rt.read(path)})


@pytest.mark.parametrize("how", [["--by", "group"], ["-n", "2"], ["--size", "1KB"], ["--fractions", "a=0.6,b=0.4"]])
def test_no_line_is_lost_and_no_group_torn(how: list[str], folder: Path) -> None:
    done = command(folder, "split", "a.jsonl", "-o", "out", *how)
    assert (done.code, done.err) == (0, "")
    files = [path for path in sorted((folder / "out").iterdir()) if not path.name.endswith(".notes.jsonl")]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted((folder / "a.jsonl").read_text().splitlines())
    assert sorted(group for path in files for group in groups(path)) == ["g/0", "g/1", "g/2"]
    assert {run.id: run.reward for path in files for run in rt.read(path)}["t00"] == 5.0
    assert len(list((folder / "out").glob("*.notes.jsonl"))) == 1


def test_values_name_the_files_and_torn_groups_are_counted(folder: Path) -> None:
    with rt.JSONLWriter(folder / "b.jsonl.gz") as out:
        for at, status in enumerate(("../up", "A", "a", "history", "none", ".notes", "")):
            out.write(rt.Trajectory(id=str(at), group_id="g", status=status))
            out.write(rt.Trajectory(id=f"{at}-sub", episode_id=str(at), parent_id=str(at), status="other"))
    done = command(folder, "split", "b.jsonl.gz", "-o", "out", "--by", "status", "--json")
    assert done.code == 0
    assert (done.json["read"], done.json["torn_groups"]) == (14, 1)
    assert [one["trajectories"] for one in done.json["files"]] == [2] * 7
    names = os.listdir(folder / "out")
    assert len(names) == 7
    assert all(name.endswith(".jsonl.gz") and not name.startswith(".") for name in names)
    assert len(list(rt.read(folder / "out"))) == 14
    assert "history.jsonl.gz" not in names


def test_stdin_and_where(folder: Path) -> None:
    text = (folder / "a.jsonl").read_text()
    done = command(folder, "split", "-", "-o", "out", "-n", "9", "--where", "index < 2", stdin=text)
    assert done.code == 0
    assert done.out.splitlines()[0] == "6 of 12 trajectories in 3 files in out"
    assert "6 files were not written, because there were too few groups" in done.out
    done = command(folder, "split", "-", "-o", "out2", "-n", "2", stdin=f"{text}x\n")
    assert (done.code, done.err.partition(":")[0]) == (1, "stdin, line 13")


def test_mistakes_write_nothing(folder: Path) -> None:
    for args, message in (
        ([], "give exactly one of --by, -n, --size and --fractions"),
        (["-n", "2", "--by", "group"], "give exactly one of"),
        (["--size", "much"], "'much' is not a size"),
        (["--fractions", "0.5,0.6"], "whose sum is 1"),
        (["--fractions", "a=0.5,a=0.5"], "each name can be given once"),
        (["--fractions", "../a=1"], "letters, digits"),
        (["--fractions", "x"], "are not fractions"),
        (["-n", "0"], "-n"),
    ):
        done = command(folder, "split", "a.jsonl", "-o", "out", *args)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
    assert not (folder / "out").exists()


def test_an_earlier_split_is_replaced_whole_or_not_at_all(folder: Path) -> None:
    assert command(folder, "split", "a.jsonl", "-o", "out", "-n", "3").code == 0
    before = sorted(os.listdir(folder / "out"))
    done = command(folder, "split", "a.jsonl", "-o", "out", "-n", "3")
    assert (done.code, "--overwrite" in done.err) == (2, True)
    done = command(folder, "split", "a.jsonl", "-o", "out", "-n", "2", "--overwrite")
    assert (done.code, "out has other files of trajectories" in done.err) == (2, True)
    assert command(folder, "split", "a.jsonl", "-o", "out", "-n", "3", "--overwrite").code == 0
    assert sorted(os.listdir(folder / "out")) == before


def test_media_go_with_their_lines(tmp_path: Path) -> None:
    with rt.JSONLWriter(tmp_path / "a.jsonl", media="folder") as out:
        for at in range(2):
            out.write(
                rt.Trajectory(id=str(at), group_id=str(at), metadata={"i": f"data:image/png;base64,{str(at) * 4000}"})
            )
    assert command(tmp_path, "split", "a.jsonl", "-o", "out", "--by", "group").code == 0
    assert len(list((tmp_path / "out/0.jsonl.media").iterdir())) == 1
    whole = {run.id: run.metadata for run in rt.read(tmp_path / "a.jsonl")}
    assert {run.id: run.metadata for run in rt.read(tmp_path / "out")} == whole


def test_compressed_files_stay_compressed(folder: Path) -> None:
    (folder / "b.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
    assert command(folder, "split", "b.jsonl.gz", "-o", "out", "-n", "1").code == 0
    assert gzip.decompress((folder / "out/part-00.jsonl.gz").read_bytes()) == (folder / "a.jsonl").read_bytes()


_some = st.sampled_from("abc") | st.none()
_entries = st.lists(st.tuples(st.integers(1, 900), _some, _some, _some), max_size=30).map(
    lambda rows: [
        Entry(0, number, size, f"{number}", episode, group, value)
        for number, (size, episode, group, value) in enumerate(rows, 1)
    ]
)


@given(_entries, st.integers(1, 5), st.integers(1, 3000), st.integers(0, 3))
def test_every_plan_has_each_trajectory_once_and_tears_nothing(
    entries: list[Entry], count: int, size: int, seed: int
) -> None:
    plans = {
        "number": by_number(entries, count),
        "size": by_size(entries, size),
        "fractions": by_fractions(entries, [(None, 0.7), ("b", 0.3)], seed),
        "group": by_value([entry._replace(value=entry.group) for entry in entries], "group"),
        "status": by_value(entries, "status"),
    }
    for name, parts in plans.items():
        assert sorted(entry.number for part in parts for entry in part.entries) == [one.number for one in entries]
        assert len({part.name.lower() for part in parts}) == len(parts)
        kinds = ("episode",) if name == "status" else ("episode", "group")
        for kind in kinds:
            for value in "abc":
                homes = {part.name for part in parts for entry in part.entries if getattr(entry, kind) == value}
                assert len(homes) <= 1, (name, kind)
