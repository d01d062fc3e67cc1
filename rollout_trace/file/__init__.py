"""Trajectories as JSON lines: ``writer.JSONLWriter`` appends them, ``reader.read`` reads them. See docs/file-format.md.

Public: what ``__all__`` lists: types of reports. The modules are internal: users import functions from
``rollout_trace``.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.file.merge import MergeReport as MergeReport
    from rollout_trace.file.score import ScoreReport as ScoreReport

_HOMES = {
    "rollout_trace.file.merge": ("MergeReport",),
    "rollout_trace.file.score": ("ScoreReport",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
