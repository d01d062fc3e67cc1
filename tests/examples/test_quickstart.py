"""The quickstart, run as its user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from examples import quickstart
from rollout_trace.testing import ScriptedServer

SCRIPT = Path(quickstart.__file__)


def run(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.more
def test_alone_it_records_every_exchange_of_the_embedded_server(tmp_path: Path) -> None:
    shown = run(tmp_path)
    assert "18 calls, 18 HTTP exchanges recorded; the server answered 18." in shown
    assert {step.status for one in rt.read(tmp_path / "demo.jsonl") for step in one.steps} == {"ok"}


@pytest.mark.more
def test_a_recording_that_exists_is_deleted_only_where_it_is_asked_for(tmp_path: Path) -> None:
    kept, notes = tmp_path / "demo.jsonl", tmp_path / "demo.notes.jsonl"
    (tmp_path / "rollouts.jsonl").write_text("the user's\n")
    notes.write_text("noted by the user\n")
    for existing in (notes, kept):
        existing.write_text("the user's\n")
        refused = subprocess.run(
            [sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        sentence = f"{existing.name} exists: name another file with --output, or delete this one with --overwrite.\n"
        assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", sentence)
        assert existing.read_text() == "the user's\n"
    for _ in range(2):
        run(tmp_path, "--overwrite")
        assert len(list(rt.read(kept))) == 7
        assert not notes.exists()
    assert (tmp_path / "rollouts.jsonl").read_text() == "the user's\n"


@pytest.mark.more
def test_the_commands_that_it_prints_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(sys.executable).with_name("rollout-trace")
    monkeypatch.setenv("PATH", "/usr/bin")
    printed = [line.split()[0] for line in run(tmp_path).splitlines() if "rollout-trace" in line or " view " in line]
    assert len(printed) == 3
    assert {(tmp_path / command).resolve() for command in printed} == {own.resolve()}
    monkeypatch.setenv("PATH", str(own.parent))
    assert "\n  rollout-trace view demo.jsonl\n" in run(tmp_path, "--overwrite")


@pytest.mark.more
def test_a_server_is_asked_for_its_model(tmp_path: Path) -> None:
    def script(request: Any) -> Any:
        # What `rt.probe` sends before is no question of the agent's.
        return quickstart.script(request) if "What is " in str(request.get("messages")) else "ok"

    with ScriptedServer(script, model="its-own-name", strict_model=True) as server:
        shown = run(tmp_path, "--base-url", server.base_url)
    assert "18 calls, 18 HTTP exchanges recorded." in shown
    steps = [step for one in rt.read(tmp_path / "demo.jsonl") for step in one.steps]
    assert {step.model for step in steps} == {"its-own-name"}
    assert {step.token_source for step in steps} == {"engine"}
