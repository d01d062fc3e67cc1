"""Attributes of modules that are replaced when these are imported, for as long as somebody needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType

from rollout_trace import guard
from rollout_trace.process.imports import Hook, ImportWatch
from rollout_trace.process.patches import Patches

watch = ImportWatch()
"""The one of this process: of two, one would not see the modules that the other reports."""


class Part:
    """What is replaced for one purpose, as modules are imported; put back when the last handle that has it is undone.

    Its users hold a lock of their own.

    Args:
        modules: names of modules to wait for, and what replaces their methods.
        begin: replaces what is there from the start.
        end: runs when all has been put back.
    """

    def __init__(
        self,
        modules: Mapping[str, Callable[[ModuleType, Patches], None]],
        begin: Callable[[Patches], None] | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._modules = modules
        self._begin = begin
        self._end = end
        self._users = 0
        self._hooks: dict[str, Hook] = {}
        self._patches = Patches()

    def take(self) -> None:
        """Replaces what is to be replaced, unless another handle has had it done."""
        self._users += 1
        if self._users > 1:
            return
        self._patches = patches = Patches()
        if self._begin is not None:
            guard.run_all("instrument", partial(self._begin, patches))
        self._hooks = {name: partial(_run, patch, patches) for name, patch in self._modules.items()}
        for name, hook in self._hooks.items():
            watch.add(name, hook)

    def leave(self) -> None:
        """Puts all back, if no other handle has this part."""
        self._users -= 1
        if self._users:
            return
        for name, hook in self._hooks.items():
            watch.remove(name, hook)
        parts = [self._patches.undo] if self._end is None else [self._patches.undo, self._end]
        guard.run_all("instrument", *parts)


def _run(patch: Callable[[ModuleType, Patches], None], patches: Patches, module: ModuleType) -> None:
    patch(module, patches)
