"""What the tests share: agents, the server's own account of what it served, and what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from strands import Agent, tool
from strands.models.openai import OpenAIModel

import rollout_trace as rt
from rollout_trace import Step, Trajectory
from rollout_trace.testing import Reply, RequestRecord, ScriptedServer
from rollout_trace_strands import RolloutHookProvider

SYSTEM = "You add numbers."


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


@tool
def fail(reason: str) -> str:
    """Fails.

    Args:
        reason: why.
    """
    raise RuntimeError(reason)


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


def openai_model(server: ScriptedServer, **config: Any) -> OpenAIModel:
    client_args = {"base_url": server.base_url, "api_key": "none", "max_retries": 0}
    return OpenAIModel(client_args=client_args, **{"model_id": "scripted", **config})


def agent_of(model: Any, *, engine: str | rt.Engine | None = "vllm", is_recorded: bool = True, **options: Any) -> Agent:
    hooks = [*options.pop("hooks", []), *([RolloutHookProvider(engine=engine)] if is_recorded else [])]
    settings = {"system_prompt": SYSTEM, "tools": [add, fail], "callback_handler": None, "retry_strategy": None}
    return Agent(model=model, hooks=hooks, **{**settings, **options})


class Recorded:
    """Records to a file, and reads it back at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recording = rt.recording(path)
        self._known: list[Trajectory] = []

    def __enter__(self) -> Recorded:
        self._recording.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._recording.__exit__(*exception)
        read = {trajectory.id: trajectory for trajectory in rt.read(self._path)}
        for trajectory in self._known:
            assert read[trajectory.id] == trajectory

    def keep(self, *trajectories: Trajectory) -> None:
        """These must be in the file as they are."""
        self._known.extend(trajectories)

    def all(self) -> list[Trajectory]:
        """What has closed so far."""
        self._recording.flush()
        return list(rt.read(self._path))


class Served:
    """What a server answered to one request, read from its log by other code than the recorder's."""

    def __init__(self, record: RequestRecord) -> None:
        self.asked = record.json
        self.ids: list[int] = []
        self.prompt_ids: list[int] | None = None
        self.logprobs: list[float] = []
        for event in _events(record):
            self.prompt_ids = event.get("prompt_token_ids", self.prompt_ids)
            for choice in event.get("choices", ()):
                self.ids += choice.get("token_ids") or ()
                self.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or ()]

    def assert_is(self, step: Step) -> None:
        """The step has what was asked and served."""
        assert step.messages is not None
        assert list(step.messages) == self.asked["messages"]
        assert (None if step.tools is None else list(step.tools)) == self.asked.get("tools")
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert step.prompt_token_ids.tolist() == self.prompt_ids
        assert step.completion_token_ids.tolist() == self.ids
        assert np.array_equal(step.logprobs, np.asarray(self.logprobs, np.float32))
        assert step.metadata == {"framework": "strands"}
        assert step.token_issue is None


def _events(record: RequestRecord) -> list[Any]:
    body = record.response_body.decode()
    if not body.startswith("data:"):
        return [json.loads(body)]
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def assert_served(server: ScriptedServer, steps: Sequence[Step]) -> None:
    """The steps are what the server was asked and answered, in order: no more, no less."""
    server.wait_idle()
    assert len(steps) == len(server.requests)
    for record, step in zip(server.requests, steps, strict=True):
        Served(record).assert_is(step)
        assert step.status == "ok"


def said(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps without what differs from run to run: ids of ours, times, and what depends on the stream option."""
    left_out = {"id", "call_id", "response_id", "started_at", "latency", "time_to_first_token", "attempts", "sampling"}
    names = [name for name in Step.__dataclass_fields__ if name not in left_out and not name.startswith("_")]
    rows = [{name: getattr(step, name) for name in names} for step in steps]
    for row in rows:
        for name, value in row.items():
            row[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return rows
