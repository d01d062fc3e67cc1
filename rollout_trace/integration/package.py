"""The package of an integration: it can be imported, and asked what it is for, without its framework."""

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
    """``__getattr__`` and ``__dir__`` for the ``__init__`` of an integration: its names are imported at first use.

    A framework takes a second to import, and may be missing, or too old: ``rt.integrations()`` lists the integration
    all the same, and who uses one of its names gets an ImportError that names what to install.

    Args:
        package: the package's ``__name__``, which is the name of its distribution with underscores. Its ``__all__``
            lists the names.
        modules: for each of its modules that has public names (``"handler"``) these names.
        about: names the framework.
    """
    get, names = lazy_names(package, {f"{package}.{module}": found for module, found in modules.items()})

    def get_or_explain(name: str) -> Any:
        try:
            return get(name)
        except ImportError as error:
            raise framework_missing(package.replace("_", "-"), about.framework, error) from error

    return get_or_explain, names
