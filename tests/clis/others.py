"""Coding agents beside Claude Code and Codex: how each is started against a server, and what the model answers it."""

from __future__ import annotations

import json
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


class Model:
    """Two tools of which one fails, then an answer. The first call fails, and the stream of the third is cut.

    Called without tools it is asked for a title, or the like.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, request: Mapping[str, Any]) -> Answer:
        """The answer to a request."""
        listed = request.get("tools") or ()
        tools = [one.get("function", one) for one in listed]
        tools += [one for each in listed for one in each.get("functionDeclarations", ())]
        shell = next((name for one in tools if (name := one.get("name", "")).lower() in _SHELLS), None)
        if shell is None:
            # The router of Gemini CLI asks for JSON until it gets some.
            is_json = "application/json" in json.dumps(request)
            return '{"complexity_reasoning": "short", "complexity_score": 1}' if is_json else "A title"
        self._calls += 1
        if self._calls == 1:
            return Fault(status=529)
        if self._calls == 3:
            return Fault("an answer that is cut before its end", cut_after=3)
        if self._calls > 3:
            return "all done"
        asked = [{"command": one, "description": one} for one in ("ls > list.txt; cat a.txt", "exit 3")]
        return Reply("listing", tool_calls=[(shell, json.dumps(one)) for one in asked])


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
