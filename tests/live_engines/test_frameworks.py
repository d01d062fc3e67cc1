"""Frameworks on a live engine, each in its own environment: what is recorded adds up to the engine's own counters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import rollout_trace as rt
from tests.live_engines.servers import MODEL, Server
from tests.live_engines.test_collect import counters

ROOT = Path(__file__).parents[2]
PROGRAMS = {path.stem.removesuffix("_runs"): path for path in Path(__file__).with_name("frameworks").glob("*_runs.py")}
"""By the framework: ``openai_agents`` runs in the environment of ``rollout-trace-openai-agents``. The files are named
otherwise than the packages that they import."""
RUNS = 3
EXACT = ("langchain", "openai-agents", "pydantic-ai", "strands")
"""Integrations with a test of exact turns, which takes a live server in the place of a scripted one."""


def python_of(name: str) -> Path:
    """That of an integration's environment; the test is skipped where there is none."""
    environment = f"rollout-trace-{name}"
    python = ROOT / ".venvs" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"make {environment} makes the environment of this framework")
    return python


def test_there_is_a_program_for_each_framework_of_its_own_environment() -> None:
    assert {"google_adk", "inspect", "openai_agents", "pydantic_ai"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_totals_are_the_engines(server: Server, name: str, tmp_path: Path) -> None:
    if server.engine != "vllm":
        pytest.skip("llama-server counts only where it was started with --metrics")
    python = python_of(name.replace("_", "-"))
    before, file = counters(server), tmp_path / "rollouts.jsonl"
    command = [str(python), str(PROGRAMS[name]), server.base_url, MODEL, str(file), str(RUNS)]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "OPENAI_API_KEY": "none"}, capture_output=True,
                          text=True, timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    counted = tuple(now - then for now, then in zip(counters(server), before, strict=True))
    trajectories = list(rt.read(file))
    steps = [step for one in trajectories for step in one.steps]
    assert len(trajectories) == RUNS
    assert {(step.status, step.token_issue, step.token_source) for step in steps} == {("ok", None, "engine")}
    prompts = sum(len(step.prompt_token_ids) for step in steps if step.prompt_token_ids is not None)
    sampled = sum(len(step.completion_token_ids) for step in steps if step.completion_token_ids is not None)
    assert (prompts, sampled) == counted
    assert counted[1] > 0
    for one in trajectories:
        # A random model seldom writes a call that can be parsed, also where vLLM makes it begin one.
        assert {run.name for run in one.tool_runs} <= {"add"}
        assert all(run.step_id in {step.id for step in one.steps} for run in one.tool_runs)


@pytest.mark.parametrize("name", EXACT)
def test_eight_turns_of_a_framework_are_one_row(server: Server, name: str, tmp_path: Path) -> None:
    if server.engine != "vllm":
        pytest.skip("llama-server takes no ids beside messages")
    python = python_of(name)
    tests = ROOT / "integrations" / f"rollout-trace-{name}" / "tests" / "test_exact_turns.py"
    command = [str(python), "-m", "pytest", "-q", "--basetemp", str(tmp_path / "of"), str(tests)]
    environment = {**os.environ, "ROLLOUT_TRACE_LIVE_VLLM": server.url}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
