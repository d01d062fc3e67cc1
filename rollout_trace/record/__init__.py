"""Recording of a run: calls, their assignment to trajectories, framework frames, and the files they are written to.

Public: what ``__all__`` lists: types that ``rt.recover`` and ``rt.stats`` return. The modules are internal: users
import functions from ``rollout_trace``.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.guard import Stats as Stats
    from rollout_trace.record.recovered import RecoveryReport as RecoveryReport
    from rollout_trace.record.recovery import Recovered as Recovered

_HOMES = {
    "rollout_trace.guard": ("Stats",),
    "rollout_trace.record.recovered": ("RecoveryReport",),
    "rollout_trace.record.recovery": ("Recovered",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
