"""Coding agents beside Claude Code and Codex: how each is started against a server, and what the model answers it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.testing.script import Answer

from .installed import COPILOT, GEMINI, KIMI, OPENCODE, PI, QWEN, Package, node

_SHELLS = ("bash", "shell", "run_shell_command")


@dataclass(frozen=True)
class Cli:
    """One program."""

    package: Package
    words: tuple[str, ...]
    """Arguments before the prompt."""
    variables: Callable[[ScriptedServer], dict[str, str]]
    files: Callable[[ScriptedServer], dict[str, str]] = lambda server: {}
    """In its home, by their paths."""
    auxiliary: int = 0
    """Calls beside the conversation, of one prompt."""

    def own(self, server: ScriptedServer) -> dict[str, str]:
        """Its variables."""
        path = {"PATH": f"{node()}:/usr/bin:/bin"} if self.package.needs_node else {}
        return {**path, **self.variables(server)}


def tools_in(request: Mapping[str, Any]) -> list[str]:
    """The names of the tools that a request offers."""
    listed = request.get("tools") or ()
    tools = [one.get("function", one) for one in listed]
    tools += [one for each in listed for one in each.get("functionDeclarations", ())]
    return [one["name"] for one in tools if "name" in one]


def _beside(request: Mapping[str, Any]) -> str:
    """The answer to a call without tools, which asks for a title or the like."""
    # The router of Gemini CLI asks for JSON until it gets some.
    is_json = "application/json" in json.dumps(request)
    return '{"complexity_reasoning": "short", "complexity_score": 1}' if is_json else "A title"


def _shell_in(tools: list[str]) -> str | None:
    return next((one for one in tools if one.lower() in _SHELLS), None)


class Model:
    """Two tools of which one fails, then an answer. The first call fails, and the stream of the third is cut.

    Called without tools it is asked for a title, or the like.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, request: Mapping[str, Any]) -> Answer:
        """The answer to a request."""
        shell = _shell_in(tools_in(request))
        if shell is None:
            return _beside(request)
        self._calls += 1
        if self._calls == 1:
            return Fault(status=529)
        if self._calls == 3:
            return Fault("an answer that is cut before its end", cut_after=3)
        if self._calls > 3:
            return "all done"
        asked = [{"command": one, "description": one} for one in ("ls > list.txt; cat a.txt", "exit 3")]
        return Reply("listing", tool_calls=[(shell, json.dumps(one)) for one in asked])


SUBTASK = re.compile(r"SUBTASK (one|two)")


def delegating(calls: list[tuple[str, Any]]) -> Callable[[Mapping[str, Any]], Answer]:
    """A model that begins two sub-agents by these calls, of which each runs a tool and reports."""

    def answer(request: Mapping[str, Any]) -> Answer:
        tools = tools_in(request)
        shell = _shell_in(tools)
        if shell is None:
            return _beside(request)
        messages = request.get("messages") or request["contents"]
        found = ((at, SUBTASK.search(json.dumps(one))) for at, one in enumerate(messages) if one["role"] == "user")
        # A fork has the conversation that it was begun in before it.
        at, asked = next(((at, one) for at, one in found if one is not None), (0, None))
        said = json.dumps(messages[at:])
        is_begun = any(word in said for word in ('"tool_result"', '"functionResponse"', '"role": "tool"'))
        if asked is None:
            return (
                "all done" if is_begun else Reply("asks two", tool_calls=[(one, json.dumps(of)) for one, of in calls])
            )
        if not is_begun:
            command = {"command": f"cat a.txt > {asked[1]}.txt", "description": "copies"}
            return Reply("copies it", tool_calls=[(shell, json.dumps(command))])
        # Of a short report Kimi Code wants a longer one.
        report = f"{asked[1]} is copied. " * 20
        if "complete_task" not in tools:
            return report
        return Reply("ends", tool_calls=[("complete_task", json.dumps({"result": {"response": report}}))])

    return answer


def _pi_models(server: ScriptedServer) -> dict[str, str]:
    mine = {"baseUrl": server.base_url, "api": "openai-completions", "apiKey": "none", "models": [{"id": "m"}]}
    return {".pi/agent/models.json": json.dumps({"providers": {"mine": mine}})}


_OPENCODE = {
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_CONFIG_CONTENT": json.dumps({"autoupdate": False, "share": "disabled"}),
}

CLIS = {
    "opencode": Cli(
        OPENCODE,
        ("run", "-m", "anthropic/claude-sonnet-4-5"),
        lambda server: {**_OPENCODE, "ANTHROPIC_BASE_URL": server.base_url, "ANTHROPIC_API_KEY": "none"},
        auxiliary=1,
    ),
    "gemini": Cli(
        GEMINI,
        ("--yolo", "--skip-trust", "-p"),
        lambda server: {"GOOGLE_GEMINI_BASE_URL": server.url, "GEMINI_API_KEY": "none"},
        lambda server: {".gemini/settings.json": '{"security":{"auth":{"selectedType":"gemini-api-key"}}}'},
        1,
    ),
    "qwen": Cli(
        QWEN,
        ("--auth-type", "openai", "--yolo", "-p"),
        lambda server: {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": "m"},
    ),
    "kimi": Cli(
        KIMI,
        ("-p",),
        lambda server: {
            "KIMI_MODEL_BASE_URL": server.base_url,
            "KIMI_MODEL_NAME": "m",
            "KIMI_MODEL_API_KEY": "none",
        },
    ),
    "copilot": Cli(
        COPILOT,
        ("--allow-all-tools", "-p"),
        lambda server: {
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_BASE_URL": server.base_url,
            "COPILOT_PROVIDER_API_KEY": "none",
            "COPILOT_MODEL": "gpt-5",
            "COPILOT_OFFLINE": "true",
        },
    ),
    "pi": Cli(PI, ("--provider", "mine", "--model", "m", "-p"), lambda server: {}, _pi_models),
}


def _each(tool: str, **given: Any) -> list[tuple[str, Any]]:
    """Two calls of a tool that begins a sub-agent."""
    return [(tool, {"prompt": f"SUBTASK {one}: copy a.txt to {one}.txt.", **given}) for one in ("one", "two")]


_SWARM = {"description": "copies", "prompt_template": "SUBTASK {{item}}", "items": ["one", "two"]}
AGENTS: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "opencode": ("opencode", "general", _each("task", subagent_type="general", description="copies")),
    "gemini": ("gemini", "generalist", _each("invoke_agent", agent_name="generalist")),
    "qwen": (
        "qwen",
        "general-purpose",
        _each("agent", subagent_type="general-purpose", description="copies", run_in_background=False),
    ),
    "qwen-fork": ("qwen", "fork", _each("agent", subagent_type="fork", description="copies")),
    "kimi": ("kimi", "coder", _each("Agent", subagent_type="coder", description="copies")),
    "kimi-swarm": ("kimi", "copies", [("AgentSwarm", _SWARM)]),
    "copilot": (
        "copilot",
        "general-purpose",
        _each("task", agent_type="general-purpose", description="copies", name="copier", mode="sync"),
    ),
}
"""By the case: the program, the name of its sub-agents, and the calls that begin two. pi has none."""
