"""``rollout-trace check --format``: what is printed, options, stdin, and exit codes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.file.defects import DEFECTS, GOOD_LINE, OTHER_LINE

from .command import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.jsonl").write_bytes(GOOD_LINE + b"\n" + OTHER_LINE + b"\n")
    lines = [DEFECTS[name][0] for name in ("logprobs", "end", "type", "schema", "not-json")]
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    return tmp_path


def test_good_files(folder: Path) -> None:
    done = command(folder, "check", "--format", "good.jsonl")
    assert (done.code, done.out, done.err) == (0, "no problems in 1 file, 2 lines, 2 trajectories\n", "")


def test_what_is_printed(folder: Path) -> None:
    done = command(folder, "check", "--format", ".", "--max-problems", "2")
    assert done.code == 1
    assert done.out.splitlines()[:4] == [
        "./bad.jsonl, line 1, $.steps[0].tokens.logprobs: expected 2 numbers (end - prompt), got 1 [logprobs-length]",
        "./bad.jsonl, line 2, $.steps[1].tokens: expected prompt <= end <= 3, the length of segment 1, got prompt 2 "
        "and end 4 [step-range]",
        "and 4 more; --max-problems N prints N of them",
        "6 problems in 2 files, 7 lines, 4 trajectories:",
    ]
    assert {line.split()[1] for line in done.out.splitlines()[4:]} == {
        *("logprobs-length", "step-range", "wrong-type", "unknown-schema", "not-json", "duplicate-trajectory-id"),
    }
    assert done.err == ""


def test_json(folder: Path) -> None:
    ignored = ["--ignore", "not-json", "bad.jsonl", "--ignore", "unknown-schema"]
    done = command(folder, "check", "--format", "--json", *ignored)
    found = done.json
    assert (done.code, found["problems"], found["lines"], found["files_with_problems"]) == (1, 4, 5, 1)
    assert found["codes"]["wrong-type"] == 1
    assert found["found"][2] == {
        "file": "bad.jsonl",
        "line": 3,
        "path": "$.steps[0].tokens.end",
        "code": "wrong-type",
        "message": "expected int, got str",
        "advice": "Mend the program that wrote the line, and write it anew.",
    }


def test_stdin(folder: Path) -> None:
    done = command(folder, "check", "--format", "-", stdin=(folder / "bad.jsonl").read_text())
    assert (done.code, done.out.splitlines()[0].partition(":")[0]) == (1, "stdin, line 1, $.steps[0].tokens.logprobs")
    assert command(folder, "check", "--format", "-", "good.jsonl", stdin=OTHER_LINE.decode()).code == 0


def test_wrong_use(folder: Path) -> None:
    done = command(folder, "check", "--format", "good.jsonl", "--ignore", "nothing")
    assert (done.code, "--ignore nothing: there is no such code. Codes: advantage-length, " in done.err) == (2, True)
    done = command(folder, "check", "--format", "none.jsonl")
    assert (done.code, done.err) == (2, "Error: there is no file none.jsonl.\n")
    done = command(folder, "check", "--format", "good.jsonl", "--code", "repeated_rollout")
    assert (done.code, "--code works only without --format." in done.err) == (2, True)
    done = command(folder, "check", "good.jsonl", "--max-problems", "1")
    assert (done.code, "--max-problems works only with --format." in done.err) == (2, True)


def test_text_of_files_is_escaped(folder: Path) -> None:
    line = json.dumps({"schema": "\x1b[2J\u202e", "id": "a"}, ensure_ascii=False).encode()
    (folder / "e\x1b[2J.jsonl").write_bytes(line)
    done = command(folder, "check", "--format", "e\x1b[2J.jsonl")
    assert done.code == 1
    assert not {"\x1b", "\u202e"} & set(done.out + done.err)


def test_damaged_compression_is_a_problem(folder: Path) -> None:
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(GOOD_LINE)[:-12])
    done = command(folder, "check", "--format", "cut.jsonl.gz")
    assert (done.code, "[damaged-compression]" in done.out, done.err) == (1, True, "")
