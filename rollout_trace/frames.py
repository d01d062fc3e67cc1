"""Alias, kept for old imports: these names are public in ``rollout_trace.integration``."""

from __future__ import annotations

from rollout_trace.record.frames import AgentFrame, ModelFrame, ToolFrame, guarded
from rollout_trace.record.scope import Frame, active, current_scope, enter, entered, here

__all__ = [
    "AgentFrame",
    "Frame",
    "ModelFrame",
    "ToolFrame",
    "active",
    "current_scope",
    "enter",
    "entered",
    "guarded",
    "here",
]
