"""A coding agent: a model that reads, edits and runs a repository until it stops calling tools.

The loop is the plain openai client's. It is recorded by whoever runs it: ``collect_rollouts.py`` beside it, or

    OPENAI_BASE_URL=http://localhost:8000/v1 rollout-trace collect coding_agent.py:solve --tasks tasks.jsonl ...

``CODING_AGENT_MODEL`` names the model, by default the first that the server lists; ``CODING_AGENT_TURNS`` is the number
of calls that it may make.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from openai import OpenAI

import rollout_trace as rt
from grading import Attempt
from workspace import TOOLS, ToolError, Workspace, files

SYSTEM = (
    "You repair a Python repository. Read the code and its tests, change the code so that it does what the issue asks "
    "for, and run the tests with `python -m unittest`. Do not change the tests. When you are done, answer without "
    "calling a tool."
)
MOST_TURNS = 12
MOST_TOKENS = 1024
"""Of one answer."""


def solve(task: Mapping[str, Any], rollout: rt.Rollout) -> Attempt:
    """Works on a task in a fresh copy of its repository."""
    with Workspace(task["repo"]) as workspace, OpenAI() as client:
        model = os.environ.get("CODING_AGENT_MODEL") or client.models.list().data[0].id
        stop_reason = work(client, model, workspace, task["problem_statement"], seed=rollout.seed)
        return Attempt(files(workspace.folder), stop_reason)


def work(client: OpenAI, model: str, workspace: Workspace, issue: str, *, seed: int | None = None) -> str:
    """Calls the model, and the tools that it asks for, until it asks for none.

    Returns:
        ``max_turns``, or the ``finish_reason`` of its last answer.
    """
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": issue}]
    tools: list[Any] = [{"type": "function", "function": tool} for tool in TOOLS]
    for _ in range(most_turns()):
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=tools, max_completion_tokens=MOST_TOKENS, seed=seed
        )
        choice = answer.choices[0]
        messages.append(choice.message.model_dump(exclude_none=True))
        if not choice.message.tool_calls:
            return choice.finish_reason
        for call in choice.message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result_of(workspace, call)})
    return "max_turns"


def result_of(workspace: Workspace, call: Any) -> str:
    """What the model reads of a tool that it called."""
    try:
        return workspace.call(call.function.name, call.function.arguments, call.id)
    except ToolError as error:
        return f"error: {error}"


def most_turns() -> int:
    """How many calls of the model an attempt may take."""
    return int(os.environ.get("CODING_AGENT_TURNS", MOST_TURNS))
