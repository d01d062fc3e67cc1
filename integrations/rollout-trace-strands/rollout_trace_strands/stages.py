"""Model calls and tool runs that pass through Strands' middleware, each run inside its frame."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, TypeVar

from strands.event_loop.streaming import process_stream

from rollout_trace.integration import (
    ErrorInfo,
    Frame,
    ModelFrame,
    ToolFrame,
    guarded,
    report_failure,
    run_async_generator,
)
from rollout_trace_strands import chat
from rollout_trace_strands.middleware import (
    ExecuteToolContext,
    InvokeModelContext,
    ModelStopReason,
    ToolResultEvent,
    TypedEvent,
)

_INTERRUPTS = ("ToolInterruptEvent", "InterruptException")
"""Classes of the event of a tool that asks a person, and of what a middleware raises to ask; not in all releases."""
C = TypeVar("C")
F = TypeVar("F", bound=Frame)
R = TypeVar("R", bound=TypedEvent)


class Stage(Generic[C, F, R]):
    """One execution of a stage of Strands' middleware inside a frame.

    Args:
        frame: of the model call or tool run.
        context: the middleware's context, which ``next_fn`` is called with.
        result_type: class of the event that holds the result.
    """

    def __init__(self, frame: F, context: C, result_type: type[R]) -> None:
        self.frame = frame
        self.context = context
        self.result: R | None = None
        self._result_type = result_type

    def run(self, next_fn: Callable[[C], AsyncGenerator[TypedEvent, None]]) -> AsyncGenerator[TypedEvent, None]:
        """Runs the stage and yields its events. While the consumer handles an event, the frame is not active."""
        self._events = next_fn(self.context)
        return run_async_generator(self.frame, self._events, on_item=self._on_event, on_end=self._on_end)

    def _on_event(self, event: TypedEvent) -> None:
        if isinstance(event, self._result_type):
            self.result = event

    async def _on_end(self, error: BaseException | None) -> None:
        try:
            await self.finish(error)
        finally:
            await self.close()

    async def finish(self, error: BaseException | None) -> None:
        """Ends the frame. ``error``: the exception that ended the stage, or None."""
        self.end_frame(error)

    def end_frame(self, error: BaseException | None) -> None:
        """Sets the result on the frame and ends it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes what was opened for the stage."""


class ModelCall(Stage[InvokeModelContext, ModelFrame, ModelStopReason]):
    """A call of a model.

    Args:
        frame: of the call.
        context: the middleware's context.
        is_client_recorded: whether the model's client records, so that an answer without a call is a cached one.
    """

    def __init__(self, frame: ModelFrame, context: InvokeModelContext, is_client_recorded: bool) -> None:
        super().__init__(frame, context, ModelStopReason)
        self._is_client_recorded = is_client_recorded

    @property
    def message(self) -> Any:
        """The message of the answer; None without one."""
        return None if self.result is None else self.result["stop"][1]

    @guarded
    def end_frame(self, error: BaseException | None) -> None:
        """Ends the frame; if no bytes were seen, with the request and the answer from Strands' objects."""
        stop: Any = (None,) * 4 if self.result is None else self.result["stop"]
        reason, message, usage, _ = stop
        if reason == "cancelled":
            # The text in the message is Strands' own, not the model's.
            error = CancelledError("the agent was cancelled")
        elif message is not None:
            # The answer arrived whole: what failed after it is not an error of the call.
            error = None
        is_answer = message is not None and error is None
        try:
            if not self.frame.calls and is_answer:
                self.frame.answered(chat.answer_fields(message, reason, usage), cached=self._is_client_recorded)
            if not self.frame.calls and (is_answer or error is not None):
                context = self.context
                tools, model = context.tool_specs, context.model
                self.frame.tell(**chat.request_fields(context.messages, context.system_prompt, tools, model))
        finally:
            self.frame.end(error)


class AuxiliaryCall(ModelCall):
    """A call of a model outside the agent's loop. Its events are the chunks of the model's own stream."""

    def __init__(self, frame: ModelFrame, context: InvokeModelContext, is_client_recorded: bool) -> None:
        super().__init__(frame, context, is_client_recorded)
        self._chunks: list[Any] = []

    async def collect(self, chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Yields the chunks of the answer, and keeps them as long as no bytes are seen."""
        try:
            async for chunk in chunks:
                if not self.frame.calls:
                    self._chunks.append(chunk)
                yield chunk
        finally:
            await chunks.aclose()

    async def finish(self, error: BaseException | None) -> None:
        """Ends the frame; if no bytes were seen, with the answer that Strands assembles from the chunks."""
        if not self.frame.calls and error is None:
            try:
                async for event in process_stream(_iterate(self._chunks)):
                    if isinstance(event, ModelStopReason):
                        self.result = event
            except Exception as failure:
                report_failure("assemble", failure)
        self.end_frame(error)

    async def close(self) -> None:
        """Closes the model's stream too; in the agent's loop Strands does so."""
        try:
            await self._events.aclose()
        finally:
            await super().close()


async def _iterate(chunks: list[Any]) -> AsyncGenerator[Any, None]:
    for chunk in chunks:
        yield chunk


class ToolCall(Stage[ExecuteToolContext, ToolFrame, ToolResultEvent]):
    """A run of a tool."""

    def __init__(self, frame: ToolFrame, context: ExecuteToolContext) -> None:
        super().__init__(frame, context, ToolResultEvent)
        self._is_waiting = False

    def _on_event(self, event: TypedEvent) -> None:
        super()._on_event(event)
        self._is_waiting = type(event).__name__ in _INTERRUPTS

    @guarded
    def end_frame(self, error: BaseException | None) -> None:
        """Sets the tool's result and error on the frame, and ends it."""
        if self._is_waiting or type(error).__name__ in _INTERRUPTS:
            # Strands runs it again with the answer.
            error = None
        if self.result is not None:
            result, error = self.result.tool_result, self.result.exception
            content = chat.result_of(result.get("content") or ())
            self.frame.run.result = content
            if error is None and result.get("status") == "error":
                # The tool returned `status: error` itself, without an exception.
                self.frame.run.error = ErrorInfo(type="error", message=str(content))
        self.frame.end(error)
