"""Runs of agents and of tools, as a framework's hooks report them, and the guard around such hooks.

A frame is made when the framework says that something begins, and ended when it says that it is over.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from rollout_trace import guard
from rollout_trace.data.model import ToolRun, error_info, nanoseconds
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record import lifecycle
from rollout_trace.record.scope import Frame
from rollout_trace.record.state import log_of

F = TypeVar("F", bound=Callable[..., Any])


class AgentFrame(Frame):
    """A run of an agent.

    Inside another agent's run it has a trajectory of its own, a child of that one's. Directly inside a
    ``with rt.trajectory()`` block that trajectory is the agent's; with neither, the run opens a trajectory.
    """

    def __init__(
        self, name: str | None, *, parent: Frame | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(parent, name)
        self._outer = self.trajectory
        self._is_owned = self.parent is not None or self.trajectory is None
        if self._is_owned:
            self.trajectory = Trajectory(name=str(name) if name else "agent")
            lifecycle.begin(self.trajectory, self._outer)
            # What the framework says of the run is not worth the run.
            guard.run_all("metadata", partial(_describe, self.trajectory, metadata))
        self._enlist()

    def abandon(self) -> None:
        """The run ended without a word: its own trajectory is ``aborted``."""
        if self.is_open and self._is_owned and self.trajectory is not None and self.trajectory.status == "running":
            self.trajectory.status = "aborted"
        self.end()

    def _ended(self, error: BaseException | None) -> None:
        log = log_of(self.trajectory)
        # A forked process leaves the block: the trajectory is its parent's, who closes and writes it.
        if self._is_owned and self.trajectory is not None and (log is None or log.is_ours):
            lifecycle.finish(self.trajectory, self._outer, error)
        # A context may know the frame for long.
        self._outer = None


def _describe(trajectory: Trajectory, metadata: Mapping[str, Any] | None) -> None:
    trajectory.metadata = dict(metadata) if metadata else None


class ToolFrame(Frame):
    """A run of a tool. What runs inside it is another agent's, if the framework says an agent begins."""

    def __init__(
        self,
        name: str | None,
        *,
        tool_call_id: str | None = None,
        arguments: Any = None,
        parent: Frame | None = None,
    ) -> None:
        super().__init__(parent, None)
        self.run = ToolRun(
            name=name, tool_call_id=tool_call_id, arguments=arguments, started_at=datetime.now(timezone.utc)
        )
        """Set its ``result`` before the end: a text, or what JSON can hold."""
        self._began = time.perf_counter()
        if self.trajectory is not None:
            self.trajectory.tool_runs.append(self.run)

    def _ended(self, error: BaseException | None) -> None:
        self.run.duration = nanoseconds(time.perf_counter() - self._began)
        if error is not None:
            self.run.error = error_info(error)


def guarded(function: F) -> F:
    """For an integration's hooks: a failure of theirs is the recorder's, never the agent's. It is logged and counted,
    and under pytest raised."""

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as failure:
            guard.failed(function.__qualname__, None, failure)
            return None

    return safe  # type: ignore[return-value]
