"""``rt.instrument``: recording under every client of this process, until it is undone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace._wrong_use import block
from rollout_trace.process import children, options
from rollout_trace.process import threads as threads_module
from rollout_trace.process.imports import watch
from rollout_trace.process.libraries import LIBRARIES, RecordedClients
from rollout_trace.process.litellm import FRAMEWORKS
from rollout_trace.process.options import Options
from rollout_trace.process.patches import Handle, Part, Patches
from rollout_trace.record import lifecycle, state

if TYPE_CHECKING:
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

_openai, _anthropic = RecordedClients(options.OPENAI), RecordedClients(options.ANTHROPIC)
_SDKS = Part(
    {"openai._base_client": _openai.patch, "anthropic._base_client": _anthropic.patch},
    end=lambda: guard.run_all("instrument", _openai.give_back, _anthropic.give_back),
)
_FRAMEWORKS = Part(FRAMEWORKS)
_HTTP = Part(LIBRARIES)
_THREADS = Part(threads_module.MODULES, begin=threads_module.begin)
_CHILDREN = Part(children.MODULES, begin=children.mark_environment)

_GROUP = "rollout_trace.integrations"
"""The entry point group of integrations, as in ``rollout_trace.integration.installed``: that is in a room above."""


_hooks: Part | None = None


def _hooks_part() -> Part:
    """Starts the hook of each installed integration when its framework has been imported."""
    global _hooks
    if _hooks is not None:
        return _hooks
    if not _may_be_installed():
        _hooks = Part({})
        return _hooks
    # Takes 30 ms to import and to look, and is needed here alone.
    from importlib import metadata

    starts: dict[str, list[tuple[str, str]]] = {}
    for entry in metadata.entry_points(group=_GROUP):
        try:
            about: Any = entry.load()
            if about.start is not None:
                starts.setdefault(about.module, []).append((entry.name, about.start))
        except Exception as error:
            _warn(entry.name, error)
    _hooks = Part({module: partial(_start, named) for module, named in starts.items()})
    return _hooks


def _may_be_installed() -> bool:
    """Whether an integration may be installed: by the bytes of what distributions say about themselves."""
    if any(hasattr(one, "find_distributions") and one is not PathFinder for one in sys.meta_path):
        return True
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except NotADirectoryError:
            # An archive may hold some.
            return True
        except OSError:
            continue
        for name in names:
            if name.lower().endswith((".dist-info", "egg-info")):
                with suppress(OSError), open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                    if _GROUP.encode() in file.read():
                        return True
    return False


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


class Instrumentation(Handle):
    """What ``rt.instrument()`` gives: a context manager, and ``undo``."""

    def __init__(self, chosen: Options, parts: list[Part]) -> None:
        self._options = chosen
        super().__init__(parts)

    def _begin(self) -> None:
        options.opened.append(self._options)
        state.is_instrumented = options.is_active
        if watch.look not in lifecycle.before_opening:
            lifecycle.before_opening.append(watch.look)

    def _end(self) -> None:
        # Before classes are put back: a call that begins meanwhile is not recorded.
        options.opened.remove(self._options)

    def undo(self) -> None:
        """Puts classes, import hooks and threads back as they were, unless another ``rt.instrument()`` is not undone.

        Calls that run are recorded to their end. A second call does nothing.
        """
        super().undo()


@block
def instrument(
    *,
    engine: EngineName | Engine | Mapping[str, EngineName | Engine | None] | None = None,
    threads: bool = True,
    http: bool = True,
    hooks: bool = False,
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
        hooks: the hooks of all installed integrations are started, each when its framework is imported: every agent of
            these frameworks is recorded with its name, its tools and its sub-agents. ``rollout-trace run`` does it.

    Returns:
        A handle: ``handle.undo()``, or ``with rt.instrument(): ...``, puts everything back.

    Raises:
        ValueError: an engine is unknown.
        TypeError: ``engine`` is of another type, or an option is neither True nor False.
    """
    for name, value in (("threads", threads), ("http", http), ("hooks", hooks)):
        if not isinstance(value, bool):
            raise TypeError(f"rt.instrument({name}={value!r:.80}): expected True or False.")
    parts = [_SDKS, _FRAMEWORKS] + [_HTTP] * http + [_THREADS] * threads + [_CHILDREN]
    if hooks:
        parts.append(_hooks_part())
    return Instrumentation(Options(engine), parts)
