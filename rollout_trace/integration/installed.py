"""Which integrations are installed, and whether their frameworks are at releases they were tested with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from rollout_trace import guard
from rollout_trace._field_docs import document_fields

ENTRY_POINTS = "rollout_trace.integrations"
"""The entry point group; each names an ``About``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """An integration's framework, and the releases that it was tested with.

    The entry point of the integration's distribution, in the group ``rollout_trace.integrations``, names one.
    ``rt.integrations()`` reads it, also where the framework is not installed: its module imports no framework.
    """

    framework: str
    """Name of the framework's distribution, as in ``pip install``."""
    tested: tuple[str, str]
    """The oldest and the newest release that the integration's tests ran with. ``("1.0", "1.8")`` takes in 1.8.1."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """An installed integration."""

    name: str
    distribution: str
    version: str
    framework: str
    """The framework's distribution."""
    framework_version: str | None
    """None where the framework is not installed."""
    tested: tuple[str, str]
    """The oldest and the newest tested release of the framework."""

    @property
    def is_tested(self) -> bool | None:
        """Whether the framework's release lies in the tested range; None where it is not installed."""
        if self.framework_version is None:
            return None
        oldest, newest = map(_numbers, self.tested)
        # A range to 1.8 holds 1.8.1: compared to the precision that was written down.
        return oldest <= _numbers(self.framework_version) and _numbers(self.framework_version)[: len(newest)] <= newest


def integrations() -> list[Integration]:
    """The installed integrations, by name. One that cannot be read is logged and left out."""
    found = []
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            about: About = entry.load()
            if entry.dist is None:
                continue
            found.append(
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
    return found


def framework_missing(integration: str, framework: str, error: ImportError) -> ImportError:
    """An ImportError that names what to install, to be raised in the place of one of the framework's.

    ``lazy_package`` raises it; a package that imports its framework by itself can, too.

    Args:
        integration: name of the integration's distribution, which has the framework among its dependencies.
        framework: name of the framework's distribution.
        error: what the import raised.
    """
    return ImportError(
        f"{integration} needs {framework}, which cannot be imported here ({error}). "
        f"Install it, in a checkout of rollout_trace, with: pip install . ./integrations/{integration}",
        name=error.name,
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release; what a pre-release adds does not count."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()
