"""Lazy imports: names of a package that are imported on first use, and a lock-free cached property."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]], submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: its name.
        homes: maps the full name of a module to the package's names that it defines.
        submodules: names of public submodules.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        # From now on the package has the name itself, and this function is not called for it.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*sys.modules[package].__all__, *submodules})

    return get, names


class cached_property(Generic[T]):
    """A property that is computed once and kept in the object's ``__dict__``.

    No lock is taken. ``functools.cached_property`` takes one before Python 3.12, and a process forked while another
    thread holds it would wait forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, item: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, item: object, owner: type) -> T: ...
    def __get__(self, item: Any, owner: type) -> cached_property[T] | T:
        if item is None:
            return self
        value: T = self._compute(item)
        vars(item)[self._name] = value
        return value
