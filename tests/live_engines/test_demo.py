"""The demo agent against a live engine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import rollout_trace as rt
from examples import quickstart
from tests.live_engines.clients import openai_client
from tests.live_engines.compare import assert_recorded
from tests.live_engines.servers import MODEL, Server

AGENTS = Counter({"solver": 4, "coordinator": 1, "sub-agent": 2})
SCRIPT = Path(quickstart.__file__)


def test_its_file_holds_what_was_served(server: Server, tmp_path: Path) -> None:
    path = str(tmp_path / "rollouts.jsonl")
    with openai_client(server) as (client, capture):
        quickstart.run(rt.wrap_openai(client, engine=server.engine), MODEL, path)
    assert_recorded([step for trajectory in rt.read(path) for step in trajectory.steps], capture.exchanges)


def test_the_script(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    options = ["--base-url", server.base_url, "--engine", server.engine, "--model", MODEL, "--output", str(path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"What {path} holds" in done.stdout
    trajectories = list(rt.read(str(path)))
    assert Counter(trajectory.name for trajectory in trajectories) == AGENTS
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    assert {step.status for step in steps} == {"ok"}
    if server.engine == "vllm":
        assert all(step.token_issue is None and step.logprobs is not None for step in steps)
        assert all(trajectory.sequences() for trajectory in trajectories)
