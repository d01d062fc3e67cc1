"""The same tasks for coding agents that are commands, with their own loop and tools: Claude Code and Codex."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import rollout_trace as rt
from coding_agent import SYSTEM
from grading import Attempt
from workspace import Workspace, files


async def claude_code(task: Mapping[str, Any], rollout: rt.Rollout) -> Attempt:
    """Works on a task in a fresh copy of its repository."""
    return await attempt(task, "claude", "--dangerously-skip-permissions", "-p")


async def codex(task: Mapping[str, Any], rollout: rt.Rollout) -> Attempt:
    """The same with Codex."""
    return await attempt(task, "codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")


async def attempt(task: Mapping[str, Any], *command: str) -> Attempt:
    """Runs a command with the task as its last argument, in a home of its own."""
    with Workspace(task["repo"]) as workspace:
        home = {**os.environ, "HOME": str(workspace.home)}
        prompt = f"{SYSTEM}\n\n{task['problem_statement']}"
        done = await rt.run_program([*command, prompt], cwd=workspace.folder, env=home)
        return Attempt(files(workspace.folder), "stop" if done.returncode == 0 else f"exit {done.returncode}")
