"""Strands' middleware, imported from where the release has it: private before 1.62, public since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands.middleware import (
        ExecuteToolContext,
        ExecuteToolStage,
        InvokeModelContext,
        InvokeModelStage,
        ModelStopReason,
        ToolResultEvent,
        TypedEvent,
    )
else:
    try:
        from strands.middleware import (
            ExecuteToolContext,
            ExecuteToolStage,
            InvokeModelContext,
            InvokeModelStage,
            ModelStopReason,
            ToolResultEvent,
            TypedEvent,
        )
    except ImportError:
        from strands._middleware.stages import (
            ExecuteToolContext,
            ExecuteToolStage,
            InvokeModelContext,
            InvokeModelStage,
        )
        from strands.types._events import ModelStopReason, ToolResultEvent, TypedEvent


def add_middleware(agent: Any, stage: Any, handler: Any) -> None:
    """Registers a handler that the agent runs around a stage."""
    add = getattr(agent, "add_middleware", None) or agent._middleware_registry.add_middleware
    add(stage, handler)


__all__ = [
    "ExecuteToolContext",
    "ExecuteToolStage",
    "InvokeModelContext",
    "InvokeModelStage",
    "ModelStopReason",
    "ToolResultEvent",
    "TypedEvent",
    "add_middleware",
]
