"""What the tests share: an agent's tools, a scripted server, and the comparison of steps with what it served."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from smolagents import CodeAgent, LogLevel, MultiStepAgent, OpenAIModel, Tool, ToolCallingAgent, tool

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer

Serve: TypeAlias = Callable[..., ScriptedServer]


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


@tool
def fails(text: str) -> str:
    """Never works.

    Args:
        text: anything
    """
    raise LookupError(f"nothing about {text}")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts scripted servers, which are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda script, **options: stack.enter_context(ScriptedServer(script, **options))


def model_at(server: ScriptedServer, **options: Any) -> OpenAIModel:
    """A model on a server, which asks once."""
    return OpenAIModel(
        "scripted", api_base=server.base_url, api_key="none", client_kwargs={"max_retries": 0}, **options
    )


def tool_agent(model: Any, *tools: Tool, **options: Any) -> ToolCallingAgent:
    """A quiet agent with ``add`` and further tools."""
    return ToolCallingAgent([add, *tools], model, verbosity_level=LogLevel.OFF, **options)


def code_agent(model: Any, *tools: Tool, **options: Any) -> CodeAgent:
    """The same for an agent that writes code."""
    return CodeAgent([add, *tools], model, verbosity_level=LogLevel.OFF, **options)


def assert_served(steps: Sequence[rt.Step], records: Sequence[RequestRecord]) -> None:
    """One step for each request, in order, with what was asked and, token for token, what was answered."""
    assert len(steps) == len(records)
    for step, record in zip(steps, records, strict=True):
        body = json.loads(record.body)
        assert step.messages == body["messages"]
        assert step.tools == body.get("tools")
        assert step.model == body["model"]
        if record.status != 200:
            assert (step.status, step.error and step.error.status) == ("error", record.status)
            continue
        prompt, ids, logprobs = _answered(record)
        assert step.status == "ok"
        assert step.token_source == "engine"
        arrays = (step.prompt_token_ids, step.completion_token_ids, step.logprobs)
        assert [array is None or array.tolist() for array in arrays[:2]] == [prompt, ids]
        assert arrays[2] is not None
        assert arrays[2].tolist() == pytest.approx(logprobs)


def _answered(record: RequestRecord) -> tuple[list[int], list[int], list[float]]:
    """Ids of the prompt and the completion, and logprobs, from the bytes of an answer."""
    text = record.response_body.decode()
    events = [line.removeprefix("data: ") for line in text.split("\n\n")] if text.startswith("data:") else [text]
    bodies = [json.loads(event) for event in events if event not in ("", "[DONE]")]
    prompt = next(body["prompt_token_ids"] for body in bodies if body.get("prompt_token_ids") is not None)
    choices = [choice for body in bodies for choice in body["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids") or ()]
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content") or ()]
    return prompt, ids, [entry["logprob"] for entry in entries]


def told(step: rt.Step) -> dict[str, Any]:
    """A step without what differs from run to run, or between a stream and none: its ids and times."""
    left_out = {"id", "call_id", "started_at", "latency", "time_to_first_token", "attempts"}
    fields = {item.name: getattr(step, item.name) for item in dataclasses.fields(step) if item.name[0] != "_"}
    for name in ("prompt_token_ids", "completion_token_ids", "logprobs"):
        fields[name] = None if fields[name] is None else fields[name].tolist()
    return {name: value for name, value in fields.items() if name not in left_out}


def remembered(agent: MultiStepAgent) -> list[Any]:
    """The memory of an agent, without times."""
    steps = json.loads(json.dumps(agent.memory.get_full_steps(), default=str))
    for step in steps:
        step.pop("timing", None)
    return list(steps)


def read_back(path: Path) -> list[rt.Trajectory]:
    """The trajectories of a file."""
    return list(rt.read(path))
