"""The programs that are known, a row each: what they obey, and what tells their conversations apart.

What was seen of each, and of which version, is in docs/any-program.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_trace.clients.loopback.messages import SECRET_HEADER

SECRET = "ROLLOUT_TRACE_LOOPBACK_SECRET"
"""Variable: the secret of the loopback server, for programs that send it in a header."""


@dataclass(frozen=True)
class Start:
    """How a program is started."""

    command: list[str]
    variables: dict[str, str]
    """Beside those of its environment."""


@dataclass(frozen=True)
class Program:
    """One program."""

    name: str
    commands: tuple[str, ...]
    """Names of its executable."""
    session_headers: tuple[str, ...] = ()
    """Headers of its requests with the id of the session, the first that is there."""
    thread_headers: tuple[str, ...] = ()
    """Headers with the id of a conversation: of a sub-agent it is another one."""
    start: Callable[[Start, str, Mapping[str, str]], Start] | None = None
    """From how it is started, the origin of the loopback server (without its secret) and the environment to how it is
    started to be recorded; None: the variables that SDKs read are enough."""


_CODEX_CONFIG = re.compile(r'^\s*model_provider\s*=\s*"([^"]+)"', re.MULTILINE)
CODEX_PATH = "/codex"
"""Path of the loopback server that stands for the provider of Codex."""


def _codex(start: Start, origin: str, environ: Mapping[str, str]) -> Start:
    # It reads no variable for the address. The secret is not among the arguments, which other users may list.
    provider = _codex_provider(start.command, environ)
    headers = f'env_http_headers={{"{SECRET_HEADER}"="{SECRET}"}}'
    address = json.dumps(f"{origin}{CODEX_PATH}")
    if provider in (None, "openai"):
        # Its own provider cannot be changed: another one with the same name is the same to it.
        fields = f'name="OpenAI",base_url={address},wire_api="responses",requires_openai_auth=true,{headers}'
        options = ["-c", f"model_providers.recorded={{{fields}}}", "-c", 'model_provider="recorded"']
    else:
        options = ["-c", f"model_providers.{provider}.base_url={address}"]
        options += ["-c", f'model_providers.{provider}.env_http_headers.{SECRET_HEADER}="{SECRET}"']
    return Start([start.command[0], *options, *start.command[1:]], start.variables)


def _codex_provider(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The provider that the command line, else the configuration, chooses."""
    given = [one.partition("=")[2].strip("\"' ") for one in command if one.startswith("model_provider=")]
    found = _CODEX_CONFIG.search(_codex_config(environ).partition("\n[")[0])
    return given[-1] if given else None if found is None else found[1]


def _codex_config(environ: Mapping[str, str]) -> str:
    home = environ.get("CODEX_HOME") or os.path.join(environ.get("HOME", ""), ".codex")
    try:
        return Path(home, "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def codex_upstream(command: Sequence[str], environ: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """The address that a request of Codex was going to.

    Args:
        command: how Codex was started.
        environ: its environment.
        headers: of the request, names in lower case.
    """
    provider = _codex_provider(command, environ)
    options = [one for one in command if "=" in one]
    text = _codex_config(environ)
    if provider not in (None, "openai"):
        name = re.escape(provider or "")
        pattern = rf'model_providers\.{name}(?:\.base_url\s*=\s*"?|\s*=\s*\{{.*?base_url\s*=\s*")([^"\s}}]+)'
        found = next((match for one in reversed(options) if (match := re.search(pattern, one))), None)
        found = found or re.search(rf'\[model_providers\.{name}\][^\[]*?base_url\s*=\s*"([^"]+)"', text)
    else:
        pattern = r'^openai_base_url\s*=\s*"?([^"\s]+)'
        found = next((match for one in reversed(options) if (match := re.search(pattern, one))), None)
        found = found or re.search(r'^\s*openai_base_url\s*=\s*"([^"]+)"', text, re.MULTILINE)
    if found is not None:
        return found[1]
    # Signed in with an account, it asks another server.
    account = "chatgpt-account-id" in headers
    return "https://chatgpt.com/backend-api/codex" if account else "https://api.openai.com/v1"


PROGRAMS = (
    Program("claude-code", ("claude",), ("x-claude-code-session-id",)),
    Program("codex", ("codex",), ("session-id",), ("thread-id",), _codex),
    Program("opencode", ("opencode",), ("x-session-id",), ("x-session-id",)),
    Program("gemini", ("gemini",)),
    Program("qwen-code", ("qwen",)),
    Program("kimi-code", ("kimi",)),
    Program("copilot", ("copilot",)),
)


def program_of(command: Sequence[str], name: str | None = None) -> Program | None:
    """The program that a command starts, by the name of its executable; or the one called ``name``.

    Raises:
        ValueError: there is none of that name.
    """
    if name is None:
        executable = os.path.basename(command[0]).removesuffix(".exe") if command else ""
        return next((one for one in PROGRAMS if executable in one.commands), None)
    found = next((one for one in PROGRAMS if name == one.name or name in one.commands), None)
    if found is None:
        raise ValueError(f"there is no program {name!r}; there are {', '.join(one.name for one in PROGRAMS)}.")
    return found
