"""An open run of LangChain's, and the frames of graphs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from rollout_trace.integration import AgentFrame, Frame, ModelFrame, Trajectory


class Run:
    """A run that has begun: of a chain, a graph, a node, a model or a tool."""

    __slots__ = ("ends_with_inner", "failed_calls", "frame", "id", "inner", "is_agent", "is_model_node", "metadata",
                 "model_calls", "name", "own_frame", "parent", "scope", "trajectory")  # fmt: skip

    def __init__(
        self,
        run_id: UUID,
        parent: Run | None,
        metadata: Mapping[str, Any],
        name: str | None,
        scope: weakref.ref[Trajectory] | None,
    ) -> None:
        self.id = run_id
        self.parent = parent
        self.frame: Frame | None = None if parent is None else parent.frame
        """The frame it runs in: its own one, or that of the enclosing run."""
        self.own_frame: Frame | None = None
        """The frame that ends with it; None if it has none of its own."""
        self.is_agent = False
        """Whether it is a graph: one of its nodes has begun."""
        self.is_model_node = False
        """Whether it is the node in which an agent of ``create_agent`` calls its model."""
        self.name = name
        self.metadata = metadata
        """LangChain's metadata of it."""
        self.inner: dict[Run, None] = {}
        self.model_calls: list[ModelFrame] = []
        """Its model calls, and those of inner runs that succeeded."""
        self.failed_calls: dict[str | None, list[ModelFrame]] = {}
        """The model calls of inner runs that failed, by the place of the run: a second attempt discards them."""
        self.ends_with_inner = False
        """Whether it ends with its inner runs: it was opened here, so LangChain reports no end of it."""
        # Weak: a run that never ends must not keep its trajectory alive.
        self.scope = scope
        """The trajectory of the ``with`` block it began in."""
        self.trajectory: weakref.ref[Trajectory] | None = scope if parent is None else parent.trajectory

    @property
    def agent(self) -> str | None:
        """The name passed to ``create_agent``; all runs inside the agent have it too."""
        return self.metadata.get("lc_agent_name")

    @property
    def node(self) -> str | None:
        """The node of the graph that it runs in."""
        return self.metadata.get("langgraph_node")

    @property
    def place(self) -> str | None:
        """LangGraph's namespace of the node; a node that is run again has the same one."""
        return self.metadata.get("langgraph_checkpoint_ns")

    def set_frame(self, frame: Frame) -> None:
        """Sets the run's own frame."""
        self.frame = self.own_frame = frame
        if frame.trajectory is not None:
            self.trajectory = weakref.ref(frame.trajectory)

    @property
    def is_lost(self) -> bool:
        """Whether its trajectory has closed or is gone, though LangChain reported no end of the run."""
        if self.trajectory is None:
            return False
        trajectory = self.trajectory()
        return trajectory is None or not trajectory.is_open


class GraphFrame(AgentFrame):
    """A run of a graph, recorded as an agent."""


class RootFrame(GraphFrame):
    """A run outside every trajectory: it opens one."""

    is_named = False
    """Whether it has the name of an agent."""
    is_implicit = False
    """Whether it was opened for a model or a tool that runs alone."""

    @property
    def takes_calls(self) -> bool:  # type: ignore[override]
        """Whether calls in its context belong to it: not once the only model call in it was cancelled."""
        return not self.is_implicit or not self._inner or any(inner.takes_calls for inner in list(self._inner))

    def rename(self, name: str) -> None:
        """Sets the name of the agent, also on the trajectory."""
        self.is_named, self.agent = True, name
        if self.trajectory is not None:
            self.trajectory.name = name


class InlineGraphFrame(Frame):
    """A run of a graph inside a plain chain (``prepare | graph | parse``): shares the chain's trajectory."""
