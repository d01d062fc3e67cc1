"""Ctrl-C while rollouts are made: real signals, to a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from tests.amount import some


@pytest.fixture
def address() -> Iterator[str]:
    with ScriptedServer(lambda request: Reply("four")) as server:
        yield server.base_url


def start(kind: str, address: str, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.collection.interrupted", kind, address, str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("kind", some(["sync", "async"], "async"))
def test_once_cuts_writes_and_can_go_on(tmp_path: Path, address: str, kind: str) -> None:
    output = tmp_path / "x.jsonl"
    process = start(kind, address, output)
    assert line(process) == "ready"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert f"run it again to continue: the rollouts made so far are in {output}" in errors
    found = list(rt.read(output))
    assert sorted(one.status for one in found) == ["aborted"] * 3 + ["completed"] * 2
    for one in found:
        assert [step.status for step in one.steps] == ["ok" if one.status == "completed" else "superseded"]
    assert not Path(f"{output}.journal").exists()

    again = start("finish", address, output)
    shown, errors = again.communicate(timeout=60)
    assert (again.returncode, shown) == (0, "ended\n")
    assert "2 of 8 rollouts are in" in errors
    (every,) = [[one for group in rt.groups(rt.read(output)) for one in group.trajectories]]
    assert [one.status for one in every] == ["completed"] * 8
    assert len(list(rt.read(output))) == 11


@pytest.mark.more
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_twice_does_not_wait(tmp_path: Path, address: str) -> None:
    """An agent that does not let itself be cancelled has five seconds; nobody has to wait for them."""
    output = tmp_path / "x.jsonl"
    process = start("stubborn", address, output)
    assert line(process) == "ready"
    process.send_signal(signal.SIGINT)
    assert line(process) == "cancelled"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" in errors
    # The end of the process writes what is open.
    assert sorted(one.status for one in rt.read(output)) == ["aborted"] * 3 + ["completed"] * 2
