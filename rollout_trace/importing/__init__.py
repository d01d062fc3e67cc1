"""Trajectories from other tools' files: sessions of coding agents, traces, logs, spans.

Each function takes a path, a folder, a pattern, an address, an open file, or a list of paths, and returns an iterator
over trajectories. Its ``report`` counts what the source did not have, and what was left out.

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
    from rollout_trace.importing.imported import Imported
    from rollout_trace.importing.report import ImportReport
    from rollout_trace.importing.sources import SOURCES, detect

_HOMES = {
    "rollout_trace.importing._agent_lightning": ("agent_lightning",),
    "rollout_trace.importing._art": ("art",),
    "rollout_trace.importing._atif": ("atif",),
    "rollout_trace.importing._claude_code": ("claude_code",),
    "rollout_trace.importing._codex": ("codex",),
    "rollout_trace.importing._gemini_cli": ("gemini_cli",),
    "rollout_trace.importing._inspect": ("inspect",),
    "rollout_trace.importing._kimi_code": ("kimi_code",),
    "rollout_trace.importing._otel": ("otel",),
    "rollout_trace.importing._qwen_code": ("qwen_code",),
    "rollout_trace.importing._verifiers": ("verifiers",),
    "rollout_trace.importing.imported": ("Imported",),
    "rollout_trace.importing.report": ("ImportReport",),
    "rollout_trace.importing.sources": ("SOURCES", "detect"),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)


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
