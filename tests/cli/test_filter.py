"""``rollout-trace filter``, and what reads the files of commands: stdin, notes, media, damaged lines."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_trace as rt

from .command import command
from .runs import run_of, write_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_runs(tmp_path / "a.jsonl")
    return tmp_path


def ids(text: str) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


def test_lines_are_copied_byte_for_byte(folder: Path) -> None:
    lines = (folder / "a.jsonl").read_text().splitlines()
    done = command(folder, "filter", "reward == 1 and group == 'g/1'", "a.jsonl")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [lines[5], lines[7]]
    done = command(folder, "filter", "index == 3", "a.jsonl", "-o", "sub/out.jsonl.gz")
    assert (done.code, done.out, done.err) == (0, "3 of 12 trajectories in sub/out.jsonl.gz\n", "")
    assert gzip.decompress((folder / "sub/out.jsonl.gz").read_bytes()).decode().splitlines() == lines[3::4]
    inverted = command(folder, "filter", "-v", "index == 3", "a.jsonl", "--count")
    assert (inverted.code, inverted.out) == (0, "9\n")


def test_notes_count_and_are_folded_in(folder: Path) -> None:
    done = command(folder, "filter", "reward > 1", "a.jsonl", "-o", "out.jsonl", "--json")
    assert done.json == {"output": "out.jsonl", "read": 12, "kept": 1, "unreadable": []}
    assert not (folder / "out.notes.jsonl").exists()
    assert [(run.id, run.reward) for run in rt.read(folder / "out.jsonl")] == [("t00", 5.0)]
    printed = json.loads(command(folder, "filter", "reward > 1", "a.jsonl").out)
    assert (printed["id"], printed["reward"]) == ("t00", 5.0)


def test_media_go_with_their_lines(tmp_path: Path) -> None:
    image = base64.b64encode(bytes(range(256)) * 100).decode()
    run = run_of(0, 0)
    run.metadata = {"image": f"data:image/png;base64,{image}"}
    with rt.JSONLWriter(tmp_path / "a.jsonl", media="folder") as out:
        out.write(run)
    assert len(list((tmp_path / "a.jsonl.media").iterdir())) == 1
    assert command(tmp_path, "filter", "True", "a.jsonl", "-o", "b.jsonl").code == 0
    assert [one.metadata for one in rt.read(tmp_path / "b.jsonl")] == [run.metadata]
    (tmp_path / "c.jsonl").write_text(command(tmp_path, "filter", "True", "a.jsonl").out)
    assert [one.metadata for one in rt.read(tmp_path / "c.jsonl")] == [run.metadata]
    for one in (tmp_path / "a.jsonl.media").iterdir():
        one.unlink()
    done = command(tmp_path, "filter", "True", "a.jsonl", "-o", "d.jsonl")
    assert (done.code, done.out) == (1, "0 of 1 trajectories in d.jsonl\n")
    assert done.err.startswith("a.jsonl, line 1")
    assert not (tmp_path / "d.jsonl.media").exists()


def test_nothing_kept_is_1_and_mistakes_are_2(folder: Path) -> None:
    assert (command(folder, "filter", "reward > 99", "a.jsonl").code) == 1
    for args, message in (
        (["rewrd > 1", "no-such-file"], "there is no name 'rewrd'. Did you mean reward?"),
        (
            ["a.jsonl", "reward > 1"],
            "give the expression before the files: rollout-trace filter 'reward > 0.5' a.jsonl",
        ),
        (["reward > 'x'", "a.jsonl"], "cannot be compared with the text 'x'"),
        (["reward > 1", "no-such-file"], "there is no file no-such-file"),
        (["True", "a.jsonl", "-o", "a.jsonl", "--overwrite"], "a.jsonl is one of the files to filter"),
        (["True", "a.jsonl", "-o", "x.csv"], "x.csv"),
        (["True", "a.jsonl", "--json"], "Give -o OUT or --count"),
        (["True", "-", "-"], "- is given twice"),
    ):
        done = command(folder, "filter", *args)
        assert (done.code, done.out) == (2, ""), args
        assert message in done.err
        assert "Traceback" not in done.err
    assert sorted(os.listdir(folder)) == ["a.jsonl", "a.notes.jsonl"]
    before = (folder / "a.jsonl").read_bytes()
    (folder / "b.jsonl").write_text("mine")
    assert "b.jsonl exists" in command(folder, "filter", "True", "a.jsonl", "-o", "b.jsonl").err
    assert ((folder / "a.jsonl").read_bytes(), (folder / "b.jsonl").read_text()) == (before, "mine")
    # An expression that fails in the middle leaves nothing behind.
    assert command(folder, "filter", "1 / (index - 2) < 9", "a.jsonl", "-o", "c.jsonl").code == 2
    assert not list(folder.glob("*c.jsonl*"))


def test_damaged_lines_are_named_and_the_others_kept(folder: Path) -> None:
    with (folder / "a.jsonl").open("a") as file:
        file.write('x\x1b[2J\n{"schema": "rollout-trace/1"}\n')
    done = command(folder, "filter", "True", "a.jsonl", "--count")
    assert (done.code, done.out) == (1, "12\n")
    assert [line.partition(",")[0] for line in done.err.splitlines()] == ["a.jsonl", "a.jsonl"]
    assert "\x1b" not in done.err


def test_stdin_is_read_plain_and_compressed_and_beside_files(folder: Path) -> None:
    text = (folder / "a.jsonl").read_text()
    assert ids(command(folder, "filter", "index == 0", "-", stdin=text).out) == ["t00", "t10", "t20"]
    done = command(folder, "filter", "index == 0", "a.jsonl", "-", "a.jsonl", stdin=text.splitlines()[4])
    assert ids(done.out) == ["t00", "t10", "t20", "t10", "t00", "t10", "t20"]
    assert command(folder, "filter", "True", "-", stdin="").code == 1
    assert "stdin, line 1" in command(folder, "filter", "True", "-", stdin="{").err
    packed = subprocess.run(
        [sys.executable, "-W", "error", "-m", "rollout_trace", "filter", "index == 1", "-", "-c"],
        input=gzip.compress(text.encode()),
        capture_output=True,
        timeout=60,
    )
    assert (packed.returncode, packed.stdout, packed.stderr) == (0, b"3\n", b"")


def test_a_pipe_is_read_as_it_is_written(folder: Path) -> None:
    """The first line comes out while the program that writes has not ended."""
    line = (folder / "a.jsonl").read_bytes().splitlines(keepends=True)[1]
    program = (
        "import sys, rollout_trace.cli.reading as r\nfor one in r.Trajectories(['-']): print(one.number, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for number in (b"1\n", b"2\n"):
            reader.stdin.write(line)
            reader.stdin.flush()
            assert reader.stdout.readline() == number
        reader.stdin.close()
        assert reader.stdout.read() == b""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_on_a_terminal_control_characters_are_escaped_and_the_line_is_the_same_json(tmp_path: Path) -> None:
    run = run_of(0, 0)
    run.metadata = {"text": "a\u202eb\u0085c\u2028 数"}
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        out.write(run)
    main, side = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "rollout_trace", "filter", "True", str(tmp_path / "a.jsonl")],
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        timeout=60,
    )
    os.close(side)
    printed = b""
    while True:
        try:
            data = os.read(main, 1 << 16)
        except OSError:
            break
        if not data:
            break
        printed += data
    os.close(main)
    text = printed.decode().replace("\r\n", "\n")
    assert done.returncode == 0
    assert text.rstrip("\n").isprintable()
    assert json.loads(text) == json.loads((tmp_path / "a.jsonl").read_text())


def test_fields_lists_the_names(folder: Path) -> None:
    done = command(folder, "filter", "--fields")
    assert (done.code, done.err) == (0, "")
    assert {"reward", "n_steps", "matches"} <= {line.split()[0] for line in done.out.splitlines()}
