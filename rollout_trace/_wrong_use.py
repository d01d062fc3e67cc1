"""Says what to write where a public function is called with arguments that do not fit, or is not called at all."""

from __future__ import annotations

import functools
from abc import ABCMeta

# Not from `typing`: importing that takes longer than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

_BLOCKS = {
    "instrument": "with rt.instrument():",
    "recording": 'with rt.recording("rollouts.jsonl"):',
    "tool_run": 'with rt.tool_run("search"):',
    "trajectory": "with rt.trajectory() as trajectory:",
}
"""What to write, by the function's name."""


def explained(function: F) -> F:
    """Decorates a public function, or the ``__init__`` of a public class.

    A call whose arguments do not fit raises a TypeError that says what to write, in the place of Python's own.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # No frame of the function: it was raised by the call itself.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            message = _sentence(function, args, kwargs) or str(error)
        raise TypeError(message)

    return call  # type: ignore[return-value]


def did_you_mean(name: object, known: Iterable[str], instead: str | None = None) -> str:
    """``Did you mean NAME?``, of the known name that is nearest to an unknown one.

    Where none is near: ``instead``, or all known names if it is None.
    """
    from difflib import get_close_matches

    names = {one.lower(): one for one in known}
    near = get_close_matches(str(name).lower(), names, 1)
    if near:
        return f"Did you mean {names[near[0]]}?"
    return f"There are {', '.join(names.values())}." if instead is None else instead


def import_extra(name: str, what: str, install: str) -> Any:
    """Imports a module of a package that is not required; ImportError says ``what`` needs it, and how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ImportError(f"{what} the package {package}. Install it with: pip install '{install}'") from None


def _sentence(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """What does not fit in the arguments of a call, and what to write; None where only Python knows."""
    from inspect import signature

    parameters = dict(signature(function).parameters)
    name = function.__qualname__.removesuffix(".__init__")
    if name != function.__qualname__:
        del parameters["self"]
        args = args[1:]
    by_position = [key for key, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    by_name = [key for key, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    if surplus := args[len(by_position) :]:
        given = ", ".join(f"{key}={_shown(value)}" for key, value in zip(by_name, surplus, strict=False))
        takes = f"takes only {' and '.join(by_position)} by position" if by_position else "takes nothing by position"
        return f"rt.{name}() {takes}. Give the rest by name, such as {given}."
    known = by_position + by_name
    for key in kwargs:
        if key not in known:
            return f"rt.{name}() has no argument {key!r}. {did_you_mean(key, known)}"
    present = {*by_position[: len(args)], *kwargs}
    missing = [key for key in known if parameters[key].default is parameters[key].empty and key not in present]
    example = f", as in `{_BLOCKS[name]}`" if name in _BLOCKS else ""
    return f"rt.{name}() needs the argument {' and '.join(missing)}{example}." if missing else None


def _shown(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, (str, int, float)) else "…"


def _enter(self: Any) -> NoReturn:
    # A class of a user's that is made from `rt.recording` has another name.
    block = _BLOCKS.get(self.__name__, _BLOCKS["recording"])
    raise TypeError(f"rt.{self.__name__} is not called here. Write `{block}`.")


def _exit(self: Any, *error: object) -> None:
    """Never called: ``with`` looks it up before it enters."""


class Uncalled(ABCMeta):
    """The type of a class whose objects are used with ``with``: the class itself is not."""

    __enter__ = __aenter__ = _enter
    __exit__ = __aexit__ = _exit


class Block:
    """A function whose result is used with ``with``: the function itself is not, and has no attributes to set."""

    __name__: str
    __enter__ = __aenter__ = _enter
    __exit__ = __aexit__ = _exit

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = explained(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"rt.{self.__name__}.{name} cannot be set: rt.{self.__name__} is a function. Set it on the block's "
                f"variable: `{_BLOCKS[self.__name__]}`."
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        block = _BLOCKS[self.__name__]
        raise AttributeError(
            f"rt.{self.__name__} is a function and has no {name!r}. What the block gives has it: `{block}`."
        )

    def __repr__(self) -> str:
        # As `help` shows a function.
        from inspect import signature

        return f"<function rt.{self.__name__}{signature(self)}>"

    def __reduce__(self) -> str:
        # Pickled by name, as functions are.
        return self.__name__


def block(function: F) -> F:
    """Decorates a public function whose result is used with ``with``: see ``Block``, and ``explained``."""
    return Block(function)  # type: ignore[return-value]
