"""Trajectories from other tools' files: sessions of coding agents, traces, logs, spans.

Each importer takes a path, a folder, a pattern, an address, an open file, or a list of paths, and returns an iterator
over trajectories (``Imported``). All of them take:

- ``on_error``: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
  ``skipped`` of the iterator. The last line of a session without its end is left out, and counted, in both.
- ``report``: counts what the source did not have, and what was left out; without one, ``.report`` of the iterator does.

and raise at once FileNotFoundError where there is nothing to read and ValueError for another ``on_error``; while
iterating, unless skipped, FormatError for what is not of the source, and ImportError for a file that is compressed
with zstd where the package zstandard is not installed.

Public: what ``__all__`` lists. The modules are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.importing._agent_lightning import agent_lightning
    from rollout_trace.importing._art import art
    from rollout_trace.importing._atif import atif
    from rollout_trace.importing._claude_code import claude_code
    from rollout_trace.importing._codex import codex
    from rollout_trace.importing._gemini_cli import gemini_cli
    from rollout_trace.importing._inspect import inspect
    from rollout_trace.importing._kimi_code import kimi_code
    from rollout_trace.importing._otel import otel
    from rollout_trace.importing._qwen_code import qwen_code
    from rollout_trace.importing._verifiers import verifiers
    from rollout_trace.importing.imported import Imported, ImportReport
    from rollout_trace.importing.sources import SOURCES, detect

__all__ = [
    "SOURCES",
    "ImportReport",
    "Imported",
    "agent_lightning",
    "art",
    "atif",
    "claude_code",
    "codex",
    "detect",
    "gemini_cli",
    "inspect",
    "kimi_code",
    "otel",
    "qwen_code",
    "verifiers",
]
_SHARED = {
    "rollout_trace.importing.imported": ("Imported", "ImportReport"),
    "rollout_trace.importing.sources": ("SOURCES", "detect"),
}
_IMPORTERS = [name for name in __all__ if name.islower() and name != "detect"]
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(
        __name__, _SHARED | {f"rollout_trace.importing._{name}": (name,) for name in _IMPORTERS}
    )
