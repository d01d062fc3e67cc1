"""Runs of agents: their frames, and the generators that ADK runs them in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from google.adk.events.event import Event

from rollout_trace.integration import AgentFrame, Frame, ToolFrame, ToolRun, active, enter, entered, guarded, snapshot
from rollout_trace_google_adk.settings import Settings

Y = TypeVar("Y")


class Run(AgentFrame):
    """Frame of one run of an agent, or of a workflow.

    Args:
        name: of the agent. Names are unique in a tree of agents.
        settings: what it is recorded with; runs inside it are recorded with the same ones.
        parent: the run that it is part of; None if that is the active frame.
    """

    def __init__(self, name: str, settings: Settings, parent: Frame | None = None) -> None:
        super().__init__(name, parent=parent)
        self.name = name
        self.settings = settings
        self._unread: dict[str, ToolRun] = {}
        """Tool runs whose results the model has not read yet, by the id of the tool call."""
        self._handed_over: dict[str, Run] = {}
        """Runs inside this one that have ended with a transfer, by the agent that they transferred to."""
        self._transfer_to: str | None = None

    def add_tool(self, call_id: str | None, run: ToolRun) -> None:
        """Adds a tool run whose result is to be updated from the events of the agent."""
        if call_id is not None:
            self._unread[call_id] = run

    def on_event(self, event: Any) -> None:
        """Takes from an event of the agent what callbacks have made of tools' results, and where it transfers."""
        if not isinstance(event, Event):
            return
        self._transfer_to = event.actions.transfer_to_agent
        if self._unread and not event.partial:
            for answer in event.get_function_responses():
                run = self._unread.pop(answer.id or "", None)
                if run is not None and answer.response not in (run.result, {"result": run.result}):
                    run.result = snapshot(answer.response)

    def finish(self, error: BaseException | None) -> None:
        """Ends the run, unless ADK is about to run the agent that it has transferred to, which is its child."""
        outer = self.parent
        if error is None and self._transfer_to is not None and isinstance(outer, Run):
            if outer.is_open and outer.name != self._transfer_to:
                outer._handed_over[self._transfer_to] = self
                return
        for run in reversed(self._handed_over.values()):
            run.end()
        for inner in list(self._inner) if error is not None else ():
            if isinstance(inner, ToolFrame):
                # No callback has reported its end.
                inner.end(error)
        self.end(error)

    def origin_of(self, name: str) -> Run:
        """The run that an agent of this name is the child of: the one that transferred to it, else this one."""
        found = self._handed_over.get(name)
        return self if found is None or not found.is_open else found.origin_of(name)


def enclosing_run() -> Run | None:
    """The innermost open run that this context is in, also if the user opened a trajectory inside it."""
    frame = entered()
    while frame is not None and not (isinstance(frame, Run) and frame.is_open):
        frame = frame.parent
    return frame


@guarded
def begin_run(name: str, settings: Settings | None) -> Run | None:
    """Begins the run of an agent, unless the active run is the same one, or nothing is to be recorded.

    Args:
        name: of the agent.
        settings: of the agent or its runner; by default those of the enclosing run.
    """
    outer = enclosing_run()
    if settings is None:
        if outer is None:
            return None
        settings = outer.settings
    frame = active()
    if isinstance(frame, Run):
        if frame.name == name:
            # A runner, its root node and its root agent are one run.
            return None
        return Run(name, settings, frame.origin_of(name))
    return Run(name, settings)


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
