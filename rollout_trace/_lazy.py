"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]], submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its name.
        homes: the full name of a module, and the names of the package that are in it.
        submodules: modules that are public themselves.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*sys.modules[package].__all__, *submodules})

    return get, names


class cached_property(Generic[T]):
    """A property that is computed once and kept in the object's ``__dict__``.

    Takes no lock, which that of ``functools`` does before Python 3.12: a process forked while another thread
    computes one would wait for it for ever.
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
