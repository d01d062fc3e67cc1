"""What single pages, or parts of them, take for granted beside `stage.usual`, and what has to come of them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from page_blocks import Block
from tokenizers import Tokenizer

import rollout_trace as rt
from rollout_trace.data.model import Step, TokenIssue
from rollout_trace.testing import Reply
from tests.consumers import recorded
from tests.train import test_drift

from . import commands, evaluated
from .stage import PROGRAM, Setting, Stage, programs, usual

DATA = Path(__file__).parents[1] / "data"


def first(stage: Stage) -> Iterator[None]:
    """The first program that a reader sees records a run that can be trained on."""
    (stage.folder / "rollouts.jsonl").unlink()
    yield
    trajectory = next(rt.read("rollouts.jsonl"))
    (row,) = trajectory.sequences()
    assert (trajectory.reward, trajectory.task and trajectory.task.id) == (1.0, "sum/1")
    assert row.loss_mask.sum() == trajectory.n_output_tokens


def checks(stage: Stage) -> Iterator[None]:
    prompt, ids = np.arange(3, dtype=np.int32), np.arange(18, dtype=np.int32)
    good: dict[str, Any] = {"prompt_token_ids": prompt, "completion_token_ids": ids, "token_source": "engine"}
    issue = TokenIssue(code="lengths_differ", message="18 completion ids but 17 logprobs.")
    one = Step(id="9f2c.0", call_id="9f2c", token_issue=issue, finish_reason="stop", **good)
    two = Step(id="a01b.0", call_id="a01b", logprobs=np.full(18, -0.5, np.float32), finish_reason="length", **good)
    stage.record("rollouts.jsonl", [rt.Trajectory(id="5f0c3b77", steps=[one, two], reward=1.0)])
    yield


def collect(stage: Stage) -> Iterator[None]:
    stage.variables["MODEL_ADDRESS"] = stage.server.base_url
    (stage.folder / "rollouts.jsonl").unlink()
    shutil.rmtree(stage.folder / "runs")
    yield
    trajectories = list(rt.read("rollouts.jsonl"))
    assert {one.status for one in trajectories} == {"completed"}
    assert {one.reward for one in trajectories} == {1.0}


def collect_command(stage: Stage) -> Iterator[None]:
    stage.variables["BASE_URL"] = stage.server.base_url
    stage.answer = lambda request: "four"
    yield
    sums = list(rt.read("runs/sums.jsonl"))
    assert sorted((one.task.id, one.rollout_index) for one in sums if one.task) == [
        (task, index) for task in ("sum/1", "sum/2") for index in range(4)
    ]
    assert {one.reward for one in sums} == {1.0}
    assert {one.reward for one in rt.read("runs/weighted.jsonl")} == {1.025}
    found = {(one.name, one.reward) for one in rt.read("runs/from-file.jsonl")}
    assert found == {("solve", 1.125), ("again", 1.025)}


OLD = {"a": [0, 0, 0, 0], "b": [0, 1, 0, 0], "c": [1, 0, 0, 0], "d": [0, 1, 1, 0], "e": [1, 1, 1, 1], "f": [1, 1, 0, 1]}
NEW = {"a": [0, 0, 0, 0], "b": [0, 1, 0, 1], "c": [1, 1, 0, 1], "d": [1, 1, 1, 0], "e": [1, 1, 1, 1], "f": [1, 1, 1, 1]}


def evaluate(stage: Stage) -> Iterator[None]:
    for name, scores in (("old", OLD), ("new", NEW)):
        runs = []
        for task, rewards in scores.items():
            for index, reward in enumerate(rewards):
                run = rt.Trajectory(name="solve", task=rt.Task(id=task), group_id=task, rollout_index=index)
                run.metadata = {"collect": {"run": "r", "attempt": 1}}
                run.reward, run.metrics = float(reward), {"tests_failed": float(1 - reward)}
                runs.append(run)
        stage.record(f"runs/{name}.jsonl", runs)
    run_record = {"kind": "run", "started_at": "2026-11-20", "totals": {"mean_reward": 0.5}, "environment": {}}
    stage.write("runs/new.history.jsonl", '{"kind": "header"}\n' + json.dumps(run_record) + "\n")
    stage.outputs |= {"The summary of a collection": evaluated.summary, "The history": evaluated.changes}
    yield
    assert stage.names["worst"][0] == ("a", 0.0)
    assert len(stage.names["runs"]) == 1


def export_(stage: Stage) -> Iterator[None]:
    stage.names |= {"endpoint": f"{stage.server.url}/v1/traces", "headers": {"a": "b"}, "np": np, "rows": []}
    stage.names["torch"] = SimpleNamespace(from_numpy=lambda array: array)
    yield
    assert len(Path("llm_trajectory.jsonl").read_text().splitlines()) == 18
    assert sum(len(batch["trajectory_id"]) for batch in stage.names["packed"]) == 6
    assert stage.names["tensors"]["input_ids"].shape[0] == 6
    assert [request.path for request in stage.server.requests if "traces" in request.path] == ["/v1/traces"]


def nemo_gym(stage: Stage) -> Iterator[None]:
    yield
    assert all("response" in json.loads(line) for line in Path("nemo_gym.jsonl").read_text().splitlines())


def extras(stage: Stage) -> Iterator[None]:
    stage.names["ids"] = [1, 2, 3]
    yield


def file_format(stage: Stage) -> Iterator[None]:
    runs = stage.names["trajectories"]
    stage.record("broken.jsonl", [*runs, *recorded.unscored(), *recorded.tool_agent()])
    lines = (stage.folder / "broken.jsonl").read_text().splitlines()
    record = json.loads(lines[16])
    record["steps"][2]["tokens"]["end"] = "all"
    stage.write("broken.jsonl", "\n".join([*lines[:16], json.dumps(record), *lines[17:]]) + "\n")
    with rt.JSONLWriter("other.jsonl") as writer:
        stage.names["writer"] = writer
        yield


def fork(stage: Stage) -> Iterator[None]:
    def solve(client: OpenAI) -> str:
        for question in ("How much is 2 + 3?", "And 3 + 4?"):
            messages: Any = [{"role": "user", "content": question}]
            answer = client.chat.completions.create(model="m", messages=messages).choices[0].message.content
        return str(answer)

    (stage.folder / "rollouts.jsonl").unlink()
    with rt.recording(stage.folder / "rollouts.jsonl"), rt.trajectory(task="sum/2", group="sum/2"):
        solve(stage.names["client"])
    stage.names |= {"solve": solve, "look_up": str}
    stage.write("agent.py", PROGRAM)
    before = len(stage.server.requests)
    yield
    program, branch = rt.read("runs.jsonl")
    assert [one.status for one in branch.steps] == ["cached", *["ok"] * (len(program.steps) - 1)]
    assert len(stage.server.requests) - before == 10 + 2 * len(program.steps) - 1
    assert [[step.status for step in one.steps] for one in rt.read("forks.jsonl")] == [["cached", "ok"]] * 9


def google(stage: Stage) -> Iterator[None]:
    stage.variables |= {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": stage.server.url}
    yield


def import_(stage: Stage) -> Iterator[None]:
    for source, target in (("claude_code", "claude/projects"), ("codex", "codex/sessions"), ("atif", "atif")):
        shutil.copytree(DATA / "imports" / source, stage.folder / target)
    shutil.copytree(DATA / "imports" / "inspect", stage.folder / "logs")
    stage.write("broken.jsonl", '{"traces": 3}\n')
    yield
    assert [one.name for one in rt.read("sessions.jsonl")] == ["claude-code", "Explore"]
    assert next(rt.read("evals.jsonl.gz")).reward == 1.0


def integrations(stage: Stage) -> Iterator[None]:
    stage.names["pytest"] = pytest
    about = 'from rollout_trace.integration import About\nABOUT = About(framework="json", tested=("1", "9"))\n'
    stage.write("rollout_trace_yours/_about.py", about)
    stage.write("rollout_trace_yours/hooks.py", "def record(agent):\n    return agent\n")
    yield
    assert __import__("rollout_trace_yours").record(7) == 7


def sequences(stage: Stage) -> Iterator[None]:
    stage.names["trajectory"] = test_drift.recorded("multiturn_noncanonical_regex")
    stage.names["tokenizer"] = Tokenizer.from_file(str(DATA / "tiny-model" / "tokenizer.json"))
    yield


def shards(stage: Stage) -> Iterator[None]:
    stage.variables["ROLLOUT_TRACE_SPOOL"] = str(stage.folder.parent / "spool")
    yield
    assert stage.names["tokens"] == 0


def steps(stage: Stage) -> Iterator[None]:
    stage.write("config.yaml", "seed: 7\n")
    call = stage.names["trajectory"].steps[0].completion.tool_calls[0]
    function = {"function": type("Function", (), {"name": call.name, "arguments": call.arguments}), "id": call.id}
    stage.names |= {"supervisor": stage.names["solve"], "call": type("Call", (), function), "json": json}
    stage.names |= {"tools": {call.name: lambda **arguments: "5"}, "run_agents": stage.names["solve"]}
    yield
    rt.environment(policy_version=None, seed=None, files=None)


WEATHER = """
import json
import rollout_trace as rt
from openai import OpenAI


def solve(question):
    messages = [{"role": "user", "content": question}]
    with OpenAI() as client:
        while True:
            message = client.chat.completions.create(model="m", messages=messages).choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message)
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
"""


def weather(request: Mapping[str, Any]) -> Any:
    """The model of the pages on tests."""
    if request["messages"][-1]["role"] == "tool":
        return "It is sunny."
    return Reply(tool_calls=[("weather", '{"city": "Paris"}')])


def test_agents(stage: Stage) -> Iterator[None]:
    """Its failure, too: of the test that is asked about another city."""
    stage.answer, stage.tests = weather, WEATHER

    def failure() -> str:
        text = (stage.folder / "test_page.py").read_text()
        stage.write("test_page.py", text.replace("weather in Paris?", "weather in Oslo?"))
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "-k", "replayed"]
        printed = subprocess.run(command, cwd=stage.folder, capture_output=True, text=True, check=False).stdout
        # Its first part; after it comes what to do.
        return "call 1 was" + printed.partition("call 1 was")[2].partition("\n\nWhat to do")[0]

    stage.outputs["What a failure looks like"] = failure
    yield


def testing(stage: Stage) -> Iterator[None]:
    def agent(client: OpenAI) -> str:
        messages: list[Any] = [{"role": "user", "content": "What is the weather?"}]
        with contextlib.suppress(IndexError):
            while True:
                message = client.chat.completions.create(model="m", messages=messages).choices[0].message
                if not message.tool_calls:
                    break
                messages.append(message)
                messages += [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in message.tool_calls]
        return str(message.content)

    stage.names |= {"run_agent": agent, "solve": agent}
    stage.write("script.py", "def script(request):\n    return 'It is sunny.'\n")
    shutil.copytree(DATA / "tiny-model", stage.folder / "models" / "qwen3")
    one = {"name": "chat_ids", "method": "POST", "path": "/v1/chat/completions", "status": 200, "response_headers": []}
    stage.write("recordings/chat_ids.meta.json", json.dumps(one))
    stage.write("recordings/chat_ids.request.json", "{}")
    stage.write("recordings/chat_ids.response.json", "{}")
    yield


def mismatch(stage: Stage) -> Iterator[None]:
    """The trainer reads other weights: its logprobs differ evenly."""
    random = np.random.default_rng(0)
    stage.names["trainer_logprobs"] = lambda ids: -np.abs(random.normal(1, 0.5, len(ids)))
    yield
    assert [cause.code for cause in stage.names["found"].causes] == ["other_weights"]


def threads(stage: Stage) -> Iterator[None]:
    """With a program `docker` that prints how it was called."""
    docker = stage.folder / "programs" / "docker"
    stage.write("programs/docker", '#!/bin/sh\necho "$@" > called\n')
    docker.chmod(0o755)
    import os

    stage.variables["PATH"] = f"{docker.parent}{os.pathsep}{os.environ['PATH']}"
    stage.names |= {"command": [sys.executable, "agent.py"], "image": "agents:7"}
    yield
    assert re.search("--env=ROLLOUT_TRACE_OUTPUT=/results/rollouts.jsonl .*agents:7", Path("called").read_text())


def training(stage: Stage) -> Iterator[None]:
    def openai() -> OpenAI:
        return rt.wrap_openai(OpenAI(base_url=stage.server.base_url, api_key="none"), engine="vllm")

    stage.names |= {"task": "sum/1", "student": openai(), "teacher": openai()}
    yield


def alone(stage: Stage) -> Iterator[None]:
    """Nothing beside what is usual, in a folder and a process of its own."""
    yield


def unmodified(stage: Stage) -> Iterator[None]:
    stage.names |= {"score": stage.names["grade"], "run_the_agent": stage.names["solve"]}
    yield


STAGES: dict[str, Setting] = {
    "README.md": first,
    "docs/checks.md": checks,
    "docs/collect.md": collect,
    "docs/collect.md#The command `rollout-trace collect`": collect_command,
    "docs/evaluate.md": evaluate,
    "docs/export.md": export_,
    "docs/engines.md#Google: Gemini API and Vertex AI": google,
    "docs/file-format.md": file_format,
    "docs/file-format.md#Check files: `check --format`": commands.validate,
    "docs/files.md#Folders and object storage": shards,
    "docs/files.md#Notes: what is known later": commands.later,
    "docs/files.md#The journal: nothing is lost": alone,
    "docs/filter.md": commands.filter_,
    "docs/filter.md#SQL: DuckDB": alone,
    "docs/fork.md": fork,
    "docs/import.md": import_,
    "docs/index.md": first,
    "docs/integrations.md": integrations,
    "docs/look.md": commands.look,
    "docs/look.md#In a terminal: `show` and `diff`": commands.look,
    "docs/look.md#Lists, sums and checks": commands.lists,
    "docs/look.md#The page's server": commands.page_server,
    "docs/security.md#Secrets": alone,
    "docs/steps.md": steps,
    "docs/steps.md#Beyond ids and logprobs": extras,
    "docs/steps.md#Tokens and costs": alone,
    "docs/test-agents.md": test_agents,
    "docs/test-agents.md#Model servers for tests": testing,
    "docs/threads.md": threads,
    "docs/tokens.md#Training sequences": sequences,
    "docs/train-others.md": nemo_gym,
    "docs/training.md": training,
    "docs/mismatch.md": mismatch,
    "docs/unmodified.md": unmodified,
    "docs/any-program.md": alone,
    "docs/unmodified.md#The whole process: `rt.instrument`": alone,
    "docs/unmodified.md#A program: `rollout-trace run`": commands.run,
}
PROGRAMS = {
    "docs/security.md",
    "docs/start.md",
    "docs/threads.md#Several agents",
    "docs/threads.md#Web services and streams",
    "docs/tokens.md",
    "docs/which-way.md",
}
"""Pages, and parts of pages, whose blocks of Python are programs."""


def part_of(block: Block) -> str:
    """The page of a block, or ``PAGE#HEADING``: a part that is read on a stage of its own."""
    part = "#".join((block.page, *block.headings[1:2]))
    return part if part in STAGES or part in PROGRAMS else block.page


def settings_of(part: str) -> list[Setting]:
    """What a page, or a part of one, takes for granted."""
    first = programs if part in PROGRAMS else usual
    return [first, *([STAGES[part]] if part in STAGES else [])]
