"""What reads the files of commands, on a terminal: the progress bar, and stdin that nobody types into."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_trace.cli.reading import Trajectories

from .runs import write_runs

needs_terminal = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")

_COUNT = "from rollout_trace.cli import main; sys.exit(main(['filter', 'True', sys.argv[1], '--count']))"


def on_terminal(program: str, *args: str, stdin: bool = False) -> tuple[int, str, str]:
    """Exit code, stdout, and what a terminal as stderr (and stdin) was sent."""
    main, side = os.openpty()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys\n{program}", *args],
        stdin=side if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=side,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        timeout=120,
        text=True,
    )
    os.close(side)
    sent = b""
    try:
        while data := os.read(main, 1 << 16):
            sent += data
    except OSError:
        pass
    os.close(main)
    return done.returncode, done.stdout, sent.decode()


@needs_terminal
def test_a_bar_is_shown_on_a_terminal_and_erased_at_the_end(tmp_path: Path) -> None:
    path = str(write_runs(tmp_path / "a.jsonl"))
    soon = "import rollout_trace.cli.reading as p; p._AFTER = p._EVERY = 0\n"
    code, out, sent = on_terminal(soon + _COUNT, path)
    assert (code, out) == (0, "12\n")
    assert "reading" in sent
    assert sent.rstrip().endswith("\x1b[2K")


@needs_terminal
def test_no_bar_for_short_work(tmp_path: Path) -> None:
    path = str(write_runs(tmp_path / "a.jsonl"))
    late = "import rollout_trace.cli.reading as p; p._AFTER = 1e9\n"
    assert on_terminal(late + _COUNT, path) == (0, "12\n", "")


@needs_terminal
def test_no_bar_without_rich(tmp_path: Path) -> None:
    path = str(write_runs(tmp_path / "a.jsonl"))
    soon = "sys.modules['rich'] = None; import rollout_trace.cli.reading as p; p._AFTER = p._EVERY = 0\n"
    assert on_terminal(soon + _COUNT, path) == (0, "12\n", "")


@needs_terminal
def test_a_terminal_is_not_waited_for(tmp_path: Path) -> None:
    code, out, sent = on_terminal(_COUNT, "-", stdin=True)
    assert (code, out) == (2, "")
    assert "stdin is a terminal" in " ".join(sent.split())


_GOOD = b'{"schema":"rollout-trace/1","id":"a"}'
_parts = st.sampled_from(
    [_GOOD, b"\n", b"\r\n", b"{", b"\x1f\x8b\x08", gzip.compress(_GOOD + b"\n"), b"\xef\xbb\xbf", b"\0"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_parts | st.binary(max_size=20), max_size=6).map(b"".join))
def test_any_bytes_are_trajectories_or_problems(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    found = Trajectories([str(path)])
    read = list(found)
    assert all(one.trajectory.id == "a" and one.data == _GOOD for one in read)
    assert found.read == len(read)
    assert all(str(error).startswith(str(path)) for error in found.problems)
    # Nothing but blanks is nothing at all.
    assert read or found.problems or not data.removeprefix(b"\xef\xbb\xbf").strip()
