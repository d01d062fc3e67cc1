"""What the log says when something could not be written, and of text that somebody else wrote."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace import guard

PACKAGE = Path(rt.__file__).parent


def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides that this is a test, in which the recorder's failures are raised (pytest says so anew in each phase)."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


def full(file: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.fixture
def half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes the first bytes of a line."""
    real = os.write

    def write(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return real(file, data[:10])

    monkeypatch.setattr(os, "write", write)


@pytest.mark.usefixtures("half_written")
def test_it_is_one_line_at_the_first_failure_and_one_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.jsonl"
    in_production(monkeypatch)
    ids = []

    def work() -> None:
        with rt.recording(path, journal=False):
            for _ in range(2):
                with rt.trajectory() as trajectory:
                    ids.append(trajectory.id)

    with caplog.at_level(logging.INFO, "rollout_trace"), pytest.raises(rt.WriteError) as raised:
        work()
    first, last = caplog.messages
    assert first == (
        f"trajectory {ids[0]} could not be written to {path}: [Errno 28] No space left on device. The file is as it "
        "was before, and the trajectory can be written again. It and those that follow are kept in memory and "
        "tried again. The agent goes on."
    )
    assert last == (
        f"{path}: 2 trajectories could not be written at once: 2 are in the `lost` of the recording. There is no "
        "journal of them."
    )
    assert {(record.levelname, record.exc_info) for record in caplog.records} == {("WARNING", None)}
    assert path.read_bytes() == b""
    assert [trajectory.id for trajectory, _ in raised.value.lost] == ids
    monkeypatch.undo()
    assert raised.value.write(tmp_path / "other.jsonl") == 2
    assert [one.id for one in rt.read(tmp_path / "other.jsonl")] == ids


@pytest.mark.usefixtures("half_written")
def test_a_journal_on_the_same_full_disk_is_not_said_to_have_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.jsonl"
    in_production(monkeypatch)
    (tmp_path / "rollouts.jsonl.journal").write_text("a file, so that there can be no folder of this name")

    def work() -> None:
        with rt.recording(path), rt.trajectory() as trajectory:
            trajectory.metadata = {"label": "solved"}

    with caplog.at_level(logging.INFO, "rollout_trace"), pytest.raises(rt.WriteError):
        work()
    assert "The journal has only parts of them: rt.recover(" in caplog.messages[-1]


@pytest.mark.usefixtures("half_written")
def test_a_line_that_cannot_be_taken_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a disk that takes no change any more: what the message says of the file is what is so."""

    def refuse(file: int, length: int) -> None:
        raise OSError(30, "Read-only file system")

    path = tmp_path / "rollouts.jsonl"
    in_production(monkeypatch)
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(rt.WriteError), rt.recording(path, journal=False), rt.trajectory():
        pass
    line, _ = caplog.messages
    assert "[Errno 28] No space left on device. A part of its line is at the end of the file (10 of " in line
    assert "as it was" not in line
    assert len(path.read_bytes()) == 10


def test_of_another_failure_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With a traceback only for who asks for it."""
    in_production(monkeypatch)

    class Broken:
        def write(self, trajectory: rt.Trajectory) -> None:
            raise RuntimeError("said \x1b]0;title\x07\nWARNING forged")

    with caplog.at_level(logging.DEBUG, "rollout_trace"), pytest.raises(rt.WriteError):
        with rt.recording(Broken()), rt.trajectory("sol\nver"):
            pass
    error, debug = caplog.records
    assert "RuntimeError: said \\x1b]0;title\\x07\\nWARNING forged. The agent goes on; " in error.getMessage()
    assert re.match(r"trajectory \w+ \(sol\\nver\) was not written to <.*Broken object at ", error.getMessage())
    assert (error.levelname, error.exc_info) == ("ERROR", None)
    assert (debug.levelname, debug.exc_info) == ("DEBUG", None)
    first, *rest = debug.getMessage().split("\n")
    assert first == "the traceback:"
    assert all(line.startswith("    ") for line in rest)
    assert "in write" in debug.getMessage()
    assert "\x1b" not in debug.getMessage()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, ünï © 🐍", "plain, ünï © 🐍"),
        ("\x1b[2J\x9b\x00\r\n\t", "\\x1b[2J\\x9b\\x00\\r\\n\\t"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("half \ud83d", "half \\ud83d"),
        ("x" * 3000, "x" * 1997 + "..."),
    ],
)
def test_text_of_others_is_on_one_line(text: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    guard.warn_once("a", text)
    assert caplog.messages == [expected]


def test_whatever_is_logged_goes_through_the_guard() -> None:
    """It escapes; a line of the log that is written elsewhere would have to be looked at again."""
    found = re.compile(r"getLogger|\blogger\.|\blog\.(debug|info|warning|error|exception|critical)\(|warnings\.warn\(")
    elsewhere = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name != "guard.py" and found.search(path.read_text(encoding="utf-8"))
    }
    # There a rollout gets a logger of the agent's own, and nothing of ours is logged; and what the guard logs in a
    # writer process goes to its parent.
    assert elsewhere == {"collection/logs.py", "record/writer_child.py"}
