"""Attributes of classes and modules that are replaced for as long as somebody needs it, and put back exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace import guard
from rollout_trace._threads import lock_for
from rollout_trace.process.imports import Hook, watch

if TYPE_CHECKING:
    from typing_extensions import Self

_MISSING: Any = object()
_lock = lock_for(__name__)
"""Of all patches. Not that of ``Handle``, which is held while other modules are imported: a hook would wait for it."""
_handles = lock_for(__name__, "_handles")


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

    def wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replaces a function by one that calls ``function(original, *args, **kwargs)``, until it is undone.

        Its tracebacks have no frame of ours where ``function`` hides its own.
        """

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def replaced(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(original, *args, **kwargs) if self.is_active else original(*args, **kwargs)
                except BaseException as error:
                    guard.hide_frame(error)
                    raise

            return replaced

        self.replace(owner, name, make)

    def on_undo(self, function: Callable[[], object]) -> None:
        """Adds a function for ``undo`` to call, latest first, for changes other than attributes."""
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


def wrapping(*wrapped: tuple[str, str, Callable[..., Any]]) -> Callable[[ModuleType, Patches], None]:
    """Makes what replaces methods of a module: by class, name of the method, and function as for ``Patches.wrap``."""

    def patch(module: ModuleType, patches: Patches) -> None:
        for owner, name, function in wrapped:
            patches.wrap(getattr(module, owner), name, function)

    return patch


class Part:
    """Replacements for one purpose, made as modules are imported, and undone with the last ``Handle`` that has them.

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

    def apply(self) -> None:
        """Makes the replacements, unless another handle already has."""
        self._users += 1
        if self._users > 1:
            return
        self._patches = patches = Patches()
        if self._begin is not None:
            guard.run_all("instrument", partial(self._begin, patches))
        self._hooks = {name: partial(_run, patch, patches) for name, patch in self._modules.items()}
        for name, hook in self._hooks.items():
            watch.add(name, hook)

    def release(self) -> None:
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
        parts: applied here, in this order, and released the other way round.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._is_undone = False
        with _handles:
            self._begin()
            for part in parts:
                part.apply()

    def _begin(self) -> None:
        """Runs before the parts are applied; no other handle begins or ends meanwhile."""

    def _end(self) -> None:
        """Runs before the parts are released; no other handle begins or ends meanwhile."""

    @property
    def is_active(self) -> bool:
        """True until it is undone."""
        return not self._is_undone

    def undo(self) -> None:
        """Puts back what no other handle has. A second call does nothing."""
        with _handles:
            if self._is_undone:
                return
            self._is_undone = True
            self._end()
            for part in reversed(self._parts):
                part.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.undo()
