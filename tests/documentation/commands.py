"""What the pages on the command line take for granted: files of runs with ids and tasks that the pages name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import rollout_trace as rt
from rollout_trace.data.model import ErrorInfo, TokenIssue
from rollout_trace.testing import Fault
from tests.consumers import recorded

from .stage import PROGRAM, Stage, adding

IDS = [f"{begin}9a7d4e21b8c0f3a6" for begin in ("5f0c3b1e", "77ab01d2", "3f9a20c4", "77c1e5b0", "1f0c9a4e", "8e21b7aa")]


def named_runs(*, runs_of_a_task: int = 1) -> list[rt.Trajectory]:
    """Six runs with ids and tasks that the pages name."""
    found = []
    for number, (id_, one) in enumerate(zip(IDS, recorded.tool_agent(), strict=True)):
        task, index = f"gsm8k/{17 + number // runs_of_a_task}", number % runs_of_a_task
        place: dict[str, Any] = {"task": rt.Task(id=task), "group_id": task, "rollout_index": index}
        found.append(replace(one, id=id_, episode_id=id_, name="solver", **place))
    return found


def without_ids(run: rt.Trajectory) -> rt.Trajectory:
    """The last step of a run was cut off, and has no ids."""
    issue = TokenIssue(code="ids_missing", message="the server sent no completion token ids.")
    last = replace(run.steps[-1], finish_reason="length", token_issue=issue, completion_token_ids=None, logprobs=None)
    return replace(run, status="failed", steps=[*run.steps[:-1], last])


def later(stage: Stage) -> Iterator[None]:
    async def ask_the_judge(data: Any, answer: Any) -> float:
        return 1.0

    runs = named_runs(runs_of_a_task=4)
    stage.record("rollouts.jsonl", runs)
    stage.record("more/a.jsonl.gz", [replace(one, id=f"m{n}") for n, one in enumerate(runs[:2])])
    stage.names |= {"ask_the_judge": ask_the_judge, "trajectory_id": runs[0].id}
    yield


def look(stage: Stage) -> Iterator[None]:
    runs = named_runs()
    stage.record("rollouts.jsonl", runs)
    stage.record("runs/a.jsonl", runs)
    stage.record("before.jsonl", runs[:3])
    stage.record("after.jsonl", [replace(runs[0], reward=0.25), *runs[1:3]])
    yield


def page_server(stage: Stage) -> Iterator[None]:
    stage.record("runs/1/rollouts.jsonl.gz", named_runs())
    yield


def lists(stage: Stage) -> Iterator[None]:
    one, two, *_ = named_runs()
    stage.record("rollouts.jsonl", [one, without_ids(two)])
    stage.record("run/a.jsonl", named_runs(runs_of_a_task=3))
    yield


def filter_(stage: Stage) -> Iterator[None]:
    runs = [replace(one, metadata={"split": "train"}) for one in named_runs()]
    stage.record("rollouts.jsonl", runs)
    stage.record("runs/a.jsonl", [replace(runs[0], error=ErrorInfo(type="RolloutTimeout", message="timeout of 60 s"))])
    Path("rollouts.jsonl.gz").write_bytes(gzip.compress(Path("rollouts.jsonl").read_bytes()))
    yield


_FAILING = """
    body = {"model": "m", "messages": [{"role": "user", "content": "Fail."}]}
    if client.post("chat/completions", json=body).is_error:
        print("The agent goes on.")
"""


def run(stage: Stage) -> Iterator[None]:
    stage.write("tests/test_agent.py", "def test_it():\n    import agent\n")
    stage.write("agent.py", PROGRAM + _FAILING)

    def answer(request: Mapping[str, Any]) -> Any:
        return Fault(status=500) if "Fail." in str(request) else adding(request)

    stage.answer = answer
    yield


def validate(stage: Stage) -> Iterator[None]:
    stage.record("runs/a.jsonl", named_runs())
    lines = [json.loads(line) for line in Path("runs/a.jsonl").read_text().splitlines()]
    lines[4]["steps"][2]["tokens"]["logprobs"].pop()
    stage.write("runs/a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    stage.record("runs/b.jsonl", [replace(one, id=f"b{n}", episode_id=None) for n, one in enumerate(named_runs())])
    for number in range(3):
        rt.annotate("runs/b.jsonl", f"b{number}", reward=1.0)
    rt.annotate("runs/b.jsonl", "5f0c", reward=1.0)
    yield
