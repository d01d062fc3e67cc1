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
    """The result of ``rt.instrument()``: a context manager with the method ``undo``."""

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
        """Restores classes, import hooks and threads, unless another ``rt.instrument()`` is still in effect.

        Calls in progress are recorded to their end. Calling ``undo`` again does nothing.
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
    """Records the model calls of every client in this process, until ``undo``.

    Clients of the openai and anthropic SDKs are recorded whether they are made before or after, and whether the SDK is
    imported before or after. A wrapped client keeps its own settings. As with wrapped clients, a call belongs to the
    trajectory of its context. Calls of ``rt.instrument()`` may be nested: the latest ``engine`` applies, and everything
    is restored when the last one is undone.

    Args:
        engine: the server that is asked for ids and logprobs, as for ``rt.wrap_openai``: a name, an ``rt.Engine``, or
            ``auto`` (for the SDKs alone). It applies to every server except the APIs of known providers (OpenAI,
            Fireworks, Together), which are asked for what they offer. A mapping from addresses (a host, a host with its
            port, or a URL) to engines applies to these servers only. None: the ``engine`` of an outer
            ``rt.instrument()`` or of ``rollout-trace run``; without one, requests are sent exactly as the program makes
            them.
        threads: threads, pool tasks and timers belong to the trajectory and recording that were current where they were
            started or submitted. No other context is passed on.
        http: also record requests of httpx, httpx2, aiohttp and requests whose path and body are those of a generation
            call and that no recorded SDK makes, such as those of google-genai.
        hooks: start the hooks of all installed integrations, each when its framework is imported. Every agent of these
            frameworks is then recorded with its name, tools and sub-agents. ``rollout-trace run`` does this.

    Returns:
        A handle: ``handle.undo()``, or leaving ``with rt.instrument(): ...``, restores everything.

    Raises:
        ValueError: an engine is unknown.
        TypeError: ``engine`` has another type, or an option is neither True nor False.
    """
    for name, value in (("threads", threads), ("http", http), ("hooks", hooks)):
        if not isinstance(value, bool):
            raise TypeError(f"rt.instrument({name}={value!r:.80}): expected True or False.")
    parts = [_SDKS, _FRAMEWORKS] + [_HTTP] * http + [_THREADS] * threads + [_CHILDREN]
    if hooks:
        parts.append(_hooks_part())
    return Instrumentation(Options(engine), parts)
