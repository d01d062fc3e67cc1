"""``Trajectory.environment``: what ran. Versions, the process, its command line and commit, and what users add.

Collected once a process, when the environment of a trajectory is first read: by the recording's thread, as a rule.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from rollout_trace._threads import lock_for
from rollout_trace._version import __version__
from rollout_trace.credentials import MASK
from rollout_trace.data import user_values

_PACKAGES = {
    "openai": "openai", "anthropic": "anthropic", "google.genai": "google-genai", "ollama": "ollama",
    "mistralai": "mistralai", "httpx": "httpx", "httpx2": "httpx2", "aiohttp": "aiohttp", "litellm": "litellm",
    "vllm": "vllm", "sglang": "sglang", "tinker": "tinker", "transformers": "transformers", "torch": "torch",
    "numpy": "numpy", "pydantic": "pydantic", "mcp": "mcp", "ray": "ray", "datasets": "datasets",
    "langchain": "langchain", "langchain_core": "langchain-core", "langchain_openai": "langchain-openai",
    "langchain_anthropic": "langchain-anthropic", "langgraph": "langgraph", "strands": "strands-agents",
    "smolagents": "smolagents", "agents": "openai-agents", "pydantic_ai": "pydantic-ai", "crewai": "crewai",
    "autogen_core": "autogen-core", "autogen_agentchat": "autogen-agentchat", "llama_index.core": "llama-index-core",
    "haystack": "haystack-ai", "dspy": "dspy", "google.adk": "google-adk", "semantic_kernel": "semantic-kernel",
    "agno": "agno", "camel": "camel-ai", "inspect_ai": "inspect-ai", "browser_use": "browser-use",
    "verifiers": "verifiers", "trl": "trl", "verl": "verl",
    "rollout_trace_langchain": "rollout-trace-langchain", "rollout_trace_strands": "rollout-trace-strands",
    "rollout_trace_smolagents": "rollout-trace-smolagents",
}  # fmt: skip
"""Modules whose versions matter to a rollout, with the distributions that they come from."""

COLLECTED = frozenset(
    {"rollout_trace", "python", "implementation", "platform", "host", "pid", "process_started", "packages", "git",
     "command", "python_hash_seed", "prices"}
)  # fmt: skip
"""The names that ``environment`` refuses: they are collected."""

_copy: Callable[[dict[str, Any]], dict[str, Any]] = to_builtins
"""Copies a value that JSON can hold."""
_lock = lock_for(__name__)
_own: dict[str, Any] = {}
"""What the user added. Replaced as a whole, never changed: trajectories refer to it."""
_collected: dict[str, Any] | None = None
_versions: dict[str, str | None] = {}
"""By module; None where a module of that name is not the one that is meant."""


def environment(**values: Any) -> dict[str, Any]:
    """Adds facts to the ``environment`` of every trajectory that this process opens from now on.

        rt.environment(policy_version="step-200", seed=7, files={"config.yaml": rt.file_sha256("config.yaml")})

    A value replaces an earlier one with the same name; a dict (such as ``files``) is merged into it; None removes it.

    Args:
        **values: values that JSON can hold: strings, finite numbers, booleans, lists, and dicts with string keys.

    Returns:
        A copy of everything added so far.

    Raises:
        TypeError: JSON cannot hold a value.
        ValueError: a number is not finite, or the name is one that is collected automatically (``python``, ``git``,
            ...).
    """
    global _own
    taken = sorted(COLLECTED & values.keys())
    if taken:
        raise ValueError(f"rt.environment({taken[0]}=...): {taken[0]!r} is collected automatically. Give another name.")
    checked = {name: _json(value, name) for name, value in values.items()}
    with _lock:
        own = dict(_own)
        for name, value in checked.items():
            if value is None:
                own.pop(name, None)
            elif isinstance(value, dict) and isinstance(own.get(name), dict):
                own[name] = {**own[name], **value}
            else:
                own[name] = value
        _own = own
    return _copy(own)


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file as 64 hex digits, for ``rt.environment(files={"a.yaml": rt.file_sha256(path)})``.

    Raises:
        OSError: the file cannot be read, or is a folder.
        TypeError: ``path`` is not a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"file_sha256() got {user_values.brief(path)} ({type(path).__name__}); give a file's path.")
    from hashlib import sha256

    digest = sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Pending:
    """The environment of a trajectory before it is read: what the user had added when the trajectory was opened."""

    __slots__ = ("_own",)

    def __init__(self) -> None:
        self._own = _own

    def __call__(self) -> dict[str, Any]:
        """Returns the whole environment, and collects now what is still missing."""
        return {**provenance(), **_copy(self._own)}

    @property
    def is_known(self) -> bool:
        """Whether all has been collected already."""
        known = _collected
        return known is not None and bool(known["pid"] == os.getpid())

    def so_far(self) -> dict[str, Any]:
        """Returns what is available now: versions, the user's values, and what has already been collected."""
        if self.is_known:
            return self()
        return {**versions(), "pid": os.getpid(), **_copy(self._own)}


def provenance() -> dict[str, Any]:
    """Collects facts about this process: up to 50 ms the first time, then microseconds. Never raises."""
    global _collected
    with _lock:
        if _collected is None:
            _collected = _collect()
        elif _collected["pid"] != os.getpid():
            # Forked: the folder and its commit are as they were.
            _collected = {**_collected, **_of_process()}
        for module in _PACKAGES:
            if module not in _versions and module in sys.modules:
                _versions[module] = _version(module)
        packages = {_PACKAGES[module]: version for module, version in _versions.items() if version is not None}
        found = {**_collected, "packages": packages}
    # Copies: they are the trajectory's own. Keys are cut out of them as out of its other fields.
    found["command"] = list(found["command"])
    if found["git"] is None:
        del found["git"]
    else:
        found["git"] = dict(found["git"])
    return found


@lru_cache(maxsize=1)
def versions() -> Mapping[str, str]:
    """Versions of this library, of Python, and of the platform."""
    return {"rollout_trace": __version__, "python": platform.python_version(), "platform": platform.platform()}


def _collect() -> dict[str, Any]:
    # Imported on use, here and below: an agent's start should not wait for what is needed once, on another thread.
    import socket

    try:
        host = socket.gethostname()
    except OSError:
        host = platform.node()
    try:
        git = git_state(os.getcwd())
    except Exception:  # The folder is gone, or `.git` holds what git never writes.
        git = None
    hash_seed = os.environ.get("PYTHONHASHSEED")
    return {
        **versions(),
        "implementation": platform.python_implementation(),
        "host": host,
        **_of_process(),
        "command": command_line(),
        **({} if hash_seed is None else {"python_hash_seed": hash_seed}),
        "git": git,
    }


def _of_process() -> dict[str, Any]:
    started = start_of_process()
    return {"pid": os.getpid(), **({} if started is None else {"process_started": started})}


def _version(module: str) -> str | None:
    from importlib.metadata import version

    try:
        # By distribution: a user's own module may be called `agents`, and then that is not installed.
        return version(_PACKAGES[module])
    except Exception:  # Not installed, but in the path: a checkout, a vendored copy.
        # Not by `getattr`, which may import what a package imports on use.
        own = getattr(sys.modules[module], "__dict__", {}).get("__version__")
        return own if isinstance(own, str) and module != "agents" else None


def _json(value: Any, place: str) -> Any:
    """A copy of a value that JSON can hold."""
    value = user_values.to_builtin(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"rt.environment(): {place} has the key {user_values.brief(key)}; give names as text.")
        return {str.__str__(key): _json(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item, f"{place}[{at}]") for at, item in enumerate(value)]
    try:
        return user_values.finite_number(value, place)
    except TypeError:
        raise TypeError(
            f"rt.environment(): {place} is {user_values.brief(value)} ({type(value).__name__}); give what JSON can "
            "hold: texts, numbers, lists, dicts."
        ) from None


# The process and its command line

LONGEST = 1000
"""Most characters of one argument that are kept: ``python -c`` has a whole program in it."""
_NAMES = frozenset(
    {"key", "apikey", "token", "accesstoken", "authtoken", "password", "passwd", "passphrase", "pwd", "secret",
     "secrets", "credential", "credentials", "auth", "authorization", "bearer", "cookie"}
)  # fmt: skip
"""Words in the name of an option whose value is a secret: ``--openai-api-key``, ``hf_token=``."""
_WORD = rf"(?:[\w.+-]*[_.+-])?(?:{'|'.join(sorted(_NAMES, key=len, reverse=True))})"
_PATTERNS = (
    # scheme://user:password@host
    (r"(?<=://)[^/\s@\"']+(?=@)", MASK),
    # Authorization: Bearer ..., x-api-key: ...
    (r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"',;}]+", rf"\1{MASK}"),
    (r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}", rf"\1{MASK}"),
    # api_key=..., "token": "...", also in a program or a JSON text
    (rf"(?i)(?<!\w)(-*{_WORD}[\"']?\s*(?:=|:)\s*)(?!(?:bearer|basic|token)\s)"
     r"(?:\"[^\"]*\"|'[^']*'|[^\s\"',;&}]+)", rf"\1{MASK}"),
    # What is recognised by itself.
    (r"\b(?:sk|pk|rk|gsk|hf|nvapi|xai|glpat|ghp|gho|ghs|ghu|github_pat|r8|pplx|fw|tvly)[-_][\w-]{12,}", MASK),
    (r"\bxox[abeoprs]-[\w-]{10,}", MASK),
    (r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b", MASK),
    (r"\bAIza[\w-]{30,}", MASK),
    (r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*", MASK),
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
)  # fmt: skip
"""What is cut out, and what stands in its place. Compiled on use: see ``_collect``."""
_OPTION = rf"(?i)--?{_WORD}"


def command_line(arguments: list[str] | None = None) -> list[str]:
    """The arguments that this process was started with, the interpreter's own included, without secrets."""
    given = list(sys.orig_argv) if arguments is None else arguments
    kept: list[str] = []
    is_secret = False
    for argument in given:
        if is_secret and not argument.startswith("--"):
            kept.append(MASK)
            is_secret = False
            continue
        is_secret = re.fullmatch(_OPTION, argument) is not None
        kept.append(_shortened(without_secrets(argument)))
    return kept


def without_secrets(text: str) -> str:
    """A text, at most 2,000 characters of it, without what is recognised as a key, a password or a token."""
    # Two patterns take time with the square of a text without spaces.
    text = _shortened(text, 2 * LONGEST)
    for pattern, replacement in _PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text


def _shortened(text: str, length: int = LONGEST) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def start_of_process() -> str | None:
    """When this process was started, as an ISO date in UTC; None where the system does not have it at hand."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # After the name of the program, which is in brackets and may hold anything: field 22, in clock ticks.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return datetime.fromtimestamp(time.time() - age, timezone.utc).isoformat(timespec="milliseconds")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


# The repository

DIRTY_TIMEOUT = 0.03
"""Seconds that ``git status`` may take: in a big repository it takes seconds, and then it is not known."""
_COMMIT = r"[0-9a-f]{40}(?:[0-9a-f]{24})?"


def git_state(folder: str | os.PathLike[str], *, timeout: float = DIRTY_TIMEOUT) -> dict[str, Any] | None:
    """``commit``, ``branch`` and ``dirty`` of the repository that a folder is in; None outside of one.

    ``commit`` is missing before the first one, ``branch`` with a detached HEAD, ``dirty`` where it is not known in
    time, or git is not installed. Files that git does not track do not count.

    Raises:
        OSError: its files cannot be read.
    """
    git_folder = _git_folder(Path(folder))
    if git_folder is None:
        return None
    commit, branch = _head(git_folder)
    question = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    changes = None if commit is None else _git(*question, folder=folder, timeout=timeout)
    found = {"commit": commit, "branch": branch, "dirty": None if changes is None else bool(changes.strip())}
    return {name: value for name, value in found.items() if value is not None}


def _git_folder(folder: Path) -> Path | None:
    folder = folder.resolve()
    for one in (folder, *folder.parents):
        place = one / ".git"
        if place.is_dir():
            return place if (place / "HEAD").exists() else None
        if place.is_file():  # A worktree or a submodule.
            target = place.read_text("utf-8", "replace").partition("gitdir:")[2].strip()
            return (one / target) if target else None
    return None


def _head(git_folder: Path) -> tuple[str | None, str | None]:
    """Commit and branch, read from the files that git keeps: faster than git itself."""
    head = (git_folder / "HEAD").read_text("utf-8", "replace").strip()
    if not head.startswith("ref:"):
        return (head if re.fullmatch(_COMMIT, head) else None), None
    reference = head.partition("ref:")[2].strip()
    branch = reference.removeprefix("refs/heads/")
    if branch == ".invalid":  # Kept in a table that only git reads.
        commit = (_git("rev-parse", "HEAD", folder=git_folder, timeout=DIRTY_TIMEOUT) or "").strip()
        return (commit if re.fullmatch(_COMMIT, commit) else None), None
    return _resolved(git_folder, reference), branch


def _resolved(git_folder: Path, reference: str, depth: int = 0) -> str | None:
    for folder in (git_folder, _common(git_folder)):
        try:
            text = (folder / reference).read_text("utf-8", "replace").strip()
        except (OSError, ValueError):
            text = _packed(folder, reference) or ""
        if text.startswith("ref:") and depth < 5:
            return _resolved(git_folder, text.partition("ref:")[2].strip(), depth + 1)
        if re.fullmatch(_COMMIT, text):
            return text
    return None


def _common(git_folder: Path) -> Path:
    """The folder of the references: of a worktree, that of the repository it belongs to."""
    try:
        return git_folder / (git_folder / "commondir").read_text("utf-8", "replace").strip()
    except OSError:
        return git_folder


def _packed(folder: Path, reference: str) -> str | None:
    try:
        with open(folder / "packed-refs", encoding="utf-8", errors="replace") as lines:
            return next((line[: -len(reference) - 2] for line in lines if line.endswith(f" {reference}\n")), None)
    except OSError:
        return None


def _git(*arguments: str, folder: str | os.PathLike[str], timeout: float) -> str | None:
    """Returns git's output; None if it fails, is not installed, or takes too long."""
    import subprocess

    # Without the variables of a hook that runs this program, and without taking the lock of the index.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # No command of the repository's own is run: `core.fsmonitor` may name one.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    env, nothing = {**own, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}, subprocess.DEVNULL
    try:
        found = subprocess.check_output(command, cwd=folder, env=env, stdin=nothing, stderr=nothing, timeout=timeout)
    except Exception:
        # Not installed, no repository to it, too slow; or the interpreter is ending, and starts no process any more.
        return None
    return found.decode("utf-8", "replace")
