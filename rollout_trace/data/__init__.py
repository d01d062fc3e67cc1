"""Data types: steps, trajectories, token segments, shared lists, costs. No recording, no I/O.

Public: what ``__all__`` lists: types of fields of a step. The modules are internal: users import ``Step`` and
``Trajectory`` from ``rollout_trace``.
"""

from __future__ import annotations

from rollout_trace._lazy import lazy_names

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than this.
if TYPE_CHECKING:
    from rollout_trace.data.exact_turn import ExactTurn as ExactTurn
    from rollout_trace.data.extras import ExtraIssue as ExtraIssue
    from rollout_trace.data.extras import PolicySpan as PolicySpan
    from rollout_trace.data.extras import SamplingMask as SamplingMask
    from rollout_trace.data.extras import TopTokens as TopTokens
    from rollout_trace.data.model import Attempt as Attempt
    from rollout_trace.data.model import ErrorInfo as ErrorInfo
    from rollout_trace.data.model import TokenIssue as TokenIssue
    from rollout_trace.data.trainer_tokens import TrainerTokens as TrainerTokens
    from rollout_trace.data.trajectory import ForkedFrom as ForkedFrom

_HOMES = {
    "rollout_trace.data.exact_turn": ("ExactTurn",),
    "rollout_trace.data.extras": ("ExtraIssue", "PolicySpan", "SamplingMask", "TopTokens"),
    "rollout_trace.data.model": ("Attempt", "ErrorInfo", "TokenIssue"),
    "rollout_trace.data.trainer_tokens": ("TrainerTokens",),
    "rollout_trace.data.trajectory": ("ForkedFrom",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = sorted(name for names in _HOMES.values() for name in names)
