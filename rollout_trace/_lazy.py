"""Imports on first use: the names of a package, and functions that are registered for rooms below theirs."""

from __future__ import annotations

import sys

# Not from `typing`, which would be imported with the package: `rollout-trace run` starts in the time of two imports.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


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
        from importlib import import_module

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


_registered: dict[str, str] = {}


def register(module: str, *names: str) -> None:
    """Registers functions of a module, which is imported when one of them is asked for."""
    _registered.update(dict.fromkeys(names, module))


def registered(name: str) -> Callable[..., Any]:
    """Finds a registered function: records show themselves by it, and import no viewer."""
    from importlib import import_module

    found: Callable[..., Any] = getattr(import_module(_registered[name]), name)
    return found
