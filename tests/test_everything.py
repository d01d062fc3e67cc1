"""`make test`: every set of tests runs, whatever fails, and one table ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.everything import TIMES, Counts, Result, counts_of, longest_first, remember, times

PROGRAM = Path(__file__).parent / "everything.py"

MAKEFILE = """
test-good:
\t@echo "...s"
\t@echo "SKIPPED [1] tests/test_a.py:3: needs a GPU"
\t@echo "3 passed, 1 skipped in 0.12s"
test-twice:
\t@echo "2 passed in 1.00s"
\t@echo "==== 4 passed, 1 warning in 61.00s (0:01:01) ===="
test-bad:
\t@echo "FAILED tests/test_a.py::test_b - assert 1 == 2"
\t@echo "1 failed, 2 passed, 1 error in 0.12s"
\t@exit 1
test-unmade:
\t@echo "No matching distribution found"
\t@exit 2
test-empty:
\t@echo "no tests ran in 0.01s"
"""


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    (folder / "Makefile").write_text(MAKEFILE)
    return subprocess.run(
        [sys.executable, str(PROGRAM), *names],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "MAKEFLAGS": "k", "MAKELEVEL": "1"},
        check=False,
        timeout=60,
    )


def test_all_that_pass(tmp_path: Path) -> None:
    ran = run(tmp_path, "good", "twice")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "running 2 sets of tests, 2 at a time: good, twice"
    assert "    SKIPPED [1] tests/test_a.py:3: needs a GPU" in lines
    assert lines[-1] == "9 passed, 0 failed, 1 skipped"


def test_a_failure_stops_no_other(tmp_path: Path) -> None:
    ran = run(tmp_path, "bad", "unmade", "empty", "good")
    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    assert "    FAILED tests/test_a.py::test_b - assert 1 == 2" in lines
    assert "    No matching distribution found" in lines
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("environment")) :]
    assert [line.split()[:4] for line in table[1:5]] == [
        ["bad", "2", "2", "0"],
        ["unmade", "0", "0", "0"],
        ["empty", "0", "0", "0"],
        ["good", "3", "0", "1"],
    ]
    assert ["FAILED" in line for line in table[1:5]] == [True, True, True, False]
    assert lines[-2] == "failed: bad, unmade, empty; run one alone with: make test-bad"
    assert lines[-1] == "5 passed, 4 failed, 1 skipped"


def test_nothing_to_run_is_a_wrong_use(tmp_path: Path) -> None:
    ran = run(tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "name the targets to run" in ran.stderr


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("3 passed in 0.1s", Counts(3, 0, 0)),
        ("==== 1 failed, 3968 passed, 4 skipped, 2 xfailed in 151.02s (0:02:31) ====", Counts(3968, 1, 4)),
        ("2 errors in 0.10s", Counts(0, 2, 0)),
        ("it said: 3 passed in 0.1s", Counts()),
    ],
)
def test_the_closing_lines_of_pytest_are_read(line: str, counts: Counts) -> None:
    assert counts_of(f"before\n{line}\nafter") == counts


def test_the_longest_begin_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert longest_first(["b", "a"]) == ["b", "a"]
    remember([Result("a", Counts(passed=1), True, 3.0, ""), Result("b", Counts(failed=1), False, 90.0, "")])
    remember([Result("c", Counts(passed=1), True, 5.0, "")])
    # What has never passed may take any time.
    assert longest_first(["a", "new", "b", "c"]) == ["new", "b", "c", "a"]


@pytest.mark.parametrize("text", ["", "[]", '{"a": null}', '{"a": "x"}'])
def test_times_that_cannot_be_read_are_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TIMES.parent.mkdir()
    TIMES.write_text(text)
    assert times() == {}
