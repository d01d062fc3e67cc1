"""Agents: what users give to ``collect``, checked before any rollout and called in one way.

A function is called as a coroutine function or not, with a ``Rollout`` or without: its signature says which.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from rollout_trace._threads import lock_for, renew_after_fork
from rollout_trace.collection.objects import absolute_spec, load_object, parse_spec
from rollout_trace.collection.tasks import digest, own_copy
from rollout_trace.data.user_values import brief

_METHOD = "rollout"
"""Name of the method of an agent that is a class, or an instance of one; and of the parameter for the ``Rollout``."""
_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    functools.partial,
)


class Agent:
    """An agent of the user's: a function, an object with ``rollout``, or its name. Picklable if what was given is.

    A class is instantiated once in each process, on the first call; an instance is copied to each process once.
    """

    def __init__(self, given: Any, *, spec: str | None = None) -> None:
        """Checks what the user gave; ``spec``: the name that it was loaded by."""
        self._given = given
        self._spec = spec
        self._token = uuid.uuid4().hex
        source, target = _source(given), _target_of(given)
        title = f"the agent {getattr(source, '__qualname__', None) or type(given).__name__}"
        self.name = _name(given)
        """For trajectories: of the function or the class."""
        self.is_async = _is_async(target, title)
        """Whether it is a coroutine function. The call of another one may return an awaitable, too."""
        way = _takes_rollout(target, title)
        self.takes_rollout, self._by_name = way != "no", way == "named"
        self.module: str | None = getattr(source, "__module__", None)
        self.qualified_name: str | None = getattr(source, "__qualname__", None)
        self.source_file = _file_of(source)
        self.arguments_digest = _arguments_digest(given)
        """Of the arguments of a ``functools.partial``: 12 hexadecimal digits; None without such arguments."""

    def call(self, task: Any, rollout: Any) -> Any:
        """Calls the user's function with a task and, if it takes one, an ``rt.Rollout``; the result may be awaited."""
        function = self.load()
        if not self.takes_rollout:
            return function(task)
        return function(task, rollout=rollout) if self._by_name else function(task, rollout)

    def own_task(self, task: Any) -> Any:
        """The task for one attempt, which may change it: others are given the same object."""
        return own_copy(task)

    def load(self) -> Callable[..., Any]:
        """Returns the function to call in this process. Makes the instance of a class, if there is none yet."""
        given = self._given
        function: Callable[..., Any]
        function = getattr(_instance(given), _METHOD) if isinstance(given, type) else _target_of(given)
        return function

    def describe(self) -> dict[str, str | None]:
        """Describes the agent's origin: ``module``, ``qualified_name``, ``source_file``, ``arguments_digest``."""
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
            return _restored, (self._token, self._given, type(self))
        return _loaded, (self._token, self._spec, _import_folders(self._spec), type(self))


def agent_of(agent: Any, kind: type[Agent] = Agent) -> Agent:
    """The agent that a user gave, as an object of ``kind``. Names are those of ``load_object``, which raises for them.

    Raises TypeError for what is no agent, or cannot be called with a task, or a task and a ``Rollout``.
    """
    if isinstance(agent, Agent):
        return agent
    if not isinstance(agent, str):
        return kind(agent)
    return kind(load_object(agent), spec=absolute_spec(agent))


_lock = lock_for(__name__)
_instances: dict[type, Any] = {}
_copies: WeakValueDictionary[str, Agent] = WeakValueDictionary()
"""Agents that came from another process, by their token. Each job brings one: the first is used for all."""


def _instance(kind: type) -> Any:
    with _lock:
        if kind not in _instances:
            _instances[kind] = kind()
        return _instances[kind]


# What an instance holds (clients, threads) is not shared with a forked process.
renew_after_fork(_instance, lambda _: _instances.clear())


def _restored(token: str, given: Any, kind: type[Agent]) -> Agent:
    return _kept(token, lambda: kind(given))


def _loaded(token: str, spec: str, folders: tuple[str, ...], kind: type[Agent]) -> Agent:
    def make() -> Agent:
        sys.path.extend(folder for folder in folders if folder not in sys.path and os.path.isdir(folder))
        return kind(load_object(spec), spec=spec)

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


def _name(given: Any) -> str:
    bottom = _bottom_of(given)
    if isinstance(bottom, types.MethodType) and bottom.__name__ in (_METHOD, "__call__"):
        owner = bottom.__self__
        return owner.__name__ if isinstance(owner, type) else type(owner).__name__
    name = getattr(_source(given), "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else "agent"


def _source(given: Any) -> Any:
    """The function or class whose code is the agent's."""
    bottom = _bottom_of(given)
    return bottom if isinstance(bottom, (type, *_FUNCTIONS)) else type(bottom)


def _file_of(source: Any) -> str | None:
    try:
        file = inspect.getsourcefile(inspect.unwrap(source))
    except (TypeError, ValueError, OSError):
        return None
    return None if file is None or not os.path.isfile(file) else os.path.abspath(file)


def _arguments_digest(given: Any) -> str | None:
    """Returns a digest, since arguments may hold keys. Objects count by class only: their text may have addresses."""
    found: list[Any] = []
    while isinstance(given, functools.partial):
        found.append([list(given.args), given.keywords])
        given = given.func
    return digest(found, lenient=True) if found else None


def _target_of(given: Any) -> Any:
    """What is called for an agent; for a class the function of its method, whose first parameter is bound to None."""
    if isinstance(given, type):
        if not callable(getattr(given, _METHOD, None)):
            raise TypeError(
                f"the agent is the class {given.__name__}, which has no method {_METHOD!r}: "
                f"write `def {_METHOD}(self, task)` in it, or give a function."
            )
        _check_constructor(given)
        static = inspect.getattr_static(given, _METHOD)
        bound = isinstance(static, (staticmethod, classmethod)) or not inspect.isfunction(static)
        return getattr(given, _METHOD) if bound else functools.partial(static, None)
    if not isinstance(given, _FUNCTIONS) and callable(getattr(type(given), _METHOD, None)):
        return getattr(given, _METHOD)
    if not callable(given):
        raise TypeError(
            f"the agent is {brief(given)} ({type(given).__name__}), which cannot be called; give a function, an object "
            f'with a method {_METHOD!r}, or a name such as "my_agent.py:solve".'
        )
    return given


def _check_constructor(kind: type) -> None:
    if inspect.isabstract(kind):
        raise TypeError(f"the agent is the abstract class {kind.__name__}; give a class that can be instantiated.")
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [one.name for one in parameters if _is_needed(one)]
    if needed:
        raise TypeError(
            f"the agent is the class {kind.__name__}, whose constructor needs {', '.join(needed)}. Give an instance, "
            "or a function that makes one."
        )


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return not variable and parameter.default is parameter.empty


def _bottom_of(given: Any) -> Any:
    """The function inside partials."""
    while isinstance(given, functools.partial):
        given = given.func
    return given


def _is_async(target: Any, title: str) -> bool:
    """Whether it is a coroutine function. Raises TypeError for a generator function."""
    function = _bottom_of(target)
    if not isinstance(function, (*_FUNCTIONS, type)):
        function = getattr(function, "__call__", function)  # noqa: B004 - its own method is looked at
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{title} is a generator function (it has a `yield`): calling it would do nothing. "
            "Give a function that returns its result."
        )
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target)


def _takes_rollout(target: Any, title: str) -> str:
    """How a function takes the ``Rollout``: ``second`` (by position), ``named``, or ``no``.

    Parameters with defaults and other names are not given one.
    """
    parameters = _parameters(target)
    if parameters is None:
        return "no"
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not by_position and not takes_any:
        raise TypeError(f"{title} takes no positional argument. It is called with a task: write `def agent(task)`.")
    rest = by_position[1:]
    if isinstance(target, functools.partial) and _METHOD in target.keywords:
        # The user has bound it to a value of their own.
        parameters = [one for one in parameters if one.name != _METHOD]
    named = next((one for one in parameters if one.name == _METHOD and one not in by_position[:1]), None)
    way = "no"
    if rest and (rest[0] is named or _is_needed(rest[0])):
        way = "second"
    elif named is not None and named.kind in (named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY):
        way = "named"
    given = [*by_position[:1], *(rest[:1] if way == "second" else [named] if way == "named" else [])]
    needed = [one.name for one in parameters if _is_needed(one) and one not in given]
    if needed:
        raise TypeError(
            f"{title} needs {', '.join(needed)} besides its task and a rollout: it is called as agent(task) or "
            "agent(task, rollout). Give the others a default, or bind them with functools.partial."
        )
    return way


def _parameters(target: Any) -> list[inspect.Parameter] | None:
    """The parameters of a function, or of the one that a decorator passes all to; None for some of C."""
    try:
        own = list(inspect.signature(target, follow_wrapped=False).parameters.values())
        passes_on = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own)
        return list(inspect.signature(target).parameters.values()) if passes_on else own
    except (TypeError, ValueError):
        return None
