"""Alias, kept for old imports of ``run_advantages`` and of ``groups``, which is public in ``rollout_trace``."""

from __future__ import annotations

from rollout_trace.train.groups import Group, groups, run_advantages

__all__ = ["Group", "groups", "run_advantages"]
