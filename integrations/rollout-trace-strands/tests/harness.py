"""What the tests share: agents, the server's own account of what it served, and what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import oracle
from oracle import Recorded, said
from strands import Agent, tool
from strands.models.openai import OpenAIModel

import rollout_trace as rt
from rollout_trace import Step
from rollout_trace.testing import Reply, ScriptedServer
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


class Served(oracle.Served):
    """What a server answered to one request of an agent of Strands."""

    def assert_is(self, step: Step) -> None:
        """The step has what was asked and served."""
        super().assert_is(step)
        assert step.metadata == {"framework": "strands"}


def assert_served(server: ScriptedServer, steps: Sequence[Step]) -> None:
    """The steps are what the server was asked and answered, in order: no more, no less."""
    server.wait_idle()
    assert len(steps) == len(server.requests)
    for record, step in zip(server.requests, steps, strict=True):
        Served(record).assert_is(step)
        assert step.status == "ok"


__all__ = [
    "SYSTEM",
    "Recorded",
    "Served",
    "add",
    "adding",
    "agent_of",
    "assert_served",
    "fail",
    "openai_model",
    "results",
    "said",
]
