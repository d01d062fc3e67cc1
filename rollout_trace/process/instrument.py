"""``rt.instrument``: recording under every client of this process, until it is undone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.process import children, options
from rollout_trace.process import threads as threads_module
from rollout_trace.process.environment import mark_environment
from rollout_trace.process.frameworks import FRAMEWORKS
from rollout_trace.process.http import LIBRARIES
from rollout_trace.process.imports import Hook, ImportWatch
from rollout_trace.process.options import Options
from rollout_trace.process.patches import Patches
from rollout_trace.process.sdks import RecordedClients
from rollout_trace.record import lifecycle, silence

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.engines.engine import Engine
    from rollout_trace.engines.profiles import EngineName

_watch = ImportWatch()
_lock = threading.RLock()


def _after_fork() -> None:
    """Renews the lock in a forked process: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Part:
    """One part of what ``rt.instrument`` replaces; put back when the last handle that has it is undone.

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
            _watch.add(name, hook)

    def leave(self) -> None:
        """Puts all back, if no other handle has this part."""
        self._users -= 1
        if self._users:
            return
        for name, hook in self._hooks.items():
            _watch.remove(name, hook)
        parts = [self._patches.undo] if self._end is None else [self._patches.undo, self._end]
        guard.run_all("instrument", *parts)


def _run(patch: Callable[[ModuleType, Patches], None], patches: Patches, module: ModuleType) -> None:
    patch(module, patches)


_openai, _anthropic = RecordedClients(options.OPENAI), RecordedClients(options.ANTHROPIC)


def _give_clients_back() -> None:
    _openai.give_back()
    _anthropic.give_back()


_SDKS = _Part(
    {"openai._base_client": _openai.patch, "anthropic._base_client": _anthropic.patch}, end=_give_clients_back
)
_FRAMEWORKS = _Part(FRAMEWORKS)
_HTTP = _Part(LIBRARIES)
_THREADS = _Part(threads_module.MODULES, begin=threads_module.begin)
_CHILDREN = _Part(children.MODULES, begin=mark_environment)


class Instrumentation:
    """What ``rt.instrument()`` gives: a context manager, and ``undo``."""

    def __init__(self, chosen: Options, parts: list[_Part]) -> None:
        self._options = chosen
        self._parts = parts
        self._is_undone = False
        with _lock:
            options.push(chosen)
            silence.is_instrumented = options.is_active
            if _watch.look not in lifecycle.before_opening:
                lifecycle.before_opening.append(_watch.look)
            for part in parts:
                part.take()

    @property
    def is_active(self) -> bool:
        """True until it is undone."""
        return not self._is_undone

    def undo(self) -> None:
        """Puts classes, import hooks and threads back as they were, unless another ``rt.instrument()`` is not undone.

        Calls that run are recorded to their end. A second call does nothing.
        """
        with _lock:
            if self._is_undone:
                return
            self._is_undone = True
            # First: a call that begins meanwhile is not recorded.
            options.remove(self._options)
            for part in reversed(self._parts):
                part.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def instrument(
    *,
    engine: EngineName | Engine | Mapping[str, EngineName | Engine | None] | None = None,
    threads: bool = True,
    http: bool = True,
) -> Instrumentation:
    """Records the model calls of every client in this process, until it is undone.

    Clients of the openai and anthropic SDKs are recorded whether they are made before or after, and whether the SDK is
    imported before or after. A client that was wrapped keeps its own settings. Calls belong to the trajectory of their
    context, as those of wrapped clients do. May be called again inside: the latest ``engine`` counts, and all is put
    back when the last one is undone.

    Args:
        engine: the server that is asked for ids and logprobs, as for ``rt.wrap_openai``: a name, an ``rt.Engine``, or
            ``auto`` (for the SDKs alone). It counts for every server, save the APIs of known providers (OpenAI's own,
            Fireworks', Together's), which are asked for what those have. A mapping from addresses (a host, a host with
            its port, or a URL) to engines asks these servers alone. Without one, that of an outer
            ``rt.instrument()`` or of ``rollout-trace run`` counts; None and no such: exactly what the program sends is
            sent.
        threads: a thread, the task of a pool, and a timer belong to the trajectory and the recording of where they were
            started or submitted. Nothing else of the context is carried.
        http: requests of httpx, httpx2, aiohttp and requests are recorded too, where no SDK that is recorded makes
            them, and path and body are those of a generation call: those of google-genai, for one.

    Returns:
        A handle: ``handle.undo()``, or ``with rt.instrument(): ...``, puts everything back.

    Raises:
        ValueError: an engine is unknown.
        TypeError: ``engine`` is of another type, or an option is neither True nor False.
    """
    for name, value in (("threads", threads), ("http", http)):
        if not isinstance(value, bool):
            raise TypeError(f"rt.instrument({name}={value!r:.80}): expected True or False.")
    parts = [_SDKS, _FRAMEWORKS] + [_HTTP] * http + [_THREADS] * threads + [_CHILDREN]
    return Instrumentation(Options(engine), parts)
