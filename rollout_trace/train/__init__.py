"""Trajectories for training: sequences, drift, checks, groups, advantages, ids made from text.

Public: what ``__all__`` lists: types of findings, reports and options. The modules are internal: users import functions
from ``rollout_trace``.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.train.checks import Finding as Finding
    from rollout_trace.train.drift import Drift as Drift
    from rollout_trace.train.evaluation import Comparison as Comparison
    from rollout_trace.train.groups import Group as Group
    from rollout_trace.train.mismatch import Mismatch as Mismatch
    from rollout_trace.train.mismatch import MismatchPart as MismatchPart
    from rollout_trace.train.mismatch_causes import Cause as Cause
    from rollout_trace.train.retokenize import RetokenizeReport as RetokenizeReport
    from rollout_trace.train.selection import SequenceOptions as SequenceOptions
    from rollout_trace.train.sequence import Placeholder as Placeholder
    from rollout_trace.train.sequence import SequenceReport as SequenceReport
    from rollout_trace.train.sequence import Sequences as Sequences

_HOMES = {
    "rollout_trace.train.checks": ("Finding",),
    "rollout_trace.train.drift": ("Drift",),
    "rollout_trace.train.evaluation": ("Comparison",),
    "rollout_trace.train.groups": ("Group",),
    "rollout_trace.train.mismatch": ("Mismatch", "MismatchPart"),
    "rollout_trace.train.mismatch_causes": ("Cause",),
    "rollout_trace.train.retokenize": ("RetokenizeReport",),
    "rollout_trace.train.selection": ("SequenceOptions",),
    "rollout_trace.train.sequence": ("Placeholder", "SequenceReport", "Sequences"),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
