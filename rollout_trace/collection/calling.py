"""How the function of a user's agent is called: as a coroutine or not, with a ``Rollout`` or without."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, NamedTuple

from rollout_trace.data.user_values import brief

METHOD = "rollout"
"""Name of the method of an agent that is a class, or an instance of one; and of the parameter for the ``Rollout``."""
FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    functools.partial,
)


class Shape(NamedTuple):
    """How a function is called."""

    is_async: bool
    """Whether it is a coroutine function."""
    rollout: str
    """How it takes the ``Rollout``: ``no``, ``second`` (by position) or ``named``."""


def target_of(given: Any) -> Any:
    """What is called for an agent; for a class the function of its method, whose first parameter is bound to None."""
    if isinstance(given, type):
        if not callable(getattr(given, METHOD, None)):
            raise TypeError(
                f"the agent is the class {given.__name__}, which has no method {METHOD!r}: "
                f"write `def {METHOD}(self, task)` in it, or give a function."
            )
        _check_constructor(given)
        static = inspect.getattr_static(given, METHOD)
        bound = isinstance(static, (staticmethod, classmethod)) or not inspect.isfunction(static)
        return getattr(given, METHOD) if bound else functools.partial(static, None)
    if not isinstance(given, FUNCTIONS) and callable(getattr(type(given), METHOD, None)):
        return getattr(given, METHOD)
    if not callable(given):
        raise TypeError(
            f"the agent is {brief(given)} ({type(given).__name__}), which cannot be called; give a function, an object "
            f'with a method {METHOD!r}, or a name such as "my_agent.py:solve".'
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
            f"the agent is the class {kind.__name__}, whose constructor needs {', '.join(needed)}: give an instance, "
            "or a function that makes one."
        )


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return not variable and parameter.default is parameter.empty


def bottom_of(given: Any) -> Any:
    """The function inside partials."""
    while isinstance(given, functools.partial):
        given = given.func
    return given


def shape_of(target: Any, title: str) -> Shape:
    function = bottom_of(target)
    if not isinstance(function, (*FUNCTIONS, type)):
        function = getattr(function, "__call__", function)  # noqa: B004 - its own method is looked at
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{title} is a generator function (it has a `yield`), and would do nothing when it is called: "
            "give a function that returns its result."
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target)
    return Shape(is_async, _takes_rollout(target, title))


def _takes_rollout(target: Any, title: str) -> str:
    """How a function takes the ``Rollout``. Parameters with defaults and other names are not given one.

    Raises:
        TypeError: it takes no task, or needs more than a task and a ``Rollout``.
    """
    parameters = _parameters(target)
    if parameters is None:
        return "no"
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not by_position and not takes_any:
        raise TypeError(f"{title} takes no positional argument, and is called with a task: write `def agent(task)`.")
    rest = by_position[1:]
    if isinstance(target, functools.partial) and METHOD in target.keywords:
        # The user has bound it to a value of their own.
        parameters = [one for one in parameters if one.name != METHOD]
    named = next((one for one in parameters if one.name == METHOD and one not in by_position[:1]), None)
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
    """The parameters of a function; None where they are unknown, as of some that are written in C.

    Those of a decorator's own wrapper: it may add arguments for the function in it. If it passes on whatever it is
    given, those of the function.
    """
    try:
        own = list(inspect.signature(target, follow_wrapped=False).parameters.values())
        passes_on = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own)
        return list(inspect.signature(target).parameters.values()) if passes_on else own
    except (TypeError, ValueError):
        return None
