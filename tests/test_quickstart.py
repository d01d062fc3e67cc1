"""The quickstart, run as its user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_alone_it_records_every_exchange_of_the_embedded_server(tmp_path: Path) -> None:
    shown = run(tmp_path)
    assert "18 calls, 18 HTTP exchanges recorded; the server answered 18." in shown
    assert {step.status for one in rt.read(tmp_path / "rollouts.jsonl") for step in one.steps} == {"ok"}


def test_a_server_is_asked_for_its_model(tmp_path: Path) -> None:
    def script(request: Any) -> Any:
        # What `rt.probe` sends before is no question of the agent's.
        return quickstart.script(request) if "What is " in str(request.get("messages")) else "ok"

    with ScriptedServer(script, model="its-own-name", strict_model=True) as server:
        shown = run(tmp_path, "--base-url", server.base_url)
    assert "18 calls, 18 HTTP exchanges recorded." in shown
    steps = [step for one in rt.read(tmp_path / "rollouts.jsonl") for step in one.steps]
    assert {step.model for step in steps} == {"its-own-name"}
    assert {step.token_source for step in steps} == {"engine"}
