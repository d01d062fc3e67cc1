"""Many rollouts: an agent runs over tasks, each run recorded in a trajectory of its own.

Public: ``rt.collect``, ``rt.acollect``, and what ``__all__`` lists: types that they take and return. The modules are
internal.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.collection.facts import CallTotals as CallTotals
    from rollout_trace.collection.job import Executor as Executor
    from rollout_trace.collection.job import Job as Job
    from rollout_trace.collection.job import Outcome as Outcome
    from rollout_trace.collection.progress import Progress as Progress
    from rollout_trace.collection.rollouts import Rollouts as Rollouts
    from rollout_trace.collection.summary import CollectSummary as CollectSummary
    from rollout_trace.collection.summary import PassRate as PassRate
    from rollout_trace.collection.summary import Percentiles as Percentiles

_HOMES = {
    "rollout_trace.collection.facts": ("CallTotals",),
    "rollout_trace.collection.job": ("Executor", "Job", "Outcome"),
    "rollout_trace.collection.progress": ("Progress",),
    "rollout_trace.collection.rollouts": ("Rollouts",),
    "rollout_trace.collection.summary": ("CollectSummary", "PassRate", "Percentiles"),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
