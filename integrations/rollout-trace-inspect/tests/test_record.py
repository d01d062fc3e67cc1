"""What is recorded, and where it goes: models, blocks, the environment, recordings of the user's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import eval
from inspect_ai.model import get_model
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from oracle import assert_all_served, assert_served

import rollout_trace as rt
from rollout_trace.integration import is_recorded, recording_here
from rollout_trace.testing import ScriptedServer
from rollout_trace_inspect import record, record_evals

from .harness import Evals, add, adding, adding_task, children, facts, plain_model, recorded_model, roots

TASK = Path(__file__).parent / "task_file.py"


def test_record_takes_a_model_and_gives_it_back() -> None:
    with ScriptedServer("known") as server:
        model = plain_model(server)
        assert record(model, engine="vllm") is model
        kind = type(model.api.client)  # type: ignore[attr-defined]
        assert record(model, engine="vllm") is model
        assert type(model.api.client) is kind  # type: ignore[attr-defined]
        assert type(model.api).__name__ == "OpenAIAPI"


@pytest.mark.parametrize("wrong", ["openai/gpt-5", None, adding_task()])
def test_record_refuses_what_is_no_model(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"record\(\) takes a model, got .*get_model.*record_evals"):
        record(wrong)


def test_an_unknown_engine_is_refused() -> None:
    model = get_model("mockllm/model")
    with pytest.raises(ValueError, match="engine='warp' is not known"):
        record(model, engine="warp")
    with pytest.raises(ValueError, match="engine='warp' is not known"), record_evals(engine="warp"):
        pass


def test_nothing_is_recorded_unless_asked_for(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        recorded_model(server)
        log = evals.run(adding_task(solver=generate()), plain_model(server, memoize=False))
        assert "return_token_ids" not in server.requests[0].json
    assert not evals.file(log).exists()
    assert rt.stats().calls == 0 or not rt.orphans()


def test_a_block_records_what_runs_in_it_and_is_undone(evals: Evals) -> None:
    with ScriptedServer(adding(1)) as server:
        # Inspect keeps the model, and evaluates with it again.
        model = plain_model(server)
        own, kind = type(model.api), type(model.api.client)  # type: ignore[attr-defined]
        with record_evals(engine="vllm"):
            log = evals.run(adding_task(), model)
            (found,) = evals.trajectories(log)
            assert_served(server, found.steps)
        assert (type(model.api), type(model.api.client)) == (own, kind)  # type: ignore[attr-defined]
        after = evals.run(adding_task(), model)
        assert "return_token_ids" not in server.requests[-1].json
    assert not evals.file(after).exists()
    assert rt.orphans() == []


def test_a_client_that_is_made_in_a_block_is_left_plain(evals: Evals) -> None:
    """The provider of vLLM makes its client in the first call."""
    with ScriptedServer("known") as server:
        # Inspect remembers the address of each model's server.
        model = plain_model(server, api="vllm/block")
        with record_evals(engine="vllm"):
            (found,) = evals.trajectories(evals.run(adding_task(solver=generate()), model))
            assert found.steps[0].token_source == "engine"
        assert not is_recorded(model.api.client)  # type: ignore[attr-defined]


def test_a_block_leaves_a_client_of_the_user_recorded(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        model = plain_model(server)
        kind = type(rt.wrap_openai(model.api.client, engine="vllm"))  # type: ignore[attr-defined]
        with record_evals():
            (found,) = evals.trajectories(evals.run(adding_task(solver=generate()), model))
            assert_served(server, found.steps)
        assert type(model.api.client) is kind  # type: ignore[attr-defined]


def test_a_block_leaves_the_settings_of_a_client_of_the_user(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        model = plain_model(server, memoize=False)
        rt.wrap_openai(model.api.client)  # type: ignore[attr-defined]
        with record_evals(engine="vllm"):
            evals.run(adding_task(solver=generate()), model)
        with rt.trajectory():
            evals.run(adding_task(solver=generate()), model)
        # The last: older releases send the first call of a second evaluation again.
        assert ["return_token_ids" in server.requests[at].json for at in (0, -1)] == [True, False]


def test_recording_again_changes_the_settings(evals: Evals) -> None:
    with ScriptedServer("known") as server:
        model = recorded_model(server, memoize=False)
        evals.run(adding_task(solver=generate()), model)
        evals.run(adding_task(solver=generate()), record(model, keep_bytes=True))
        # The last: older releases send the first call of a second evaluation again.
        assert ["return_token_ids" in server.requests[at].json for at in (0, -1)] == [True, False]
    first, second = (evals.trajectories(log)[0].steps[0] for log in evals.logs)
    assert first.request_bytes is None
    assert second.request_bytes is not None


def test_the_recording_of_the_user_gets_them(evals: Evals, tmp_path: Path) -> None:
    with ScriptedServer("known") as server:
        with rt.recording(tmp_path / "mine.jsonl"):
            logs = [evals.run(adding_task(solver=generate()), recorded_model(server, memoize=False)) for _ in range(2)]
        found = list(rt.read(tmp_path / "mine.jsonl"))
        assert_served(server, [step for one in found for step in one.steps])
    assert not any(evals.file(log).exists() for log in logs)


@pytest.mark.parametrize("by", ["record", "record_evals"])
def test_a_file_that_is_named(evals: Evals, tmp_path: Path, by: str) -> None:
    path = tmp_path / "mine.jsonl"
    with ScriptedServer("known") as server:
        models = [plain_model(server, memoize=False) for _ in range(2)]
        if by == "record":
            models = [record(model, engine="vllm", path=path) for model in models]
            logs = [evals.run(adding_task(solver=generate()), model) for model in models]
        else:
            with record_evals(path, engine="vllm"):
                logs = [evals.run(adding_task(solver=generate()), model) for model in models]
        found = list(rt.read(path))
        assert_served(server, [step for one in found for step in one.steps])
    assert [facts(one)["eval_id"] for one in found] == [log.eval.eval_id for log in logs]


def test_a_file_that_cannot_be_opened(evals: Evals, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with ScriptedServer("known") as server:
        model = record(plain_model(server), path=tmp_path / "file" / "mine.jsonl")
        log = evals.run(adding_task(solver=generate()), model)
    assert log.status == "success"
    assert "is not recorded: " in caplog.text


def test_a_file_that_fails_leaves_no_other_open(evals: Evals, tmp_path: Path) -> None:
    folder = tmp_path / "gone"

    @solver
    def removing() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                folder.write_text("")
            return await generate(state)

        return solve

    with ScriptedServer("known") as server:
        paths = [folder / "first.jsonl", tmp_path / "second.jsonl"]
        models = [record(plain_model(server, memoize=False), path=path) for path in paths]
        task = adding_task(solver=removing())
        logs = eval(task, model=models, log_dir=str(evals.folder), display="none", max_tasks=2)
    assert [log.status for log in logs] == ["success"] * 2
    assert recording_here() is None
    assert len(list(rt.read(paths[1]))) == 1


def test_samples_inside_a_trajectory_of_the_user_are_its_children(evals: Evals, tmp_path: Path) -> None:
    with ScriptedServer("known") as server, rt.recording(tmp_path / "mine.jsonl"):
        with rt.trajectory("study") as study:
            # One after the other: the file has them in the order in which they end.
            evals.run(adding_task(2, solver=generate()), recorded_model(server), max_samples=1)
        assert len(study.steps) == 0
    found = list(rt.read(tmp_path / "mine.jsonl"))
    assert_all_served(server, found)
    assert [one.task and one.task.id for one in children(found, study)] == ["sums/s0", "sums/s1"]


def test_beside_an_instrumented_process_each_call_is_recorded_once(evals: Evals) -> None:
    with ScriptedServer(adding()) as server:
        with rt.instrument():
            (found,) = evals.trajectories(evals.run(adding_task(), recorded_model(server, memoize=False)))
        assert_served(server, found.steps)
    assert rt.orphans() == []


def test_a_model_outside_of_evaluations() -> None:
    import asyncio

    async def loop(server: ScriptedServer) -> None:
        async with recorded_model(server, memoize=False) as model:
            await model.generate_loop("Question?", tools=[add()])

    with ScriptedServer(adding()) as server:
        with rt.trajectory() as trajectory:
            asyncio.run(loop(server))
        assert_served(server, trajectory.steps)
    assert [run.result for run in trajectory.tool_runs] == ["The sum is 2.", "The sum is 3."]
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps[:2]]
    assert len(trajectory.sequences()) == 1


def inspect_eval(server: ScriptedServer, folder: Path, **environment: str) -> str:
    """The task of a user under ``inspect eval``; what it prints."""
    command = [sys.executable, "-m", "inspect_ai", "eval", f"{TASK}@sums", "--model", "openai/scripted"]
    options = ["-M", "responses_api=false", "--log-dir", str(folder), "--display", "none", "-T", "samples=2"]
    settings = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": server.base_url, **environment}
    done = subprocess.run(
        [*command, *options], env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_inspect_eval_by_the_environment(evals: Evals) -> None:
    evals.folder.mkdir()
    switches = {"ROLLOUT_TRACE_INSPECT": "1", "ROLLOUT_TRACE_INSPECT_ENGINE": "vllm"}
    with ScriptedServer(adding()) as server:
        printed = inspect_eval(server, evals.folder, **switches)
        (file,) = evals.folder.glob("*.rollouts.jsonl")
        found = list(rt.read(file))
        assert_all_served(server, found)
    assert "rollout_trace_inspect/rollout_trace" in printed
    assert [one.reward for one in roots(found)] == [1.0, 1.0]
    assert [len(one.sequences()) for one in found] == [1, 1]


def test_inspect_eval_records_nothing_by_itself(evals: Evals) -> None:
    evals.folder.mkdir()
    with ScriptedServer(adding()) as server:
        printed = inspect_eval(server, evals.folder, ROLLOUT_TRACE_INSPECT="0")
        assert "return_token_ids" not in server.requests[0].json
    assert "hooks" not in printed
    assert [path.suffix for path in evals.folder.iterdir()] == [".eval"]


def test_inspect_eval_with_an_unknown_engine_says_so(evals: Evals) -> None:
    evals.folder.mkdir()
    switches = {"ROLLOUT_TRACE_INSPECT": "1", "ROLLOUT_TRACE_INSPECT_ENGINE": "warp"}
    with ScriptedServer("known") as server:
        assert "engine='warp' is not known" in inspect_eval(server, evals.folder, **switches)
