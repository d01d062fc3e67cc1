"""Replaced attributes of classes and modules, put back exactly."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

_MISSING: Any = object()
# One for all: a forked process cannot find the locks of every object, and another thread may have held one.
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any
    """What was in the owner's own ``__dict__``; ``_MISSING`` where the attribute was inherited."""
    ours: Any


class Patches:
    """Attributes that were replaced, and what they were. Thread safe.

    A replacement must work as the original does once ``is_active`` is False: another tool may have wrapped it
    meanwhile, and then it cannot be taken out.
    """

    def __init__(self) -> None:
        self._done: list[_Patch] = []
        self._undone: list[Callable[[], object]] = []
        self.is_active = True
        """False once undone."""

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute of a class or a module by ``make(original)``; at most once each.

        Args:
            owner: the class, or module.
            name: of the attribute, which may be inherited.
            make: from the attribute, as ``getattr`` on the owner gives it, to what takes its place.
        """
        with _lock:
            if not self.is_active or any(one.owner is owner and one.name == name for one in self._done):
                return
            before = vars(owner).get(name, _MISSING)
            ours = make(getattr(owner, name))
            setattr(owner, name, ours)
            self._done.append(_Patch(owner, name, before, ours))

    def on_undo(self, function: Callable[[], object]) -> None:
        """Has a function called by ``undo``, the latest first: for what is no attribute."""
        with _lock:
            self._undone.append(function)

    def undo(self) -> None:
        """Puts all back, the latest first. What another tool has replaced since stays as it is."""
        with _lock:
            self.is_active = False
            while self._done:
                one = self._done.pop()
                if vars(one.owner).get(one.name, _MISSING) is not one.ours:
                    continue
                if one.before is _MISSING:
                    delattr(one.owner, one.name)
                else:
                    setattr(one.owner, one.name, one.before)
            while self._undone:
                self._undone.pop()()
