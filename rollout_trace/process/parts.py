"""Attributes of modules that are replaced when these are imported, for as long as somebody needs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.process.imports import Hook, ImportWatch
from rollout_trace.process.patches import Patches

if TYPE_CHECKING:
    from typing_extensions import Self

_lock = threading.RLock()


def _after_fork() -> None:
    """Renews the lock in a forked process: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

watch = ImportWatch()
"""The one of this process: of two, one would not see the modules that the other reports."""


class Part:
    """What is replaced for one purpose, as modules are imported; put back when the last ``Handle`` with it is undone.

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


class Handle:
    """Parts that are in force until they are undone: a context manager, and ``undo``.

    Args:
        parts: taken here, in this order, and left the other way round.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._is_undone = False
        with _lock:
            self._begin()
            for part in parts:
                part.take()

    def _begin(self) -> None:
        """Runs before the parts are taken; no other handle begins or ends meanwhile."""

    def _end(self) -> None:
        """Runs before the parts are left; no other handle begins or ends meanwhile."""

    @property
    def is_active(self) -> bool:
        """True until it is undone."""
        return not self._is_undone

    def undo(self) -> None:
        """Puts back what no other handle has. A second call does nothing."""
        with _lock:
            if self._is_undone:
                return
            self._is_undone = True
            self._end()
            for part in reversed(self._parts):
                part.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()
