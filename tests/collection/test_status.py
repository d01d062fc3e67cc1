"""``status.json``: what other programs read while a run goes on."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rollout_trace.collection import reporters as status_module
from rollout_trace.collection.reporters import SCHEMA, StatusFile, write_status
from rollout_trace.data.model import Cost
from tests.collection.running import SUMMARY, Run


def test_what_is_in_it(tmp_path: Path) -> None:
    """The progress, and whose it is: a dead run can be told from one that goes on."""
    run = Run(planned=20, earlier=5, reward=0.25, cost=Cost(amount=1.5, source="table"))
    run.end(5, tokens=100, seconds=10)
    run.end(1, error="RateLimitError")
    before = datetime.now(timezone.utc)
    write_status(tmp_path / "new" / "status.json", run.progress(3), started_at=before)
    found = json.loads((tmp_path / "new" / "status.json").read_text())
    assert before <= datetime.fromisoformat(found.pop("updated_at")) <= datetime.now(timezone.utc)
    assert datetime.fromisoformat(found.pop("started_at")) == before
    assert found == {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "run_id": "r1",
        "output": "runs/x.jsonl",
        "state": "running",
        "planned": 20,
        "earlier": 5,
        "ended": 6,
        "done": 11,
        "running": 3,
        "by_status": {"completed": 5, "failed": 1},
        "failures": {"RateLimitError": 1},
        "retried": 0,
        "left_behind": 0,
        "reward_failures": 0,
        "calls": 0,
        "input_tokens": 0,
        "output_tokens": 100,
        "tokens_per_second": 10.0,
        "mean_reward": 0.25,
        "n_scored": 5,
        "exact_turns": None,
        "taken": 0,
        "ready": 0,
        "stale": 0,
        "dropped": 0,
        "cost": {"amount": 1.5, "currency": "USD", "source": "table"},
        "elapsed": 10.0,
        "eta": 15.0,
        "latest_failure": "t[2] failed: RateLimitError: no",
    }


def test_text_that_json_cannot_hold(tmp_path: Path) -> None:
    """Names of files can be such."""
    run = Run()
    run.end(error="bad\udc80")
    write_status(tmp_path / "status.json", run.progress())
    assert json.loads((tmp_path / "status.json").read_text())["failures"] == {"bad\\udc80": 1}


def test_readers_never_see_a_part(tmp_path: Path) -> None:
    """A file that is being replaced is there, whole, at any moment; nothing else is left in the folder."""
    path, run, found = tmp_path / "status.json", Run(), []
    write_status(path, run.progress())
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found.append(json.loads(path.read_text())["ended"])

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        run.end()
        write_status(path, run.progress())
    done.set()
    reader.join()
    assert found == sorted(found)
    assert os.listdir(tmp_path) == ["status.json"]


def test_it_is_written_once_a_second_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the progress changes."""
    run, written = Run(), []
    written_one = threading.Event()

    def write(path: Path, progress: object, **options: object) -> None:
        written.append(progress)
        written_one.set()

    monkeypatch.setattr(status_module, "write_status", write)
    file = StatusFile(tmp_path / "status.json", clock=lambda: run.now)
    file.begin(run.progress())
    assert written_one.wait(60)
    for quarter in range(1, 9):
        written_one.clear()
        run.end(seconds=0.25)
        file.update(run.progress())
        if quarter % 4 == 0:
            assert written_one.wait(60)
    last = run.progress()
    file.end(last, SUMMARY)
    assert written[-1] is last
    assert len(written) == 4


def test_a_slow_disk_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates return while one is being written, and at most one waits."""
    run, going, may_go, written = Run(), threading.Event(), threading.Event(), []

    def write(path: Path, progress: object, **options: object) -> None:
        going.set()
        assert may_go.wait(60)
        written.append(progress)

    monkeypatch.setattr(status_module, "write_status", write)
    file = StatusFile(tmp_path / "status.json", clock=lambda: run.now)
    file.begin(run.progress())
    assert going.wait(60)
    for _ in range(100):
        run.now += 10
        file.update(run.progress())
    may_go.set()
    file.end(run.progress(), SUMMARY)
    assert len(written) == 3


def test_a_disk_that_does_not_answer_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the end, too."""
    run, going, may_go = Run(), threading.Event(), threading.Event()

    def write(path: Path, progress: object, **options: object) -> None:
        going.set()
        may_go.wait(60)

    monkeypatch.setattr(status_module, "write_status", write)
    monkeypatch.setattr(status_module, "_PATIENCE", 0.01)
    file = StatusFile(tmp_path / "status.json")
    file.begin(run.progress())
    assert going.wait(60)
    file.end(run.progress(), SUMMARY)
    assert "is not up to date" in caplog.text
    may_go.set()


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and the run goes on."""
    (tmp_path / "folder").write_text("no folder")
    run = Run()
    file = StatusFile(tmp_path / "folder" / "status.json", clock=lambda: run.now)
    file.begin(run.progress())
    for _ in range(5):
        run.now += 2
        file.update(run.progress())
    file.note("hello")
    file.end(run.progress(), SUMMARY)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "status.json cannot be written" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
def test_a_file_that_cannot_be_written_leaves_the_status_before(tmp_path: Path) -> None:
    """And no part of the new one."""
    run = Run()
    write_status(tmp_path / "status.json", run.progress())
    run.end()
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_status(tmp_path / "status.json", run.progress())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert json.loads((tmp_path / "status.json").read_text())["ended"] == 0
    assert os.listdir(tmp_path) == ["status.json"]
