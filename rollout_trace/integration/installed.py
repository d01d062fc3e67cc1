"""Lists the installed integrations, and makes the package of one importable without its framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from rollout_trace import guard
from rollout_trace._field_docs import document_fields
from rollout_trace._lazy import lazy_names

ENTRY_POINTS = "rollout_trace.integrations"
"""The entry point group. Each entry point names an ``About``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Metadata of an integration: its framework and the releases it was tested with.

    An entry point of the integration's distribution declares it, in the group ``rollout_trace.integrations``, and
    ``rt.integrations()`` reads it. Its module must not import the framework, which may not be installed.
    """

    framework: str
    """Name of the framework's distribution, as in ``pip install``."""
    tested: tuple[str, str]
    """The oldest and the newest release that the integration's tests ran with. ``("1.0", "1.8")`` includes 1.8.1."""
    module: str | None = None
    """The framework's package. When it is imported, ``rt.instrument(hooks=True)`` calls ``start``."""
    start: str | None = None
    """``MODULE:FUNCTION`` of the integration. The function starts recording every run in this process, and returns a
    function that stops it. None: the integration has no hook for the whole process."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """An installed integration."""

    name: str
    """Name of its entry point."""
    distribution: str
    """Name of its distribution."""
    version: str
    """Its installed version."""
    framework: str
    """Name of the framework's distribution."""
    framework_version: str | None
    """Installed version of the framework; None if it is not installed."""
    tested: tuple[str, str]
    """The oldest and the newest tested release of the framework."""

    @property
    def is_tested(self) -> bool | None:
        """Whether the installed release of the framework is in the tested range; None if it is not installed."""
        if self.framework_version is None:
            return None
        oldest, newest = map(_numbers, self.tested)
        # Only as many numbers as the bound has are compared, so that a range up to 1.8 includes 1.8.1.
        return oldest <= _numbers(self.framework_version) and _numbers(self.framework_version)[: len(newest)] <= newest


def integrations() -> list[Integration]:
    """Returns the installed integrations, sorted by name. One that cannot be loaded is logged and left out."""
    installed = []
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            about: About = entry.load()
            if entry.dist is None:
                continue
            installed.append(
                Integration(
                    name=entry.name,
                    distribution=entry.dist.name,
                    version=entry.dist.version,
                    framework=about.framework,
                    framework_version=_version(about.framework),
                    tested=about.tested,
                )
            )
        except Exception as error:
            guard.warn_once(
                f"integration:{entry.name}",
                f"the integration {entry.name!r} ({entry.value}) cannot be read: {type(error).__name__}: {error}.",
            )
    return installed


def framework_missing(integration: str, framework: str, error: ImportError) -> ImportError:
    """Returns an ImportError that names what to install, to raise instead of the framework's own.

    ``lazy_package`` raises it. A package that imports its framework in another way can raise it as well.

    Args:
        integration: name of the integration's distribution, which depends on the framework.
        framework: name of the framework's distribution.
        error: the ImportError of the import.
    """
    return ImportError(
        f"{integration} needs {framework}, which cannot be imported here ({error}). "
        f"Install it, in a checkout of rollout_trace, with: pip install . ./integrations/{integration}",
        name=error.name,
    )


def lazy_package(
    package: str, modules: Mapping[str, Collection[str]], about: About
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` for an integration's ``__init__``, which import its names on first use.

    Importing a framework takes a second, and it may be missing or too old. ``rt.integrations()`` still lists the
    integration then, and using one of its names raises an ImportError that names what to install.

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


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, without a pre-release suffix."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()
