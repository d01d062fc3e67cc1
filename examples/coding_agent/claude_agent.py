"""The agent of ``coding_agent.py`` on Claude: the same tools and limits, the loop of the plain anthropic client.

``ANTHROPIC_API_KEY`` has the key, ``CODING_AGENT_MODEL`` names the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from anthropic import Anthropic

import rollout_trace as rt
from coding_agent import MOST_TOKENS, SYSTEM, most_turns
from grading import Attempt
from workspace import TOOLS, ToolError, Workspace, files

MODEL = "claude-sonnet-5"


def solve(task: Mapping[str, Any], rollout: rt.Rollout) -> Attempt:
    """Works on a task in a fresh copy of its repository."""
    with Workspace(task["repo"]) as workspace, Anthropic() as client:
        model = os.environ.get("CODING_AGENT_MODEL") or MODEL
        stop_reason = work(client, model, workspace, task["problem_statement"])
        return Attempt(files(workspace.folder), stop_reason)


def work(client: Anthropic, model: str, workspace: Workspace, issue: str) -> str:
    """Calls the model, and the tools that it asks for, until it asks for none.

    Returns:
        ``max_turns``, or the ``stop_reason`` of its last answer.
    """
    messages: list[Any] = [{"role": "user", "content": issue}]
    tools: list[Any] = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in TOOLS
    ]
    for _ in range(most_turns()):
        answer = client.messages.create(
            model=model, system=SYSTEM, messages=messages, tools=tools, max_tokens=MOST_TOKENS
        )
        messages.append({"role": "assistant", "content": answer.content})
        results = [result_of(workspace, block) for block in answer.content if block.type == "tool_use"]
        if not results:
            return answer.stop_reason or "unknown"
        messages.append({"role": "user", "content": results})
    return "max_turns"


def result_of(workspace: Workspace, block: Any) -> dict[str, Any]:
    """What the model reads of a tool that it called."""
    result = {"type": "tool_result", "tool_use_id": block.id}
    try:
        return {**result, "content": workspace.call(block.name, block.input, block.id)}
    except ToolError as error:
        return {**result, "content": str(error), "is_error": True}
