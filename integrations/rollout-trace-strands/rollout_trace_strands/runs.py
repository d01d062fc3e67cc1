"""Open runs, by their owner and by the invocation state that Strands passes to every hook of one invocation.

The owner of a run is the agent, graph or swarm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_trace.integration import AgentFrame, ToolRun
from rollout_trace_strands import chat
from rollout_trace_strands.stages import ModelCall


class RunFrame(AgentFrame):
    """Frame of a run. Owners without a hook that run inside it are recorded by the same provider."""

    def __init__(self, name: str | None, attach: Callable[[Any], Any], session: str | None) -> None:
        """``attach``: called with an owner that begins a run inside this one."""
        super().__init__(name, conversation=session)
        self.attach = attach


class Run:
    """An invocation of an agent, a graph or a swarm."""

    def __init__(self, owner: Any, state: Any, frame: AgentFrame) -> None:
        # Referenced as long as the run lasts, so that no other object gets their ids.
        self.owner = owner
        self.state = state
        self.frame = frame
        self.outer_exception = sys.exc_info()[1]
        """The exception that was being handled when the run began: not a failure of this run."""
        self.calls: list[ModelCall] = []
        """Model calls of the current turn."""
        self.is_denied = False
        """Whether a hook cancelled the model call of the current turn."""
        self.tools: dict[str, ToolRun] = {}
        """Tool runs whose results the model has not read yet, by the id of the tool call."""

    def set_tool_result(self, result: Mapping[str, Any]) -> ToolRun | None:
        """Sets the result of a tool run, as edited by hooks. Returns the run, or None if there is none with its id."""
        run = self.tools.get(result.get("toolUseId", ""))
        if run is not None:
            run.result = chat.result_of(result.get("content") or ())
        return run

    def update_tool_results(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Updates the results that the model has not read yet, from the messages of a call: hooks may edit them."""
        if not self.tools:
            return
        for message in reversed(messages):
            if message.get("role") == "assistant":
                break
            for block in message.get("content") or ():
                if "toolResult" in block and self.set_tool_result(block["toolResult"]) is not None:
                    del self.tools[block["toolResult"]["toolUseId"]]


class Runs:
    """The open runs of one provider.

    Thread safe: runs of one owner begin and end one after the other, or differ by their states.
    """

    def __init__(self, attach: Callable[[Any], Any]) -> None:
        """``attach``: called with an agent, graph or swarm that begins a run inside one of these."""
        self._attach = attach
        self._by_owner: dict[int, list[Run]] = {}

    def begin(self, owner: Any, state: Any, name: str | None, *, exclusive: bool, session: str | None = None) -> None:
        """Begins a run and enters its frame.

        Args:
            owner: the agent, graph or swarm.
            state: Strands' invocation state.
            name: of the owner.
            exclusive: the owner cannot have two runs at once: one that is still open had no end event.
            session: id of the owner's session.
        """
        if exclusive:
            # Strands calls no hook at the end of a run whose conversation manager raises.
            for run in self._by_owner.pop(id(owner), ()):
                run.frame.abandon()
        self._drop_closed()
        frame = RunFrame(name, self._attach, session).enter()
        self._by_owner.setdefault(id(owner), []).append(Run(owner, state, frame))

    def _drop_closed(self) -> None:
        """Drops runs whose frames were ended by an enclosing one, and with them the references to their owners."""
        for key, runs in list(self._by_owner.items()):
            if not any(run.frame.is_open for run in runs):
                self._by_owner.pop(key, None)

    def find(self, owner: Any, state: Any) -> Run | None:
        """The owner's run with this state, else its latest one, because middleware may replace the state."""
        runs = self._by_owner.get(id(owner))
        if not runs:
            return None
        for run in runs:
            if run.state is state:
                return run
        return runs[-1]

    def end(self, owner: Any, state: Any, error: BaseException | None) -> None:
        """Ends a run. ``error``: the exception that is being handled, which may be from before the run."""
        run = self.find(owner, state)
        if run is None:
            return
        runs = self._by_owner[id(owner)]
        runs.remove(run)
        if not runs:
            del self._by_owner[id(owner)]
        run.frame.end(None if error is run.outer_exception else error)
