"""Makes the package of an integration importable without its framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace._lazy import lazy_names
from rollout_trace.integration.installed import framework_missing

if TYPE_CHECKING:
    from rollout_trace.integration.installed import About


def lazy_package(
    package: str, modules: Mapping[str, Collection[str]], about: About
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for the ``__init__`` of an integration, which import its names on first use.

    A framework takes a second to import, and may be missing or too old. ``rt.integrations()`` lists the integration all
    the same, and using one of its names raises an ImportError that names what to install.

    Args:
        package: the package's ``__name__``, which is the name of its distribution with underscores. Its ``__all__``
            lists the names.
        modules: the public names of each module that has any: ``{"handler": ("Handler",)}``.
        about: the package's ``About``; its framework is named in the error.
    """
    get, names = lazy_names(package, {f"{package}.{module}": exported for module, exported in modules.items()})

    def get_or_raise(name: str) -> Any:
        try:
            return get(name)
        except ImportError as error:
            raise framework_missing(package.replace("_", "-"), about.framework, error) from error

    return get_or_raise, names
