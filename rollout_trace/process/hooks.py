"""The hooks of installed integrations, started for the whole process: ``rt.instrument(hooks=True)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from rollout_trace import guard
from rollout_trace.process.parts import Part
from rollout_trace.process.patches import Patches

_GROUP = "rollout_trace.integrations"
"""The entry point group, as in ``rollout_trace.integration.installed``: that is in a room above."""

_part: Part | None = None


def part() -> Part:
    """Starts the hook of each installed integration when its framework has been imported."""
    global _part
    if _part is None:
        _part = Part(_found())
    return _part


def _found() -> dict[str, Callable[[ModuleType, Patches], None]]:
    # Takes milliseconds to import, and is needed here alone.
    from importlib import metadata

    starts: dict[str, list[tuple[str, str]]] = {}
    for entry in metadata.entry_points(group=_GROUP):
        try:
            about: Any = entry.load()
            if about.start is not None:
                starts.setdefault(about.module, []).append((entry.name, about.start))
        except Exception as error:
            _warn(entry.name, error)
    return {module: partial(_start, named) for module, named in starts.items()}


def _start(named: list[tuple[str, str]], module: ModuleType, patches: Patches) -> None:
    for name, path in named:
        try:
            home, _, function = path.partition(":")
            patches.on_undo(getattr(import_module(home), function)())
        except Exception as error:
            # Such as a release of the framework that the integration does not know.
            _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    guard.warn_once(
        f"hooks:{name}", f"the hook of the integration {name!r} could not be started: {guard.describe(error)}."
    )
