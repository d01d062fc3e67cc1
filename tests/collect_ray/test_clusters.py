"""Programs that connect to a cluster, or start one. Before the other tests, whose cluster would be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._private.services import find_gcs_addresses

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.collection import executor_agents as agents

ROOT = Path(rt.__file__).parents[1]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as server:
        yield server


ALONE = """
import sys
import rollout_trace as rt
from tests.collection import executor_agents as agents

address = sys.argv[2] if len(sys.argv) > 2 else None
executor = rt.RayExecutor(address, actors=1)
tasks = agents.tasks(sys.argv[1], 1)
summary = rt.collect(agents.solve, tasks, output="x.jsonl", samples=2, executor=executor, progress=False)
import ray
print(summary.by_status, ray.is_initialized())
"""


def program(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.run(
        [sys.executable, "-c", ALONE, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip


def test_without_a_cluster(tmp_path: Path, server: ScriptedServer) -> None:
    """One is started on this machine, which is said, and ended."""
    if find_gcs_addresses():
        pytest.skip("a Ray cluster runs on this machine")
    done = program(tmp_path, server.base_url)
    assert (done.stdout, done.returncode) == ("{'completed': 2} False\n", 0), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("no Ray cluster was found: one was started on this machine, with ")
    assert len(agents.account(tmp_path / "x.jsonl")) == 2


def test_an_address_without_a_cluster(tmp_path: Path) -> None:
    done = program(tmp_path, "http://127.0.0.1:9", "127.0.0.1:9")
    assert done.returncode == 1
    assert "ConnectionError: there is no Ray cluster at 127.0.0.1:9" in done.stderr.splitlines()[-1]
    assert list(rt.read(tmp_path / "x.jsonl")) == []


def test_a_cluster_that_runs_goes_on(tmp_path: Path, server: ScriptedServer, cluster: str) -> None:
    """A program connects to the one at an address, and leaves it."""
    done = program(tmp_path, server.base_url, cluster)
    assert (done.stdout, done.returncode) == ("{'completed': 2} False\n", 0), done.stderr
    assert done.stderr == ""
    assert len(agents.account(tmp_path / "x.jsonl")) == 2
    assert ray.cluster_resources()["CPU"] == 2.0
