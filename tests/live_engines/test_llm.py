"""vLLM in the process that records it: ``LLM`` and ``AsyncLLM``, by the Python that has vLLM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import rollout_trace as rt
from tests.live_engines import servers

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("llm_program.py")


def python() -> str:
    """The Python that has vLLM; skips where there is none, or where it lacks what rollout_trace needs."""
    try:
        path = Path(servers._path("ROLLOUT_TRACE_VLLM", "vllm", "vllm"))
    except servers.NotInstalled as error:
        pytest.skip(str(error))
    found = str(path if path.name.startswith("python") else path.with_name("python"))
    if subprocess.run([found, "-c", "import msgspec, numpy, orjson"], capture_output=True).returncode:
        pytest.skip("the Python of vLLM has no orjson: see README.md beside this file")
    return found


@pytest.mark.parametrize("part", ["llm", "async"])
def test_steps_are_what_vllm_returned(part: str, tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    settings = {**os.environ, **servers._VLLM_ENVIRONMENT, "PYTHONPATH": str(ROOT), "PYTEST_CURRENT_TEST": "llm"}
    command = [python(), str(PROGRAM), part, str(file)]
    # A session of its own: vLLM ends the processes of its group.
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=900, start_new_session=True)
    assert done.returncode == 0, done.stderr[-5000:]
    trajectories = list(rt.read(str(file)))
    assert {step.protocol for trajectory in trajectories for step in trajectory.steps} == {"vllm.llm"}
    whole = [trajectory for trajectory in trajectories if all(step.status == "ok" for step in trajectory.steps)]
    assert len(whole) >= 5
    assert all(trajectory.sequences() for trajectory in whole)
