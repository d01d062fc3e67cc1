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
    """What an integration says of itself, without importing its framework."""

    framework: str
    """The framework's distribution, as ``pip`` knows it."""
    tested: tuple[str, str]
    """The oldest and the newest release that the integration's tests ran with."""


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
    """What an integration raises in the place of the ImportError of its framework.

    Args:
        integration: its distribution, which has the framework among its dependencies.
        framework: the framework's distribution.
        error: what was raised.
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
