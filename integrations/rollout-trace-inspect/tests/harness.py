"""What the tests share: tools, tasks, and evaluations whose log and trajectories are read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, EvalSample, read_eval_log
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.scorer import includes
from inspect_ai.tool import Tool, ToolError, tool

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_inspect import record


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return f"The sum is {a + b}."

    return execute


@tool
def fail() -> Tool:
    async def execute(reason: str) -> str:
        """Fails.

        Args:
            reason: Why.
        """
        raise ToolError(reason)

    return execute


def results(request: dict[str, Any]) -> list[Any]:
    """The tool results that a request of chat's shape holds."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


def adding(turns: int = 2) -> Callable[[dict[str, Any]], Reply]:
    """A model that calls ``add`` so many times, then answers."""

    def script(request: dict[str, Any]) -> Reply:
        done = len(results(request))
        if done < turns:
            return Reply(f"adding {done}", tool_calls=[("add", json.dumps({"a": done, "b": 2}))])
        return Reply("The sum is known.")

    return script


def plain_model(server: ScriptedServer, *, api: str = "openai", **options: Any) -> Model:
    """A model that is not recorded. Its provider neither retries nor asks what a model of this name can do."""
    defaults: dict[str, Any] = {"responses_api": False} if api == "openai" else {}
    config = options.pop("config", GenerateConfig())
    return get_model(
        f"{api}/scripted",
        base_url=server.base_url,
        api_key="none",
        config=GenerateConfig(max_retries=0, max_tokens=1000).merge(config),
        **{**defaults, **options},
    )


def recorded_model(server: ScriptedServer, *, engine: str | None = "vllm", **options: Any) -> Model:
    return record(plain_model(server, **options), engine=engine)


def adding_task(samples: int = 1, **options: Any) -> Task:
    """A ReAct agent with tools; each sample has a question of its own."""
    dataset = [Sample(id=f"s{n}", input=f"Question {n}?", target="known") for n in range(samples)]
    settings = {"solver": react(tools=[add(), fail()], submit=False), "scorer": includes(), "name": "sums"}
    return Task(dataset=dataset, **{**settings, **options})


@dataclass
class Evals:
    """Runs evaluations in one folder."""

    folder: Path
    logs: list[EvalLog] = field(default_factory=list)

    def run(self, task: Any, model: Model | str, **options: Any) -> EvalLog:
        """Runs an evaluation of one task; the log as read from its file."""
        # An agent that finds no end is a failed test, not an endless one.
        settings: dict[str, Any] = {"display": "none", "log_dir": str(self.folder), "message_limit": 50}
        (log,) = eval(task, model=model, **{**settings, **options})
        return self.read(log)

    def read(self, log: EvalLog) -> EvalLog:
        self.logs.append(read_eval_log(log.location))
        return self.logs[-1]

    def file(self, log: EvalLog) -> Path:
        """The file of trajectories beside a log."""
        return Path(log.location.removeprefix("file://").removesuffix(".eval") + ".rollouts.jsonl")

    def trajectories(self, log: EvalLog) -> list[Trajectory]:
        return list(rt.read(self.file(log)))


def roots(trajectories: list[Trajectory]) -> list[Trajectory]:
    """Those of samples, by sample, epoch and attempt."""

    def order(one: Trajectory) -> tuple[str, int, int]:
        found = facts(one)
        return str(found["sample_id"]), found["epoch"], found["attempt"]

    return sorted((one for one in trajectories if one.parent_id is None), key=order)


def children(trajectories: list[Trajectory], parent: Trajectory) -> list[Trajectory]:
    return [one for one in trajectories if one.parent_id == parent.id]


def facts(trajectory: Trajectory) -> dict[str, Any]:
    """What joins a sample's trajectory to the log."""
    assert trajectory.metadata is not None
    found: dict[str, Any] = trajectory.metadata["inspect"]
    return found


def samples_of(log: EvalLog) -> dict[tuple[Any, int], EvalSample]:
    return {(sample.id, sample.epoch): sample for sample in log.samples or ()}
