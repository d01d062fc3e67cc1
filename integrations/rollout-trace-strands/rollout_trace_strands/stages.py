"""One model call and one tool run, each inside its frame: what goes through Strands' middleware."""

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

C = TypeVar("C")
F = TypeVar("F", bound=Frame)
R = TypeVar("R", bound=TypedEvent)


class Stage(Generic[C, F, R]):
    """What Strands does inside a frame.

    Args:
        frame: of what is done.
        context: what Strands gives its middleware.
        result_type: of the event that has the result.
    """

    def __init__(self, frame: F, context: C, result_type: type[R]) -> None:
        self.frame = frame
        self.context = context
        self.result: R | None = None
        self._result_type = result_type

    def run(self, next_fn: Callable[[C], AsyncGenerator[TypedEvent, None]]) -> AsyncGenerator[TypedEvent, None]:
        """Does it, and passes its events on. What their reader does between them is not the frame's."""
        self._events = next_fn(self.context)
        return run_async_generator(self.frame, self._events, on_item=self._saw, on_end=self._over)

    def _saw(self, event: TypedEvent) -> None:
        if isinstance(event, self._result_type):
            self.result = event

    async def _over(self, error: BaseException | None) -> None:
        try:
            await self.over(error)
        finally:
            await self.close()

    async def over(self, error: BaseException | None) -> None:
        """It is over; ``error`` is what ended it."""
        self.ended(error)

    def ended(self, error: BaseException | None) -> None:
        """Ends the frame, with what became known."""
        raise NotImplementedError

    async def close(self) -> None:
        """Lets go of what was opened for it."""


class ModelCall(Stage[InvokeModelContext, ModelFrame, ModelStopReason]):
    """A call of a model.

    Args:
        frame: of the call.
        context: what Strands gives its middleware.
        is_reached: whether the model's client records, so that an answer without a call is a cached one.
        client: to be closed after the call; None where it is not ours.
    """

    def __init__(self, frame: ModelFrame, context: InvokeModelContext, is_reached: bool, client: Any) -> None:
        super().__init__(frame, context, ModelStopReason)
        self._is_reached = is_reached
        self._client = client

    @property
    def message(self) -> Any:
        """The message that the call gave; None before, or where it gave none."""
        return None if self.result is None else self.result["stop"][1]

    @guarded
    def ended(self, error: BaseException | None) -> None:
        """What the model answered; told where no bytes were seen."""
        stop: Any = (None,) * 4 if self.result is None else self.result["stop"]
        reason, message, usage, _ = stop
        if reason == "cancelled":
            # What stands in the message is Strands' own sentence.
            error = CancelledError("the agent was cancelled")
        elif message is not None:
            # Whatever came after the answer, it arrived.
            error = None
        is_answer = message is not None and error is None
        try:
            if not self.frame.calls and is_answer:
                self.frame.answered(chat.answered(message, reason, usage), cached=self._is_reached)
            if not self.frame.calls and (is_answer or error is not None):
                context = self.context
                asked = chat.asked(context.messages, context.system_prompt, context.tool_specs, context.model)
                self.frame.tell(**asked)
        finally:
            self.frame.end(error)

    async def close(self) -> None:
        """Closes the client of the call, where it has one of its own."""
        if self._client is None:
            return
        try:
            await self._client.close()
        except Exception as failure:
            report_failure("close", failure)


class AuxiliaryCall(ModelCall):
    """A call of a model past the agent's loop: its events are the model's own."""

    def __init__(self, frame: ModelFrame, context: InvokeModelContext, is_reached: bool, client: Any) -> None:
        super().__init__(frame, context, is_reached, client)
        self._chunks: list[Any] = []

    async def kept(self, chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """The pieces of the answer, kept where no bytes are seen."""
        try:
            async for chunk in chunks:
                if not self.frame.calls:
                    self._chunks.append(chunk)
                yield chunk
        finally:
            await chunks.aclose()

    async def over(self, error: BaseException | None) -> None:
        """Where no bytes were seen, the answer is what Strands makes of the pieces."""
        if not self.frame.calls and error is None:
            try:
                async for event in process_stream(_each(self._chunks)):
                    if isinstance(event, ModelStopReason):
                        self.result = event
            except Exception as failure:
                report_failure("assemble", failure)
        self.ended(error)

    async def close(self) -> None:
        """Closes the model's stream too, which in the agent's loop is Strands' affair."""
        try:
            await self._events.aclose()
        finally:
            await super().close()


async def _each(chunks: list[Any]) -> AsyncGenerator[Any, None]:
    for chunk in chunks:
        yield chunk


class ToolCall(Stage[ExecuteToolContext, ToolFrame, ToolResultEvent]):
    """A run of a tool."""

    def __init__(self, frame: ToolFrame, context: ExecuteToolContext) -> None:
        super().__init__(frame, context, ToolResultEvent)

    @guarded
    def ended(self, error: BaseException | None) -> None:
        """What the tool gave, or how it failed."""
        if self.result is not None:
            result, error = self.result.tool_result, self.result.exception
            content = chat.result_of(result.get("content") or ())
            self.frame.run.result = content
            if error is None and result.get("status") == "error":
                # Strands' word: the tool said so itself, without an exception.
                self.frame.run.error = ErrorInfo(type="error", message=str(content))
        self.frame.end(error)
