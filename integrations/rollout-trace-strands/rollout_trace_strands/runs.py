"""The runs that are going on: by who runs, and by the state that Strands hands to every hook of one invocation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_trace.integration import AgentFrame, ToolRun
from rollout_trace_strands import chat
from rollout_trace_strands.stages import ModelCall


class RunFrame(AgentFrame):
    """A run of an agent, a graph or a swarm: what runs inside without a hook of its own is attached to its provider."""

    def __init__(self, name: str | None, attach: Callable[[Any], Any]) -> None:
        super().__init__(name)
        self.attach = attach


class Run:
    """An invocation of an agent, a graph or a swarm."""

    def __init__(self, owner: Any, state: Any, frame: AgentFrame) -> None:
        # Held: their ids are the run's, as long as it lasts.
        self.owner = owner
        self.state = state
        self.frame = frame
        self.handled = sys.exc_info()[1]
        """The exception that whoever started the run was handling: no failure of the run's."""
        self.calls: list[ModelCall] = []
        """The model calls of this turn."""
        self.is_denied = False
        """Whether a hook has refused this turn's model call."""
        self.tools: dict[str, ToolRun] = {}
        """The tool runs whose results the model has not read yet, by the id of the model's call."""

    def tool_gave(self, result: Mapping[str, Any]) -> ToolRun | None:
        """The result of a tool, as hooks left it; gives the run that it belongs to."""
        run = self.tools.get(result.get("toolUseId", ""))
        if run is not None:
            run.result = chat.result_of(result.get("content") or ())
        return run

    def model_reads(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """The model is called: the results since its last answer are what stands in its messages now."""
        if not self.tools:
            return
        for message in reversed(messages):
            if message.get("role") == "assistant":
                break
            for block in message.get("content") or ():
                if "toolResult" in block and self.tool_gave(block["toolResult"]) is not None:
                    del self.tools[block["toolResult"]["toolUseId"]]


class Runs:
    """Thread safe: one owner's runs begin and end one after the other, or are told apart by their states."""

    def __init__(self, attach: Callable[[Any], Any]) -> None:
        """``attach`` records an agent, graph or swarm that runs inside one of these."""
        self._attach = attach
        self._by_owner: dict[int, list[Run]] = {}

    def begin(self, owner: Any, state: Any, name: str | None, *, alone: bool) -> None:
        """A run begins, in a frame of this context. ``alone``: no other of its owner's can be going on."""
        if alone:
            # Strands says nothing of the end where a conversation manager raises.
            for run in self._by_owner.pop(id(owner), ()):
                run.frame.abandon()
        self._forget_closed()
        frame = RunFrame(name, self._attach).enter()
        self._by_owner.setdefault(id(owner), []).append(Run(owner, state, frame))

    def _forget_closed(self) -> None:
        """Lets go of runs whose frames were ended by what is around them, and of their agents."""
        for key, runs in list(self._by_owner.items()):
            if not any(run.frame.is_open for run in runs):
                self._by_owner.pop(key, None)

    def of(self, owner: Any, state: Any) -> Run | None:
        """The run with this state, else the owner's latest: middleware may replace the state."""
        runs = self._by_owner.get(id(owner))
        if not runs:
            return None
        return next((run for run in runs if run.state is state), runs[-1])

    def end(self, owner: Any, state: Any, error: BaseException | None) -> None:
        """A run is over; ``error`` is what was being handled then."""
        run = self.of(owner, state)
        if run is None:
            return
        runs = self._by_owner[id(owner)]
        runs.remove(run)
        if not runs:
            del self._by_owner[id(owner)]
        run.frame.end(None if error is run.handled else error)
