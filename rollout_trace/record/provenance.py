"""``Trajectory.environment``: what ran. Versions, the process, its command line and commit, and what users add.

Collected once a process, when the environment of a trajectory is first read: by the recording's thread, as a rule.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rollout_trace._version import __version__
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

_lock = threading.RLock()
_own: dict[str, Any] = {}
"""What the user added. Replaced as a whole, never changed: trajectories refer to it."""
_collected: dict[str, Any] | None = None
_versions: dict[str, str | None] = {}
"""By module; None where a module of that name is not the one that is meant."""


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def environment(**values: Any) -> dict[str, Any]:
    """Adds facts to the ``environment`` of every trajectory that this process opens from now on.

        rt.environment(policy_version="step-200", seed=7, files={"config.yaml": rt.file_sha256("config.yaml")})

    A value replaces an earlier one of its name, a dict (as ``files``) is added to it, and None removes it.

    Args:
        **values: what JSON can hold: texts, finite numbers, booleans, lists, and dicts with texts as keys.

    Returns:
        All that was added so far, as a copy.

    Raises:
        TypeError: a value has no form in JSON.
        ValueError: a number is not finite, or the name is one of those that are collected (``python``, ``git``, ...).
    """
    global _own
    taken = sorted(COLLECTED & values.keys())
    if taken:
        raise ValueError(f"rt.environment({taken[0]}=...): {taken[0]!r} is collected by itself; give another name.")
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
    return {name: _copy(value) for name, value in own.items()}


def file_sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, as 64 hex digits. For ``rt.environment(files={"config.yaml": rt.file_sha256(path)})``.

    Raises:
        OSError: the file cannot be read, or is a folder.
        TypeError: not a path.
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
        """The whole environment. What is to be collected is collected now, unless it has been."""
        return {**provenance(), **self._added()}

    def _added(self) -> dict[str, Any]:
        return {name: _copy(value) for name, value in self._own.items()}

    def so_far(self) -> dict[str, Any]:
        """What needs no collecting: the versions, what the user added, and what has been collected already."""
        known = _collected
        if known is not None and known["pid"] == os.getpid():
            return self()
        return {**versions(), "pid": os.getpid(), **self._added()}


def provenance() -> dict[str, Any]:
    """What is known of this process: up to 50 ms the first time, then microseconds. Never raises."""
    global _collected
    with _lock:
        if _collected is None:
            _collected = _collect()
        elif _collected["pid"] != os.getpid():
            # Forked: the folder and its commit are as they were.
            _collected = {**_collected, **_of_process()}
        found = dict(_collected)
        found["packages"] = _packages()
    # A copy, as of `git`: it is the trajectory's own. Keys are cut out of it as out of its other fields.
    if found.get("command") is not None:
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
    from rollout_trace.record import _process

    hash_seed = os.environ.get("PYTHONHASHSEED")
    return {
        **versions(),
        "implementation": platform.python_implementation(),
        "host": _host(),
        **_of_process(),
        "command": _process.command_line(),
        **({} if hash_seed is None else {"python_hash_seed": hash_seed}),
        "git": _git(),
    }


def _of_process() -> dict[str, Any]:
    from rollout_trace.record import _process

    started = _process.start_of_process()
    return {"pid": os.getpid(), **({} if started is None else {"process_started": started})}


def _host() -> str:
    import socket

    try:
        return socket.gethostname()
    except OSError:
        return platform.node()


def _git() -> dict[str, Any] | None:
    from rollout_trace.record._git import git_state

    try:
        return git_state(os.getcwd())
    except Exception:  # The folder is gone, or `.git` holds what git never writes.
        return None


def _packages() -> dict[str, str]:
    """Versions of the known packages that are imported so far."""
    for module in _PACKAGES:
        if module not in _versions and module in sys.modules:
            _versions[module] = _version(module)
    return {_PACKAGES[module]: version for module, version in _versions.items() if version is not None}


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


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
