"""Functions that run when a module has been imported, whether before or after they were added."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

from rollout_trace import guard
from rollout_trace._threads import lock_for

Hook: TypeAlias = Callable[[ModuleType], object]
_lock = lock_for(__name__)


class ImportWatch:
    """Runs functions once for each module of a name that is imported, when it has been executed. Thread safe.

    A finder in ``sys.meta_path`` sees imports to come. ``look`` finds modules that passed it by: those imported before,
    those half imported when the function was added, and those of finders that were put in front of it later (pytest's,
    coverage's).
    """

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}
        self._done: dict[tuple[str, Hook], weakref.ref[ModuleType]] = {}
        self._finder = _Finder(self)

    def add(self, name: str, hook: Hook) -> None:
        """Runs a function when the module is imported, or now if it is already there. Adds it only once."""
        with _lock:
            hooks = self._hooks.setdefault(name, [])
            if hook not in hooks:
                hooks.append(hook)
        self.look(name)

    def remove(self, name: str, hook: Hook) -> None:
        """Removes a function."""
        with _lock:
            hooks = self._hooks.get(name, [])
            if hook in hooks:
                hooks.remove(hook)
            if not hooks:
                self._hooks.pop(name, None)
            self._done.pop((name, hook), None)
            if not self._hooks and self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)

    def look(self, only: str | None = None) -> None:
        """Runs the functions for modules that have been imported unseen, and puts the finder first again.

        ``only``: the one name to look for; without it all.
        """
        with _lock:
            if self._hooks and (not sys.meta_path or sys.meta_path[0] is not self._finder):
                sys.meta_path[:] = [self._finder, *(one for one in sys.meta_path if one is not self._finder)]
            names = list(self._hooks) if only is None else [only]
        for name in names:
            module = sys.modules.get(name)
            if module is not None and not self._is_half_imported(module):
                self.imported(name, module)

    def is_watched(self, name: str) -> bool:
        """Whether a function is to run for the module."""
        return name in self._hooks

    def imported(self, name: str, module: ModuleType) -> None:
        """Runs the functions for a module that has been executed, once each. Never raises, except under pytest."""
        with _lock:
            done = {one: self._done.get((name, one)) for one in self._hooks.get(name, ())}
            hooks = [one for one, known in done.items() if known is None or known() is not module]
            for hook in hooks:
                self._done[name, hook] = weakref.ref(module)
        for hook in hooks:
            try:
                hook(module)
            except Exception as error:
                guard.failed("instrument", None, error)

    def executed_again(self, name: str) -> None:
        """Runs the functions again for a module that is executed again: after a reload its classes are new."""
        with _lock:
            for hook in self._hooks.get(name, ()):
                self._done.pop((name, hook), None)

    def _is_half_imported(self, module: ModuleType) -> bool:
        """Whether the module is being executed, by this thread or another: then ``look`` runs again at its end."""
        spec = getattr(module, "__spec__", None)
        with _lock:
            if not getattr(spec, "_initializing", False):
                return False
            kind = type(spec)
            if not issubclass(kind, _Watched):
                # The import system notes the end on the spec, and nothing else runs then.
                methods = {"rollout_trace_watch": self, "rollout_trace_kind": kind, "__module__": kind.__module__}
                spec.__class__ = type(kind.__name__, (_Watched, kind), methods)
        # It may have ended in between.
        return bool(getattr(spec, "_initializing", False))


class _Watched:
    """Mixed into the class of the spec of a module that is being executed, until it has been."""

    rollout_trace_watch: ImportWatch
    rollout_trace_kind: type

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            watch, kind = self.rollout_trace_watch, self.rollout_trace_kind
            self.__class__ = kind
            watch.look()


class _Finder:
    """Finds watched modules by the other finders, and has their loaders report when a module has been executed."""

    def __init__(self, watch: ImportWatch) -> None:
        self._watch = watch
        self._local = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # Whatever goes wrong here would be an ImportError of the program's.
        try:
            if not self._watch.is_watched(name) or getattr(self._local, "is_busy", False):
                return None
            self._local.is_busy = True
            try:
                spec = self._found_by_others(name, path, target)
            finally:
                self._local.is_busy = False
            return None if spec is None else self._reporting(name, spec)
        except Exception as error:
            guard.failed("import", None, error)
            return None

    def _found_by_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            try:
                spec = None if find is None else find(name, path, target)
            except Exception:
                # The import system asks it again, and its exception is the program's then.
                return None
            if spec is not None:
                return spec
        return None

    def _reporting(self, name: str, spec: Any) -> Any:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or not hasattr(loader, "__dict__"):
            return spec
        with _lock:
            # One loader may be that of many modules (of an archive), and find some that are not imported then.
            if not isinstance(execute, _Execution):
                # On this loader alone: its type stays the one that `inspect` and tracebacks expect.
                execute = loader.exec_module = _Execution(self._watch, loader, execute)
            execute.names.add(name)
        return spec


class _Execution:
    """Takes the place of a loader's ``exec_module`` until the modules that it was found for have been executed."""

    def __init__(self, watch: ImportWatch, loader: Any, execute: Callable[[ModuleType], object]) -> None:
        self.names: set[str] = set()
        self._watch = watch
        self._loader = loader
        self._execute = execute

    def __call__(self, module: ModuleType) -> None:
        name = getattr(module.__spec__, "name", module.__name__)
        with _lock:
            is_watched = name in self.names
            self.names.discard(name)
            # The loader is as it was before the module runs: it may look at its own loader.
            if not self.names and vars(self._loader).get("exec_module") is self:
                del vars(self._loader)["exec_module"]
        if is_watched:
            self._watch.executed_again(name)
        self._execute(module)
        if is_watched:
            self._watch.imported(name, module)


watch = ImportWatch()
"""The one of this process: of two, one would not see the modules that the other reports."""
