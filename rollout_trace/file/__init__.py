"""Trajectories as JSON lines: ``JSONLWriter`` appends them, ``read`` reads them. See docs/file-format.md.

Internal: users import what is in here from ``rollout_trace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.file.reader import read
    from rollout_trace.file.writer import JSONLWriter

# On first use: what writes a file does not import what reads one.
_HOMES = {"rollout_trace.file.reader": ("read",), "rollout_trace.file.writer": ("JSONLWriter",)}
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["JSONLWriter", "read"]
