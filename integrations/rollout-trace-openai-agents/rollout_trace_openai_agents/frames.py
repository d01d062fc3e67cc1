"""The frames of a run: one for the run itself, one for each of its agents, one for each guardrail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from agents import (
    Agent,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)

from rollout_trace.integration import (
    AgentFrame,
    ErrorInfo,
    Frame,
    ModelFrame,
    ToolFrame,
    Trajectory,
    current_scope,
    entered,
    guarded,
    snapshot,
)

if TYPE_CHECKING:
    from rollout_trace.integration import Call
    from rollout_trace_openai_agents.settings import Settings

FRAMEWORK = "openai-agents"

_STOPPED_BY: dict[type[BaseException], str] = {
    MaxTurnsExceeded: "max_turns",
    InputGuardrailTripwireTriggered: "input_guardrail",
    OutputGuardrailTripwireTriggered: "output_guardrail",
    ToolInputGuardrailTripwireTriggered: "tool_input_guardrail",
    ToolOutputGuardrailTripwireTriggered: "tool_output_guardrail",
}
INTERRUPTED = "interrupted"
"""The ``stop_reason`` of a run that waits for an approval."""
_OURS = {INTERRUPTED, *_STOPPED_BY.values()}


def _enclosing() -> Iterator[Frame]:
    """The frames of this context, from the innermost on."""
    frame = entered()
    while frame is not None:
        yield frame
        frame = frame.parent


def current_run() -> RunFrame | None:
    """The open run that this context is inside of; None outside every recorded run."""
    return next((frame for frame in _enclosing() if isinstance(frame, RunFrame) and frame.is_open), None)


def current_guardrail() -> GuardrailFrame | None:
    """The guardrail that this context is inside of, at any depth of runs; or None."""
    for frame in _enclosing():
        if isinstance(frame, GuardrailFrame):
            return frame
        if isinstance(frame, RunFrame):
            # Not its parent: a run in a trajectory block of the guardrail's own has none.
            return frame.guardrail
    return None


class CallFrame(ModelFrame):
    """A model call. That of a guardrail is named after it, and trained on only where its user wants that."""

    def __init__(self, settings: Settings, *, parent: Frame | None = None) -> None:
        guardrail = current_guardrail()
        metadata = None if guardrail is None else guardrail.metadata
        super().__init__(FRAMEWORK, parent=parent, metadata=metadata)
        self.settings = settings
        # Not by the settings of the model, which may be shared with runs that are recorded otherwise.
        self._is_trainable = guardrail is None or guardrail.is_trained

    def mark(self, steps: list[Any]) -> None:
        """Also sets ``trainable``, when the steps are made."""
        super().mark(steps)
        if not self._is_trainable:
            for step in steps:
                step.trainable = False


class GuardrailFrame(Frame):
    """One run of a guardrail: what is called inside has its name, and agents that it runs are its run's children."""

    def __init__(self, name: str, run: RunFrame) -> None:
        super().__init__(None, name)
        self.metadata = {"guardrail": name}
        """For the steps and trajectories inside."""
        self.is_trained = run.settings.train_guardrails
        """Whether the steps inside are trainable."""
        self._settings = run.settings

    def join(self, call: Call) -> None:
        """Takes a call that the guardrail's function makes itself, without an agent."""
        _take(call, self._settings, self)


def _take(call: Call, settings: Settings, frame: Frame) -> None:
    """Makes a call of a client inside a frame a model call of it, so that its steps are marked."""
    with CallFrame(settings, parent=frame) as taken:
        taken.join(call)


_blamed: WeakSet[ModelBehaviorError] = WeakSet()
"""Errors that are on the step whose answer was at fault. They may end the runs around that step's run too."""


class RunFrame(Frame):
    """One run: the frame that everything in it runs inside of.

    What is called inside belongs to the agent whose turn it is. The hooks of the SDK cannot enter a frame for that, as
    it runs them in tasks of their own; so this frame's ``trajectory`` and ``agent`` are those of the current agent.

    Each agent of a run has one trajectory, also if it gets its turn several times. Those that others hand off to are
    children of these; all end with the run.
    """

    def __init__(self, agent: Agent[Any], settings: Settings, conversation: str | None = None) -> None:
        self.settings = replace(settings, is_asked=False)
        self.guardrail = current_guardrail()
        """The guardrail that runs it; None for others."""
        self._metadata = None if self.guardrail is None else self.guardrail.metadata
        first = AgentFrame(agent.name, metadata=self._metadata, conversation=conversation)
        self._agents: list[tuple[Agent[Any], AgentFrame]] = [(agent, first)]
        """In the order of their first turns."""
        self._current = agent
        self._tools: dict[str | int, ToolFrame] = {}
        """Tools that run, by the id of their call."""
        self._last_call: ModelFrame | None = None
        self.waits_for: list[dict[str, Any]] = []
        """The tool calls whose approval the run waits for at its end."""
        super().__init__(None, None)

    @property
    def trajectory(self) -> Trajectory | None:
        """That of the agent whose turn it is."""
        return self._frame_of(self._current).trajectory

    @trajectory.setter
    def trajectory(self, _: Trajectory | None) -> None:
        """Set by ``Frame``; the agents' frames have it."""

    @property
    def agent(self) -> str | None:
        """Name of the agent whose turn it is."""
        return self._current.name

    @agent.setter
    def agent(self, _: str | None) -> None:
        """Set by ``Frame``; the agents' frames have it."""

    def turn_of(self, agent: Agent[Any]) -> None:
        """From here on it is this agent's turn."""
        if agent is not self._current:
            self._frame_of(agent)
            self._current = agent

    def _frame_of(self, agent: Agent[Any]) -> AgentFrame:
        """The open frame of an agent; a new one inside the current agent's, if this is its first turn."""
        for at, (known, frame) in enumerate(self._agents):
            if known is agent:
                if frame.is_open or not self.is_open:
                    return frame
                self._agents[at] = (agent, self._continued(agent, frame))
                return self._agents[at][1]
        frame = AgentFrame(agent.name, parent=self._frame_of(self._current), metadata=self._metadata)
        self._agents.append((agent, frame))
        return frame

    def _continued(self, agent: Agent[Any], closed: AgentFrame) -> AgentFrame:
        """The frame of an agent that goes on after the block around it has ended: a stream that is read later.

        It opens a trajectory, since the block's may be written already; as a child of that one.
        """
        outer = current_scope.get()
        current_scope.set(None)
        try:
            frame = AgentFrame(agent.name, metadata=self._metadata)
        finally:
            current_scope.set(outer)
        before = self.scope
        if before is not None and frame.trajectory is not None:
            frame.trajectory.episode_id, frame.trajectory.parent_id = before.episode_id, before.id
        return frame

    def join(self, call: Call) -> None:
        """Takes a call that a tool makes itself, if the run is a guardrail's: that is not trained on either."""
        if self.guardrail is not None:
            _take(call, self.settings, self)

    def call_begins(self, settings: Settings) -> CallFrame:
        """Begins a model call of the current agent."""
        self._last_call = frame = CallFrame(settings, parent=self)
        return frame

    def tool_begins(self, agent: Agent[Any], tool: Any, context: Any) -> None:
        """Begins a tool run. ``context``: a ``ToolContext``; for some tools of the SDK one without the call's id."""
        call_id = getattr(context, "tool_call_id", None)
        arguments = getattr(context, "tool_arguments", None)
        self._tools[call_id or id(tool)] = ToolFrame(
            getattr(tool, "name", None),
            tool_call_id=call_id,
            arguments=_decoded(arguments),
            parent=self._frame_of(agent),
        )

    def tool_failed(self, context: Any, error: BaseException) -> None:
        """Notes an exception of a tool, of which the SDK makes a text for the model, or which it raises."""
        frame = self._tools.get(getattr(context, "tool_call_id", ""))
        if frame is not None:
            frame.run.error = ErrorInfo(type=type(error).__name__, message=str(error))

    def tool_ends(self, agent: Agent[Any], tool: Any, context: Any, result: Any) -> None:
        """Ends a tool run, with the result that the model gets."""
        key = getattr(context, "tool_call_id", None) or id(tool)
        if key not in self._tools:
            # An agent that is a tool, and went on after an approval: its start was in the run before.
            self.tool_begins(agent, tool, context)
        frame = self._tools.pop(key)
        frame.run.result = snapshot(result)
        frame.end()

    @guarded
    def _ended(self, error: BaseException | None) -> None:
        if isinstance(error, ModelBehaviorError) and self._last_call is not None and error not in _blamed:
            # The answer arrived whole, and could not be used: no JSON of the output type, an unknown tool.
            self._last_call.failed(error)
            _blamed.add(error)
        current = self._frame_of(self._current)
        self._set_stop_reason(error)
        # The innermost first. Agents that have handed off have done their part, whatever came of it.
        for at, (_, frame) in reversed(list(enumerate(self._agents))):
            frame.end(error if at == 0 or frame is current else None)
        self._agents, self._tools, self._last_call = self._agents[:1], {}, None

    def abandon(self) -> None:
        """Ends a run that is cut off by the end of what is around it."""
        if self.is_open:
            for _, frame in reversed(self._agents):
                frame.abandon()
        super().abandon()

    def _set_stop_reason(self, error: BaseException | None) -> None:
        trajectory = self._agents[0][1].trajectory
        # A reason that the user set stays.
        if trajectory is None or trajectory.stop_reason not in (None, *_OURS):
            return
        reason = next((text for kind, text in _STOPPED_BY.items() if isinstance(error, kind)), None)
        if self.waits_for:
            self._agents[0][1].interrupt(self.waits_for)
        elif reason != trajectory.stop_reason:
            trajectory.stop_reason = reason


def _decoded(arguments: Any) -> Any:
    """A tool's arguments from the model's text, which is kept as it is if it is not JSON."""
    if not isinstance(arguments, str):
        return None if arguments is None else snapshot(arguments)
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return arguments
