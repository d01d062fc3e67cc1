"""Frames for agent runs and tool runs that framework hooks report, and the guard for such hooks.

The hook that reports a start creates the frame; the hook that reports the end ends it.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace import guard
from rollout_trace.data import episodes
from rollout_trace.data.model import ToolRun, error_info, nanoseconds
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record import lifecycle, program
from rollout_trace.record.episode import change_episode
from rollout_trace.record.scope import Frame
from rollout_trace.record.state import log_of, state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = "interrupted"
"""``stop_reason`` of a run that waits, for a person or for a result from elsewhere, and may go on in another one."""
_WAITS_FOR = "waits_for"
_CONVERSATION = "conversation_id"


class AgentFrame(Frame):
    """One run of an agent.

    Inside another frame it opens a child trajectory. Directly inside a ``with rt.trajectory()`` block it records into
    the trajectory of that block. Outside of both it opens a root trajectory.
    """

    def __init__(
        self,
        name: str | None,
        *,
        parent: Frame | None = None,
        metadata: Mapping[str, Any] | None = None,
        conversation: object = None,
        auxiliary: bool = False,
    ) -> None:
        """Begins the frame of an agent run.

        Args:
            name: of the agent.
            parent: the enclosing frame; by default the active one of this context.
            metadata: for the ``metadata`` of the trajectory, if the frame opens one.
            conversation: the framework's id of the thread, session or conversation that the run is a part of; None or
                empty without one. Runs that go on with each other share it, also in other processes: it is
                ``metadata["conversation_id"]`` of the trajectory that the run is recorded in.
            auxiliary: whether it is beside the agent's own work, such as a judge. Of a trajectory that the frame opens,
                and of those inside it, no step is ``trainable``; one in which nothing was recorded is left out.
        """
        super().__init__(parent, name)
        self._outer = self.trajectory
        self._is_auxiliary = auxiliary
        self._is_owned = self.parent is not None or self.trajectory is None
        if self._is_owned:
            self.trajectory = Trajectory(name=str(name) if name else "agent")
            lifecycle.begin(self.trajectory, self._outer)
            # Metadata that a trajectory refuses (two keys that are one in JSON, say) must not cost the recording.
            guard.run_all("metadata", partial(_set_metadata, self.trajectory, metadata))
        elif self.trajectory is not None and self.trajectory.stop_reason == INTERRUPTED:
            # The run that was interrupted goes on in the same block.
            self.trajectory.stop_reason = None
            guard.run_all("metadata", partial(_add_metadata, self.trajectory, _WAITS_FOR, None))
        if conversation and self.trajectory is not None:
            guard.run_all("metadata", partial(_add_metadata, self.trajectory, _CONVERSATION, str(conversation)))
        if not auxiliary:
            # An auxiliary one ends with the frames around it, and its trajectory is to be left out if it is empty.
            self._enlist()

    def interrupt(self, waits_for: Sequence[Any]) -> None:
        """Notes that the run ends because it waits: for an approval, an answer, a result that comes from elsewhere.

        Its trajectory gets the ``stop_reason`` ``interrupted``, unless the user has set another one. A later run in the
        same ``with rt.trajectory()`` block takes it back.

        Args:
            waits_for: what it waits for, as the framework has it, for ``metadata["waits_for"]``; JSON can hold it.
        """
        trajectory = self.trajectory
        if trajectory is None or trajectory.stop_reason not in (None, INTERRUPTED):
            return
        trajectory.stop_reason = INTERRUPTED
        found = [*((trajectory.metadata or {}).get(_WAITS_FOR) or ()), *waits_for]
        guard.run_all("metadata", partial(_add_metadata, trajectory, _WAITS_FOR, found))

    def abandon(self) -> None:
        """Ends a run whose end no hook has reported: a trajectory that the frame opened becomes ``aborted``."""
        if self.is_open and self._is_owned and self.trajectory is not None and self.trajectory.status == "running":
            self.trajectory.status = "aborted"
        self.end()

    def _ended(self, error: BaseException | None) -> None:
        log = log_of(self.trajectory)
        # In a forked copy of the process the trajectory is left alone: the original process closes and writes it.
        if self._is_owned and self.trajectory is not None and (log is None or log.is_ours):
            self._close(self.trajectory, error)
        # Context variables may reference the ended frame for long; it must not keep the outer trajectory alive.
        self._outer = None

    def _close(self, trajectory: Trajectory, error: BaseException | None) -> None:
        if self._is_auxiliary:
            if lifecycle.discard(trajectory, self._outer):
                return
            change_episode(trajectory, episodes.leave_out)
        lifecycle.finish(trajectory, self._outer, error)


def _set_metadata(trajectory: Trajectory, metadata: Mapping[str, Any] | None) -> None:
    trajectory.metadata = dict(metadata) if metadata else None


def _add_metadata(trajectory: Trajectory, key: str, value: Any) -> None:
    """Sets one key; None takes it out. A conversation that is named already stays."""
    metadata = dict(trajectory.metadata or {})
    if value is None:
        metadata.pop(key, None)
    elif key != _CONVERSATION:
        metadata[key] = value
    else:
        metadata.setdefault(key, value)
    trajectory.metadata = metadata or None


class ToolFrame(Frame):
    """One execution of a tool. An ``AgentFrame`` that begins inside it is a sub-agent."""

    def __init__(
        self,
        name: str | None,
        *,
        tool_call_id: str | None = None,
        arguments: Any = None,
        parent: Frame | None = None,
    ) -> None:
        """Begins the frame of a tool run.

        Args:
            name: of the tool.
            tool_call_id: the model's id of the tool call; links the run to the step that requested it.
            arguments: as the tool gets them; not copied.
            parent: the enclosing frame; by default the active one of this context.
        """
        super().__init__(parent, None)
        if self.trajectory is None:
            self.trajectory = program.opened()
        self.run = ToolRun(
            name=name, tool_call_id=tool_call_id, arguments=arguments, started_at=datetime.now(timezone.utc)
        )
        """The record of the run. Set its ``result`` before the frame ends: a string, or any value JSON can hold."""
        self._began = time.perf_counter()
        if self.trajectory is not None:
            self.trajectory.tool_runs.append(self.run)

    def _ended(self, error: BaseException | None) -> None:
        self.run.duration = nanoseconds(time.perf_counter() - self._began)
        if error is not None:
            self.run.error = error_info(error)
        state = None if self.trajectory is None else state_of(self.trajectory)
        if state is not None and state.journal is not None:
            state.journal.tool_run(self.run)


def guarded(function: F) -> F:
    """Decorator for an integration's hooks: logs and counts their exceptions instead of raising them into the agent.

    The hook then returns None. Under pytest the exception is raised.
    """

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as failure:
            guard.failed(function.__qualname__, None, failure)
            return None

    return safe  # type: ignore[return-value]


@contextmanager
def tool_run(name: str, *, tool_call_id: str | None = None, arguments: Any = None) -> Iterator[ToolRun]:
    """Records and times one execution of a tool in the current trajectory. Set ``result`` on the yielded ``ToolRun``.

    An exception of the tool is recorded and re-raised. Outside a trajectory the run is yielded but recorded nowhere.
    A run that begins or ends after its trajectory has closed causes a warning: a file that was written before lacks the
    run, or its result.

    Args:
        name: of the tool.
        tool_call_id: the model's id of the tool call; links the run to the step that requested it.
        arguments: as the tool gets them; copied.
    """
    with ToolFrame(name, tool_call_id=tool_call_id, arguments=_snapshot(arguments)) as frame:
        trajectory = frame.trajectory
        _warn_if_closed(trajectory, name, "began")
        try:
            yield frame.run
        finally:
            _warn_if_closed(trajectory, name, "ended")


def _warn_if_closed(trajectory: Trajectory | None, name: str, what: str) -> None:
    if trajectory is None or trajectory.is_open:
        return
    state = state_of(trajectory)
    named = f"{trajectory.name!r} ({trajectory.id})"
    if state is not None and state.log is not None:
        guard.warn_once(
            "tool-run-in-a-fork",
            f"tool run {name!r} {what} in a process that was forked inside its trajectory {named}, which is the other "
            "process's: it is recorded nowhere. Use rt.tool_run there, around what waits for this process.",
        )
    else:
        opened_at = None if state is None else state.opened_at
        guard.warn_once(
            "tool-run-after-close",
            f"tool run {name!r} {what} when its trajectory {named}, opened at {opened_at}, had closed: a file that the "
            "trajectory was written to does not have it whole. End tool runs inside the `with rt.trajectory()` block.",
        )


def _snapshot(arguments: Any) -> Any:
    """A copy of the arguments, since a tool may change them; the arguments themselves if they cannot be copied."""
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return arguments
