"""The old path of ``run_advantages``, which is in ``rollout_trace``."""

from __future__ import annotations

from rollout_trace.train.groups import Group, groups, run_advantages

__all__ = ["Group", "groups", "run_advantages"]
