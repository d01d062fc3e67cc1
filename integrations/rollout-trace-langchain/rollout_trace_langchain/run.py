"""A run of LangChain's that goes on, and the kinds of frames that a graph's run can have."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from rollout_trace.integration import AgentFrame, Frame, ModelFrame, Trajectory, current_scope


class Run:
    """A run that has begun."""

    __slots__ = ("agent", "asked", "ends_with_inner", "failed", "frame", "id", "inner", "is_agent", "is_model_node",
                 "name", "node", "own", "parent", "place", "scope", "trajectory")  # fmt: skip

    def __init__(self, run_id: UUID, parent: Run | None, metadata: Mapping[str, Any], name: str | None) -> None:
        self.id = run_id
        self.parent = parent
        self.frame: Frame | None = None if parent is None else parent.frame
        """Where it happens: its own frame, or that of the run around it."""
        self.own: Frame | None = None
        """The frame that ends with it."""
        self.is_agent = False
        self.is_model_node = False
        """The node of an agent of ``create_agent`` in which its model is called."""
        self.name = name
        self.agent: str | None = metadata.get("lc_agent_name")
        """The name given to ``create_agent``; all that runs inside has it too."""
        self.node: str | None = metadata.get("langgraph_node")
        self.place: str | None = metadata.get("langgraph_checkpoint_ns")
        """LangGraph's name of the place in the graph: of a node that is run again it is the same."""
        self.inner: dict[Run, None] = {}
        self.asked: list[ModelFrame] = []
        """The model calls of it, and of what went well inside."""
        self.failed: dict[str | None, list[ModelFrame]] = {}
        """The model calls of inner runs that failed, by place."""
        self.ends_with_inner = False
        """Nothing but the inner runs says that it is over."""
        scope = current_scope.get()
        self.scope: weakref.ref[Trajectory] | None = None if scope is None else weakref.ref(scope)
        self.trajectory: weakref.ref[Trajectory] | None = self.scope if parent is None else parent.trajectory

    def put(self, frame: Frame) -> None:
        """Makes a frame that of the run."""
        self.frame = self.own = frame
        if frame.trajectory is not None:
            self.trajectory = weakref.ref(frame.trajectory)

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be recorded for it any more, though nobody said that it ended."""
        if self.trajectory is None:
            return False
        trajectory = self.trajectory()
        return trajectory is None or not trajectory.is_open


class Agent(AgentFrame):
    """A run of a graph."""


class Root(Agent):
    """A run with nothing around it, in a trajectory of its own."""

    is_named = False
    is_lifted = False
    """Opened for a model or a tool alone."""

    @property
    def takes_calls(self) -> bool:
        """Not after the only thing in it was cancelled."""
        return not self.is_lifted or not self._inner or any(inner.takes_calls for inner in list(self._inner))

    def rename(self, name: str) -> None:
        """Tells which agent it is."""
        self.is_named, self.agent = True, name
        if self.trajectory is not None:
            self.trajectory.name = name


class Part(Frame):
    """An agent that is the main part of a chain: it shares the chain's trajectory."""
