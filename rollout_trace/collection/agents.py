"""Agents: what users give to ``collect``, checked before any rollout and called in one way."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import sys
import threading
import types
import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from rollout_trace.collection.calling import FUNCTIONS, METHOD, bottom_of, shape_of, target_of
from rollout_trace.collection.objects import absolute_spec, load_object, parse_spec


class Agent:
    """An agent of the user's, whatever it is: a function, an object with ``rollout``, or the name of one.

    It can be pickled where what the user gave can be. A class is instantiated once in each process, on the first call;
    an instance is copied to each process once.
    """

    def __init__(self, given: Any, *, spec: str | None = None) -> None:
        """Checks what the user gave; ``spec``: the name that it was loaded by."""
        self._given = given
        self._spec = spec
        self._token = uuid.uuid4().hex
        target = target_of(given)
        shape = shape_of(target, _title(given))
        self.name = _name(given)
        """For trajectories: of the function or the class."""
        self.is_async = shape.is_async
        """Whether it is a coroutine function. The call of another one may return an awaitable, too."""
        self.takes_rollout = shape.rollout != "no"
        self._by_name = shape.rollout == "named"
        source = _source(given)
        self.module: str | None = getattr(source, "__module__", None)
        self.qualified_name: str | None = getattr(source, "__qualname__", None)
        """Of the function or class in its module; None where it has none."""
        self.source_file = _file_of(source)
        """Path of the file that defines it; None where it is unknown."""
        self.arguments_digest = _arguments_digest(given)
        """Of the arguments of a ``functools.partial``: 12 hexadecimal digits; None without such arguments."""

    def call(self, task: Any, rollout: Any) -> Any:
        """Calls the user's function with a task and, if it takes one, an ``rt.Rollout``; the result may be awaitable.

        Raises:
            Exception: what the function raised.
        """
        function = self.load()
        if not self.takes_rollout:
            return function(task)
        return function(task, rollout=rollout) if self._by_name else function(task, rollout)

    def load(self) -> Callable[..., Any]:
        """The function to call, in this process. Makes the instance of a class, where there is none yet.

        Raises:
            Exception: what the constructor of the class raised.
        """
        given = self._given
        function: Callable[..., Any]
        function = getattr(_instance(given), METHOD) if isinstance(given, type) else target_of(given)
        return function

    def describe(self) -> dict[str, str | None]:
        """Where it comes from: ``module``, ``qualified_name``, ``source_file``, ``arguments_digest``."""
        return {
            "module": self.module,
            "qualified_name": self.qualified_name,
            "source_file": self.source_file,
            "arguments_digest": self.arguments_digest,
        }

    def __repr__(self) -> str:
        return f"<agent {self.name} of {self.module}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._spec is None:
            return _restored, (self._token, self._given)
        return _loaded, (self._token, self._spec, _import_folders(self._spec))


def agent_of(agent: Any) -> Agent:
    """The agent that a user gave: a callable, a class with a method ``rollout``, an instance of one, or a name.

    Names are ``"package.module:name"`` and ``"folder/file.py:name"``; see ``load_object``.

    Raises:
        TypeError: it is none of these, or cannot be called with a task, or with a task and a ``Rollout``.
        ValueError, OSError, ImportError: there is nothing of this name, or it cannot be imported.
    """
    if isinstance(agent, Agent):
        return agent
    if not isinstance(agent, str):
        return Agent(agent)
    return Agent(load_object(agent), spec=absolute_spec(agent))


_lock = threading.RLock()
_instances: dict[type, Any] = {}
_copies: WeakValueDictionary[str, Agent] = WeakValueDictionary()
"""Agents that came from another process, by their token. Each job brings one: the first is used for all."""


def _reset() -> None:
    """For a forked process: what an instance holds (clients, threads) is not shared with the parent."""
    global _lock
    _lock = threading.RLock()
    _instances.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


def _instance(kind: type) -> Any:
    with _lock:
        if kind not in _instances:
            _instances[kind] = kind()
        return _instances[kind]


def _restored(token: str, given: Any) -> Agent:
    return _kept(token, lambda: Agent(given))


def _loaded(token: str, spec: str, folders: tuple[str, ...]) -> Agent:
    def make() -> Agent:
        sys.path.extend(folder for folder in folders if folder not in sys.path and os.path.isdir(folder))
        return Agent(load_object(spec), spec=spec)

    return _kept(token, make)


def _kept(token: str, make: Callable[[], Agent]) -> Agent:
    with _lock:
        agent = _copies.get(token)
        if agent is None:
            agent = _copies[token] = make()
            agent._token = token
        return agent


def _import_folders(spec: str) -> tuple[str, ...]:
    """The folder that the module of a named agent was imported from: another process may lack it."""
    named = parse_spec(spec)
    if named.is_file:
        return ()
    module = sys.modules.get(named.module.partition(".")[0])
    folders = getattr(module, "__path__", None) or [getattr(module, "__file__", None) or ""]
    return tuple(os.path.dirname(os.path.abspath(folder)) for folder in folders if folder)


def _title(given: Any) -> str:
    """The agent in a message."""
    name = getattr(_source(given), "__qualname__", None) or type(given).__name__
    return f"the agent {name}"


def _name(given: Any) -> str:
    bottom = bottom_of(given)
    if isinstance(bottom, types.MethodType) and bottom.__name__ in (METHOD, "__call__"):
        owner = bottom.__self__
        return owner.__name__ if isinstance(owner, type) else type(owner).__name__
    name = getattr(_source(given), "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else "agent"


def _source(given: Any) -> Any:
    """The function or class whose code is the agent's."""
    bottom = bottom_of(given)
    return bottom if isinstance(bottom, (type, *FUNCTIONS)) else type(bottom)


def _file_of(source: Any) -> str | None:
    try:
        file = inspect.getsourcefile(inspect.unwrap(source))
    except (TypeError, ValueError, OSError):
        return None
    return None if file is None or not os.path.isfile(file) else os.path.abspath(file)


def _arguments_digest(given: Any) -> str | None:
    """Only a digest: arguments may hold keys. Of objects only the class, since their text may have addresses."""
    found: list[Any] = []
    while isinstance(given, functools.partial):
        found.append([list(map(_plain, given.args)), {name: _plain(one) for name, one in given.keywords.items()}])
        given = given.func
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12] if found else None


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else type(value).__qualname__
