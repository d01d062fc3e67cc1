"""Runs of agents: their frames, and the generators that ADK runs them in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from google.adk.events.event import Event

from rollout_trace.integration import AgentFrame, Frame, ModelFrame, ToolRun, active, enter, entered, guarded, snapshot
from rollout_trace_google_adk.settings import Settings
from rollout_trace_google_adk.tools import Tool

Y = TypeVar("Y")

_MADE_BY_ADK = "adk-"
"""How ids of tool calls begin that ADK has made."""


class Run(AgentFrame):
    """Frame of one run of an agent, or of a workflow.

    Args:
        name: of the agent. Names are unique in a tree of agents.
        settings: what it is recorded with; runs inside it are recorded with the same ones.
        around: the run that is active where this one begins; None without one. Its agent has called this one, or ADK
            runs this one there after another agent, which has transferred to it: then it is a child of that one.
    """

    def __init__(self, name: str, settings: Settings, around: Run | None = None, session: str | None = None) -> None:
        super().__init__(name, parent=None if around is None else around._origin_of(name), conversation=session)
        self.name = name
        self.settings = settings
        self._around = around
        self.latest_call: ModelFrame | None = None
        """The latest model call of the agent."""
        self._unread: dict[str, ToolRun] = {}
        """Tool runs whose results the model has not read yet, by the id of the tool call."""
        self._waits_for: dict[str, dict[str, Any]] = {}
        """Calls of long-running tools without a result, by their ids: confirmations are such."""
        self._transfer_to: str | None = None
        """The agent that the latest event transfers to."""
        self._transferred: list[Run] = []
        """Runs inside this one that are over, and kept open for the agents that they have transferred to."""

    def add_tool(self, run: ToolRun) -> None:
        """Adds a tool run, whose result is updated from the events of the agent."""
        if run.tool_call_id is None:
            return
        self._unread[run.tool_call_id] = run
        if run.tool_call_id.startswith(_MADE_BY_ADK) and self.latest_call is not None:
            # The model gave it no id, as Gemini: the answer cannot be found by it.
            run.step_id = self.latest_call.step_id

    def on_event(self, event: Any) -> None:
        """Takes from an event of the agent what callbacks have made of tools' results, and where it transfers."""
        if not isinstance(event, Event):
            return
        self._transfer_to = event.actions.transfer_to_agent
        if not event.partial:
            self._note_waiting(event)
        if self._unread and not event.partial:
            for answer in event.get_function_responses():
                run = self._unread.pop(answer.id or "", None)
                if run is None:
                    continue
                # Not compared as it is: arrays of numpy have no one truth.
                response = snapshot(answer.response)
                if response not in (run.result, {"result": run.result}):
                    run.result = response

    def _note_waiting(self, event: Event) -> None:
        for answer in event.get_function_responses():
            self._waits_for.pop(answer.id or "", None)
        for call in event.get_function_calls():
            if call.id is not None and call.id in (event.long_running_tool_ids or ()):
                self._waits_for[call.id] = {
                    "tool_call_id": call.id,
                    "name": call.name,
                    "arguments": snapshot(call.args),
                    "for": "result",
                }

    def finish(self, error: BaseException | None) -> None:
        """Ends the run, unless ADK is about to run the agent that it has transferred to, which is its child."""
        around = self._around
        if error is None and around is not None and around.is_open and self._transfer_to not in (None, around.name):
            around._transferred.append(self)
            return
        if self._waits_for and error is None:
            self.interrupt(list(self._waits_for.values()))
        for run in reversed(self._transferred):
            run.end()
        for inner in list(self._inner):
            if isinstance(inner, Tool) and error is not None:
                inner.end_unreported(error)
        self.end(error)

    def _origin_of(self, name: str) -> Run:
        """The run that an agent which begins in this one is the child of."""
        return next((run for run in reversed(self._transferred) if run._transfer_to == name and run.is_open), self)


def enclosing_run() -> Run | None:
    """The innermost open run that this context is in, also if the user opened a trajectory inside it."""
    frame = entered()
    while frame is not None and not (isinstance(frame, Run) and frame.is_open):
        frame = frame.parent
    return frame


@guarded
def begin_run(
    name: str, settings: Settings | None, *, of_runner: bool = False, session: str | None = None
) -> Run | None:
    """Begins the run of an agent, unless the active run is the same one, or nothing is to be recorded.

    Args:
        name: of the agent.
        settings: of the agent or its runner; by default those of the enclosing run.
        of_runner: whether a runner runs it: never the active run, also if that is of an agent with the same name.
        session: id of the session that the runner runs it in.
    """
    outer = enclosing_run()
    if settings is None:
        if outer is None:
            return None
        settings = outer.settings
    frame = active()
    if isinstance(frame, Run):
        if frame.name == name and not of_runner:
            # A runner, its root node and its root agent are one run.
            return None
        return Run(name, settings, frame, session)
    return Run(name, settings, session=session)


async def run_inside(
    frame: Frame,
    inner: AsyncGenerator[Y, None],
    on_item: Callable[[Y], object],
    on_end: Callable[[BaseException | None], object],
) -> AsyncGenerator[Y, None]:
    """Runs an async generator inside a frame, and closes it there.

    Not ``run_async_generator``: what closing the generator raises reaches the consumer, as it does without the frame.

    Args:
        frame: the current frame while the generator runs, not while its consumer does.
        inner: the generator.
        on_item: called with each item before the consumer gets it.
        on_end: called once, with the exception that ended the generator: ``GeneratorExit`` if the consumer closed it.
    """
    inside: Frame | None = frame
    error: BaseException | None = None
    try:
        while True:
            outside = enter(inside)
            try:
                item = await inner.__anext__()
            except StopAsyncIteration:
                break
            finally:
                inside = enter(outside)
            on_item(item)
            yield item
    except BaseException as failure:
        error = failure
        raise
    finally:
        outside = enter(inside)
        try:
            await inner.aclose()
        except BaseException as failure:
            error = failure
            raise
        finally:
            enter(outside)
            on_end(error)
