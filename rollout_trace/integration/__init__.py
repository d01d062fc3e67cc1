"""The contract for integrations of frameworks: all that they import of this package. See docs/integrations.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.clients.anthropic import wrap_anthropic
    from rollout_trace.clients.common import client_kind, unwrap
    from rollout_trace.clients.openai import wrap_openai
    from rollout_trace.data.model import Completion, ErrorInfo, Step, TokenIssue, ToolCall, ToolRun, Usage
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.integration.installed import About, framework_missing
    from rollout_trace.record.call import Call
    from rollout_trace.record.context import propagate
    from rollout_trace.record.frames import AgentFrame, ToolFrame, guarded
    from rollout_trace.record.model_frame import ModelFrame
    from rollout_trace.record.scope import Frame, active, current_scope, enter, entered

# Imported when they are first used: the entry point of an integration is asked for its `About` alone.
_HOMES = {
    "rollout_trace.clients.anthropic": ("wrap_anthropic",),
    "rollout_trace.clients.common": ("client_kind", "unwrap"),
    "rollout_trace.clients.openai": ("wrap_openai",),
    "rollout_trace.data.model": ("Completion", "ErrorInfo", "Step", "TokenIssue", "ToolCall", "ToolRun", "Usage"),
    "rollout_trace.data.trajectory": ("Trajectory",),
    "rollout_trace.integration.installed": ("About", "framework_missing"),
    "rollout_trace.record.call": ("Call",),
    "rollout_trace.record.context": ("propagate",),
    "rollout_trace.record.frames": ("AgentFrame", "ToolFrame", "guarded"),
    "rollout_trace.record.model_frame": ("ModelFrame",),
    "rollout_trace.record.scope": ("Frame", "active", "current_scope", "enter", "entered"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "About",
    "AgentFrame",
    "Call",
    "Completion",
    "ErrorInfo",
    "Frame",
    "ModelFrame",
    "Step",
    "TokenIssue",
    "ToolCall",
    "ToolFrame",
    "ToolRun",
    "Trajectory",
    "Usage",
    "active",
    "client_kind",
    "current_scope",
    "enter",
    "entered",
    "framework_missing",
    "guarded",
    "propagate",
    "unwrap",
    "wrap_anthropic",
    "wrap_openai",
]
