"""Frames from the events of one transcript: agents, model calls, tools, scorers.

Inspect notifies a transcript's subscribers in the context in which an event happens: just before a provider is called,
just before a tool runs, when a span begins. So frames are entered there, and samples that run at once do not mix. (The
hook ``on_sample_event`` is called later, by a task of its own.)
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from inspect_ai.event import Event, ModelEvent, SpanBeginEvent, SpanEndEvent, ToolEvent
from inspect_ai.log import transcript

from rollout_trace.integration import (
    AgentFrame,
    ErrorInfo,
    Frame,
    ModelFrame,
    ToolFrame,
    active,
    current_scope,
    entered,
    guarded,
    snapshot,
)
from rollout_trace_inspect import chat

AGENT, SCORER, TOOL = "agent", "scorer", "tool"
"""Types of Inspect's spans."""
_PHASES = ("solvers", "scorers")
"""The spans that a sample consists of."""


class ModelCallError(RuntimeError):
    """A model call that failed, by the message of its event, where Inspect's exception is not at hand."""


class ScorerFrame(Frame):
    """A scorer's run. Its model calls, a judge's, are in a trajectory of their own, which the first of them opens."""

    def __init__(self, name: str, parent: Frame | None) -> None:
        super().__init__(parent, name)
        self._name = name
        self._judge: AgentFrame | None = None

    def judge(self) -> AgentFrame:
        """The frame of the judge's trajectory."""
        if self._judge is None:
            self._judge = AgentFrame(self._name, parent=self, metadata={"scorer": self._name})
        return self._judge

    def end(self, error: BaseException | None = None) -> None:
        """Ends the judge's trajectory with it: as an inner frame it would be ``aborted``."""
        if self._judge is not None:
            self._judge.end(error)
        super().end(error)


@dataclass(slots=True)
class _Span:
    """An open span."""

    type: str | None
    outer: BaseException | None
    """The exception that was being handled when it began: not what ended it."""
    frame: Frame | None


class EventFrames:
    """The subscriber of one transcript.

    Args:
        root: the frame of the sample; None outside of samples.
    """

    def __init__(self, root: AgentFrame | None) -> None:
        self._root = root
        self._is_named = False
        self._spans: dict[str, _Span] = {}
        # An event may be changed after its frame has ended. Outside of samples nothing ends the transcript: there the
        # frames are kept by their trajectories.
        self._tools: MutableMapping[str | None, ToolFrame] = {} if root is not None else WeakValueDictionary()
        self._calls: MutableMapping[str | None, ModelFrame] = {} if root is not None else WeakValueDictionary()
        self.error: BaseException | None = None
        """The exception that left the solvers or scorers."""

    @guarded
    def __call__(self, event: Event) -> None:
        """Called with each event when it is added, and again when it has changed."""
        if isinstance(event, ModelEvent):
            self._model(event)
        elif isinstance(event, ToolEvent):
            self._tool(event)
        elif isinstance(event, SpanBeginEvent):
            self._span_begin(event)
        elif isinstance(event, SpanEndEvent):
            self._span_end(event)

    def supersede(self) -> None:
        """Marks all answers as discarded: the sample is run again."""
        for frame in self._calls.values():
            frame.supersede()

    def _parent(self) -> Frame | None:
        """The frame that what begins in this context belongs to; None for that of the user's own trajectory block."""
        frame = active()
        if frame is None and self._root is not None and current_scope.get() is self._root.scope:
            # A context that was not copied from the sample's.
            return self._root
        return frame.judge() if isinstance(frame, ScorerFrame) else frame

    def _span_begin(self, event: SpanBeginEvent) -> None:
        frame: Frame | None = None
        if event.type == AGENT:
            frame = self._agent(event.name)
        elif event.type == SCORER:
            frame = ScorerFrame(event.name, active())
        elif event.type != TOOL and event.name not in _PHASES:
            return
        if frame is not None:
            frame.enter()
        self._spans[event.id] = _Span(event.type, sys.exc_info()[1], frame)

    def _agent(self, name: str) -> Frame:
        parent = self._parent()
        root = self._root
        if root is not None and parent is root:
            # The outermost agent's steps are the sample's, which is named after the first of them.
            if not self._is_named and root.trajectory is not None:
                self._is_named, root.trajectory.name = True, name
            return Frame(root, name)
        return AgentFrame(name, parent=parent)

    def _span_end(self, event: SpanEndEvent) -> None:
        span = self._spans.pop(event.id, None)
        if span is None:
            return
        error = sys.exc_info()[1]
        error = None if error is span.outer else error
        if span.frame is not None:
            span.frame.end(error)
        elif span.type == TOOL:
            _tool_raised(error)
        elif error is not None:
            self.error = error

    def _tool(self, event: ToolEvent) -> None:
        frame = self._tools.get(event.uuid)
        if frame is None:
            arguments = snapshot(event.arguments)
            frame = ToolFrame(event.function, tool_call_id=event.id, arguments=arguments, parent=self._parent())
            self._tools[event.uuid] = frame.enter()
        if event.pending:
            return
        run = frame.run
        if event.error is not None and run.error is None:
            run.error = ErrorInfo(type=event.error.type, message=event.error.message)
        if event.result or run.error is None:
            run.result = snapshot(event.result)
        frame.end()

    def _model(self, event: ModelEvent) -> None:
        frame = self._calls.get(event.uuid)
        if frame is None:
            frame = self._calls[event.uuid] = self._call(event)
        if not event.pending and frame.is_open:
            self._answered(frame, event)

    def _call(self, event: ModelEvent) -> ModelFrame:
        parent = self._parent()
        ids = {"inspect_event": event.uuid, "inspect_span": event.span_id, "role": event.role}
        metadata = {key: value for key, value in ids.items() if value is not None}
        return ModelFrame("inspect", parent=parent, metadata=metadata, trainable=not _is_judge(parent)).enter()

    def _answered(self, frame: ModelFrame, event: ModelEvent) -> None:
        error = _error_of(event)
        try:
            if not frame.calls:
                frame.tell(**chat.request_fields(event))
                if error is None:
                    is_cached = event.cache == "read"
                    # The id of a cached answer is that of another step.
                    response_id = None if is_cached else getattr(event.output, "response_id", None)
                    frame.answered(*chat.answers(event), response_id=response_id, cached=is_cached)
        finally:
            frame.end(error)


def _tool_raised(error: BaseException | None) -> None:
    """Keeps the exception of the tool that ran in this context: its event, which comes later, has a word for it."""
    frame = entered()
    while frame is not None and not isinstance(frame, ToolFrame):
        frame = frame.parent
    if frame is None or error is None:
        return
    # Python 3.10 has no exception groups of its own, which task groups wrap a single exception in too.
    while len(inner := _inside(error)) == 1:
        error = inner[0]
    if isinstance(error, Exception):
        frame.run.error = ErrorInfo(type=type(error).__name__, message=str(error))
    else:
        # Cancelled: no further event may come.
        frame.end(error)


def _inside(error: BaseException) -> Sequence[BaseException]:
    """The exceptions in a group; none in any other exception."""
    found: Sequence[BaseException] = getattr(error, "exceptions", ())
    return found


def _is_judge(frame: Frame | None) -> bool:
    while frame is not None and not isinstance(frame, ScorerFrame):
        frame = frame.parent
    return frame is not None


def _error_of(event: ModelEvent) -> BaseException | None:
    """What a call ended with: the exception that is being handled, if it is the event's."""
    if event.error is None:
        return None
    error = sys.exc_info()[1]
    # Inspect has words of its own for a cancelled call.
    if error is not None and (not isinstance(error, Exception) or str(error) in event.error):
        return error
    return ModelCallError(event.error)


_watched: WeakSet[Any] = WeakSet()


@guarded
def watch_here() -> None:
    """Subscribes to the transcript of this context, once, for calls and tools outside of recorded samples."""
    here = transcript()
    if here not in _watched:
        _watched.add(here)
        here._subscribe(EventFrames(None))
