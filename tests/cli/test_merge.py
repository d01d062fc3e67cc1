"""``rollout-trace merge``: what ``rt.merge`` does, and what is printed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollout_trace as rt

from .command import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("1.jsonl", "2.jsonl.gz"):
        with rt.JSONLWriter(tmp_path / name) as out:
            for run in ("same", name):
                out.write(rt.Trajectory(id=run))
    rt.annotate(tmp_path / "1.jsonl", "same", reward=1)
    return tmp_path


@pytest.mark.parametrize("paths", [["1.jsonl", "2.jsonl.gz"], ["*.jsonl*"], ["."], ["1.jsonl", "1.notes.jsonl", "2*"]])
def test_files_patterns_and_folders_are_merged(paths: list[str], folder: Path) -> None:
    done = command(folder, "merge", *paths, "-o", "sub/out.jsonl.zst")
    expected = [
        "3 trajectories in sub/out.jsonl.zst, of 4 read",
        "doubles dropped: 1",
        "trajectories with notes folded in: 1",
    ]
    assert (done.code, done.out.splitlines(), done.err) == (0, expected, "")
    found = {run.id: run.reward for run in rt.read(folder / "sub" / "out.jsonl.zst")}
    assert found == {"1.jsonl": None, "same": 1, "2.jsonl.gz": None}


def test_what_is_left_out_is_named(folder: Path) -> None:
    with (folder / "1.jsonl").open("a") as file:
        file.write("x\ny\x1b[2J\n")
    rt.annotate(folder / "1.jsonl", "no\x1b[2J", reward=1)
    done = command(folder, "merge", ".", "-o", "sub/out.jsonl")
    assert done.code == 1
    assert "\x1b" not in done.out + done.err
    assert "notes without a trajectory: 1 ('no\\x1b[2J')\n" in done.out
    assert "lines that could not be read: 2, the first: ./1.jsonl, line 3: " in done.out
    assert done.err.startswith("./1.jsonl, line 4: ")
    as_json = command(folder, "merge", ".", "-o", "sub/out.jsonl", "--overwrite", "--json")
    assert (as_json.code, as_json.err) == (1, "")
    assert (as_json.json["unmatched_notes"], len(as_json.json["unreadable"])) == (["no\x1b[2J"], 2)


def test_an_output_that_exists_is_kept(folder: Path) -> None:
    before = (folder / "2.jsonl.gz").read_bytes()
    done = command(folder, "merge", "1.jsonl", "-o", "2.jsonl.gz")
    assert done.code == 2
    assert "2.jsonl.gz exists. Give a new name, or --overwrite to replace it." in done.err
    assert (folder / "2.jsonl.gz").read_bytes() == before
    done = command(folder, "merge", "1.jsonl", "-o", "1.jsonl", "--overwrite")
    assert (done.code, "is one of the files to merge" in done.err) == (2, True)
    assert command(folder, "merge", "1.jsonl", "-o", "2.jsonl.gz", "--overwrite").code == 0


def test_stdin_is_a_file_like_others(folder: Path) -> None:
    text = (folder / "1.jsonl").read_text() + "x\ny\n"
    done = command(folder, "merge", "-", "2.jsonl.gz", "-o", "out.jsonl", stdin=text)
    assert (done.code, done.out.splitlines()[0]) == (1, "3 trajectories in out.jsonl, of 4 read")
    assert "the first: stdin, line 3: " in done.out
    assert done.err.startswith("stdin, line 4: ")
    (folder / "plain").touch()
    assert (folder / "out.jsonl").stat().st_mode == (folder / "plain").stat().st_mode
    twice = command(folder, "merge", "-", "-", "-o", "two.jsonl", stdin=text)
    assert (twice.code, (folder / "two.jsonl").exists()) == (2, False)
