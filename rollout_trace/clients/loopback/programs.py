"""The programs that are known, a row each: what they obey, and what tells their conversations apart.

What was seen of each, and of which version, is in docs/any-program.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from rollout_trace import guard
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
class Place:
    """Where the loopback server of a program is."""

    origin: str
    """Without its secret."""
    address: str
    """With it."""
    folder: Path
    """For files that the program is to read; nobody else can, and it ends with the program."""


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
    start: Callable[[Start, Place, Mapping[str, str]], Start] | None = None
    """From how it is started, the server's place and the environment to how it is started to be recorded; None: the
    variables that SDKs read are enough."""
    path: str = ""
    """What paths begin with on the server that stand for an address which is in none of those variables."""
    upstream: Callable[[Sequence[str], Mapping[str, str], Mapping[str, str], str], str | None] | None = None
    """From the command, the environment, the headers of a request and its path, behind ``path``, to the address that it
    was going to, without its query; None: there is none."""
    end: Callable[[Path, Mapping[str, str]], None] | None = None
    """What is to be done with the folder when the program has ended."""
    compaction: tuple[str, str] | None = None
    """What its requests have that are to sum up the conversation: ``messages`` (the last of them) or another field, and
    a pattern of its JSON."""
    beside: str | None = None
    """A pattern of how the system prompts begin of agents that it runs beside its conversation, of itself: for its
    memory, say. They have tools."""
    fork: str | None = None
    """How the message begins with which a sub-agent goes on from a copy of the conversation it was called in."""
    transcript: tuple[str, str, str] | None = None
    """Where it writes its own account: the variable of the folder, what that is below the home otherwise, and a pattern
    of the file, ``{}`` for the id of the session."""
    ignored: tuple[str, ...] = ()
    """Fields of its requests that differ from run to run."""
    varying: tuple[tuple[str, str], ...] = ()
    """Patterns of texts in its requests that do, beside dates and UUIDs, and what is compared in their place."""


_CODEX_NAME = re.compile(r"(?:^|[/@])codex(?:@[^/]*)?(?:\.\w+)?$")
_CODEX_OPTION = re.compile(
    r"(?:--config=|-c)?((profile|model_provider|openai_base_url|model_providers\.[^=\s]+)\s*=(.*))", re.DOTALL
)
_CODEX_PROFILE = re.compile(r"-p(.*)|--profile(?:=(.*))?", re.DOTALL)
_CODEX_PATH = "/codex"


def _codex(start: Start, place: Place, environ: Mapping[str, str]) -> Start:
    # It reads no variable for the address. The secret is not among the arguments, which other users may list.
    settings = _codex_settings(start.command, environ)
    if settings is None:
        # Whose server it asks is unknown: it goes there itself.
        hint = "" if sys.version_info >= (3, 11) else ", for which Python 3.10 needs: pip install tomli"
        guard.warn(f"Codex is not recorded: its config.toml or an option -c is not valid TOML{hint}.")
        return start
    provider = settings.get("model_provider", "openai")
    headers = f'env_http_headers={{"{SECRET_HEADER}"="{SECRET}"}}'
    address = json.dumps(f"{place.origin}{_CODEX_PATH}")
    if provider == "openai":
        # Its own provider cannot be changed: another one with the same name is the same to it.
        fields = f'name="OpenAI",base_url={address},wire_api="responses",requires_openai_auth=true,{headers}'
        options = ["-c", f"model_providers.recorded={{{fields}}}", "-c", 'model_provider="recorded"']
    else:
        options = ["-c", f"model_providers.{provider}.base_url={address}"]
        options += ["-c", f'model_providers.{provider}.env_http_headers.{SECRET_HEADER}="{SECRET}"']
    own = _codex_own(start.command)
    return Start([*start.command[:own], *options, *start.command[own:]], start.variables)


def _codex_settings(command: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any] | None:
    """What the configuration and the command line say of its servers; None: it cannot be read."""
    home = Path(environ.get("CODEX_HOME") or os.path.join(environ.get("HOME", ""), ".codex"))
    profile = _codex_profile(command)
    layers = [_toml_of(home / "config.toml"), {} if profile is None else _toml_of(home / f"{profile}.config.toml")]
    for given in filter(None, map(_CODEX_OPTION.fullmatch, command)):
        # A value that is no TOML is a text.
        layers.append(_toml(given[1]) or _toml(f"{given[2]}={json.dumps(given[3].strip())}"))
    settings: dict[str, Any] = {}
    for one in layers:
        if one is None:
            return None
        settings = _merged(settings, one)
    # Releases before 0.171 have profiles in the file itself.
    named = _at(settings, "profiles", profile or settings.get("profile"))
    return _merged(settings, named) if isinstance(named, dict) else settings


def _codex_profile(command: Sequence[str]) -> str | None:
    """The profile that the command line names."""
    for at in range(_codex_own(command), len(command)):
        if command[at] == "--":
            break
        if found := _CODEX_PROFILE.fullmatch(command[at]):
            return found[1] or found[2] or next(iter(command[at + 1 :]), None)
    return None


def _codex_own(command: Sequence[str]) -> int:
    """The position behind its own name, which a launcher such as ``npx`` may come before."""
    named = [bool(_CODEX_NAME.search(word)) for word in command]
    at = named.index(True) if True in named else 0
    # npx -p @openai/codex codex
    return at + 2 if at > 0 and named[at + 1 : at + 2] == [True] else at + 1


def _toml_of(path: Path) -> dict[str, Any] | None:
    """What a file holds, nothing where there is none; None: it cannot be read."""
    try:
        return _toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError):
        return None


def _toml(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return {}
    try:
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        found: dict[str, Any] = toml.loads(text)
    except (ImportError, ValueError):
        return None
    return found


def _at(settings: Any, *names: Any) -> Any:
    """What is at a place of settings; None: nothing."""
    for name in names:
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    deeper = {
        name: _merged(one[name], value)
        for name, value in other.items()
        if isinstance(value, dict) and isinstance(one.get(name), dict)
    }
    return {**one, **other, **deeper}


def _codex_upstream(command: Sequence[str], environ: Mapping[str, str], headers: Mapping[str, str], path: str) -> str:
    return codex_base(command, environ, headers).rstrip("/") + path


def codex_base(command: Sequence[str], environ: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """The base address that a request of Codex was going to.

    Args:
        command: how Codex was started.
        environ: its environment.
        headers: of the request, names in lower case.
    """
    settings = _codex_settings(command, environ) or {}
    provider = settings.get("model_provider", "openai")
    if provider == "openai":
        base = settings.get("openai_base_url")
    else:
        base = _at(settings, "model_providers", provider, "base_url")
    if isinstance(base, str) and base:
        return base
    # Signed in with an account, it asks another server.
    account = "chatgpt-account-id" in headers
    return "https://chatgpt.com/backend-api/codex" if account else "https://api.openai.com/v1"


_PI_PATH = "/pi"
_PI_OWN = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
"""Providers that pi knows without its file, and their addresses."""
_PI_EXTENSIONS = "extensions"
_PI_EXTENSION = "rollout-trace.js"
_PI_BESIDE = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|,(?=(?:\s|//[^\n]*)*[}\]])')
"""In its file, which is JSON otherwise: comments, and commas before the end of a list. The group: texts."""


def _pi_home(environ: Mapping[str, str]) -> Path:
    own = environ.get("PI_CODING_AGENT_DIR") or os.path.join(environ.get("HOME", ""), ".pi", "agent")
    # What links lead to is not looked for from the folder of the program.
    return Path(os.path.abspath(own))


def _pi_addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """The address of each provider."""
    try:
        text = (_pi_home(environ) / "models.json").read_text(encoding="utf-8")
        providers = json.loads(_PI_BESIDE.sub(lambda found: found[1] or "", text))["providers"]
        found = {name: one["baseUrl"] for name, one in providers.items() if isinstance(one.get("baseUrl"), str)}
        # A model may have an address of its own. There is one for all of a provider's in what pi is told.
        several = {
            name for name, one in providers.items() if any("baseUrl" in model for model in one.get("models", ()))
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found, several = {}, set()
    return {name: address for name, address in {**_PI_OWN, **found}.items() if name not in several}


def _pi(start: Start, place: Place, environ: Mapping[str, str]) -> Start:
    # It reads no variable for the address. A folder in the place of its own has links to all that is there, keys stay
    # where they are, and an extension more.
    home = _pi_home(environ)
    if home.is_dir():
        (home / "sessions").mkdir(exist_ok=True)
    own = place.folder / _PI_EXTENSIONS
    own.mkdir()
    for folder, links in ((home, place.folder), (home / _PI_EXTENSIONS, own)):
        for one in folder.iterdir() if folder.is_dir() else ():
            if one.name not in (_PI_EXTENSIONS, _PI_EXTENSION):
                (links / one.name).symlink_to(one)
    led = {name: f"{place.address}{_PI_PATH}/{quote(name, safe='')}" for name in _pi_addresses(environ)}
    script = f"const led = {json.dumps(led)};\nexport default (pi) => {{\n  for (const name in led) "
    script += "pi.registerProvider(name, { baseUrl: led[name] });\n};\n"
    (own / _PI_EXTENSION).write_text(script, encoding="utf-8")
    return Start(start.command, {**start.variables, "PI_CODING_AGENT_DIR": str(place.folder)})


def _pi_upstream(
    command: Sequence[str], environ: Mapping[str, str], headers: Mapping[str, str], path: str
) -> str | None:
    name, _, rest = path[1:].partition("/")
    base = _pi_addresses(environ).get(unquote(name))
    return None if base is None else f"{base.rstrip('/')}/{rest}"


def _pi_end(folder: Path, environ: Mapping[str, str]) -> None:
    """Gives its own folders the files that it has made meanwhile."""
    for made, own in ((folder, _pi_home(environ)), (folder / _PI_EXTENSIONS, _pi_home(environ) / _PI_EXTENSIONS)):
        _give(made, own)


def _give(made: Path, own: Path) -> None:
    for one in made.iterdir():
        if one.name in (_PI_EXTENSIONS, _PI_EXTENSION) or one.is_symlink():
            continue
        own.mkdir(parents=True, exist_ok=True)
        if one.is_dir() and (own / one.name).is_dir():
            # Another pi has made it meanwhile.
            _give(one, own / one.name)
        else:
            shutil.move(one, own / one.name)


_MACHINE = (r"(OS Version|Platform|Shell): [^\n]*", r"\1: <of the machine>")
_CLAUDE_VARYING = (_MACHINE, (r"\ba[0-9a-f]{16}\b", "<agent>"), (r"<duration_ms>\d+", "<duration_ms>"))
_CODEX_VARYING = (
    _MACHINE,
    (r"Wall time: [\d.]+", "Wall time: <time>"),
    (r"Chunk ID: \w+", "Chunk ID: <id>"),
    (r'"nickname": ?"[^"]*"', '"nickname":"<name>"'),
)


PROGRAMS = (
    Program(
        "claude-code",
        ("claude",),
        ("x-claude-code-session-id",),
        compaction=("messages", "a detailed summary.*<summary>"),
        transcript=("CLAUDE_CONFIG_DIR", ".claude", "projects/*/{}.jsonl"),
        ignored=("metadata",),
        varying=_CLAUDE_VARYING,
    ),
    Program(
        "codex",
        ("codex",),
        ("session-id",),
        ("thread-id",),
        _codex,
        _CODEX_PATH,
        _codex_upstream,
        compaction=("client_metadata", r"request_kind\W+compaction\b"),
        transcript=("CODEX_HOME", ".codex", "sessions/*/*/*/rollout-*-{}.jsonl"),
        ignored=("client_metadata", "prompt_cache_key", "input.*.internal_chat_message_metadata_passthrough"),
        varying=_CODEX_VARYING,
    ),
    Program("opencode", ("opencode",), ("x-session-id",), ("x-session-id",)),
    Program("gemini", ("gemini",)),
    Program(
        "qwen-code",
        ("qwen",),
        fork="<fork-boilerplate>",
        beside="You are (now acting as the|performing a) managed memory|You are reviewing this conversation to extract",
    ),
    Program("kimi-code", ("kimi",)),
    Program("copilot", ("copilot",)),
    Program("pi", ("pi",), start=_pi, path=_PI_PATH, upstream=_pi_upstream, end=_pi_end),
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
        raise ValueError(f"unknown program {name!r}. Known programs: {', '.join(one.name for one in PROGRAMS)}.")
    return found
