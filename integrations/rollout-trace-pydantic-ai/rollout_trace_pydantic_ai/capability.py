"""The capability that records the runs of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_ai import DeferredToolRequests, ModelRetry
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, SkipModelRequest, SkipToolExecution, ToolRetryError
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_core import ValidationError

from rollout_trace.integration import Engine, ToolFrame, check_engine, guarded, snapshot
from rollout_trace_pydantic_ai import chat
from rollout_trace_pydantic_ai.models import Settings, record_model
from rollout_trace_pydantic_ai.runs import RunFrame, Turn, run_of
from rollout_trace_pydantic_ai.unhooked import install_hook


@dataclass(kw_only=True)
class RolloutCapability(AbstractCapability[Any]):
    """Records an agent: ``Agent(model, capabilities=[RolloutCapability(engine="vllm")])``.

    One capability may record many agents, even at the same time. Agents that run inside a recorded run, in a tool or a
    hook, are recorded with it.

    Raises:
        ValueError: the engine is unknown.
    """

    engine: str | Engine | None = None
    """The server behind OpenAI's models (``vllm``, ``sglang``, ...): requests then ask for token ids and logprobs, see
    ``rollout_trace.wrap_openai``. None adds nothing to requests, and clients wrapped before keep their settings."""
    keep_bytes: bool = False
    """Whether steps keep the bytes of requests and responses."""

    # A run of a durable agent accepts only such capabilities.
    _safe_at_runtime: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._settings = Settings(check_engine(self.engine), self.keep_bytes)
        install_hook()

    def get_ordering(self) -> CapabilityOrdering:
        """Places it around all other capabilities, so that what they do is recorded as part of the run."""
        return CapabilityOrdering(position="outermost")

    def get_wrapper_model(self, model: Model) -> None:
        """Starts recording the model that is called next, without wrapping it."""
        record_model(model, self._settings)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Runs the agent inside its frame. Pydantic AI carries the context from here into the run."""
        frame = self._begin_run(ctx)
        if frame is None:
            return await handler()
        try:
            result = await handler()
        except BaseException as error:
            self._end_run(frame, error)
            raise
        self._note_deferred(frame, result)
        self._end_run(frame, None)
        return result

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Determines which of the answers in a model request the agent continues with."""
        turn = self._begin_turn(ctx, request_context)
        if turn is None:
            return await handler(request_context)
        try:
            response = await handler(request_context)
        except SkipModelRequest as skipped:
            self._end_turn(turn, request_context, skipped.response)
            raise
        except Exception as error:
            self._fail_turn(turn, error)
            raise
        self._end_turn(turn, request_context, response)
        return response

    async def wrap_tool_validate(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        handler: Callable[[Any], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Records a tool call whose arguments are rejected, so that it does not run."""
        try:
            return await handler(args)
        except (ValidationError, ModelRetry, ToolRetryError) as error:
            self._refuse_tool(ctx, call, args, error)
            raise

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Runs a tool inside its frame."""
        frame = self._begin_tool(ctx, call, args)
        if frame is None:
            return await handler(args)
        with frame:
            try:
                result = await handler(args)
            except SkipToolExecution as skipped:
                # Not an error: another capability has the result.
                self._set_result(frame, skipped.result)
                frame.end()
                raise
            except (ApprovalRequired, CallDeferred):
                # Not an error: the tool waits, and runs in a later run or elsewhere.
                frame.end()
                raise
            except BaseException as error:
                self._keep_error(ctx, error)
                raise
            self._set_result(frame, result)
        return result

    def _run(self, ctx: RunContext[Any]) -> RunFrame | None:
        """Returns the run, if this capability records it."""
        run = run_of(ctx.run_id)
        return run if run is not None and run.capability is self else None

    @guarded
    def _begin_run(self, ctx: RunContext[Any]) -> RunFrame | None:
        # The agent may have two capabilities: the outer one records.
        return None if run_of(ctx.run_id) is not None else RunFrame(ctx, self).enter()

    @guarded
    def _end_run(self, frame: RunFrame, error: BaseException | None) -> None:
        if error is not None:
            frame.fail(error)
        frame.end(error)

    @guarded
    def _note_deferred(self, frame: RunFrame, result: Any) -> None:
        output = getattr(result, "output", None)
        if isinstance(output, DeferredToolRequests):
            asked = {"approval": output.approvals, "result": output.calls}
            frame.interrupt([chat.waiting(call, what) for what, calls in asked.items() for call in calls])

    @guarded
    def _begin_turn(self, ctx: RunContext[Any], request: ModelRequestContext) -> Turn | None:
        run = self._run(ctx)
        if run is None:
            return None
        record_model(request.model, self._settings)
        if request.messages:
            run.mark_rejected(request.messages[-1])
        return run.begin_turn(ctx.run_step)

    @guarded
    def _end_turn(self, turn: Turn, request: ModelRequestContext, response: ModelResponse) -> None:
        turn.finish(request, response)

    @guarded
    def _fail_turn(self, turn: Turn, error: Exception) -> None:
        turn.fail(error)

    @guarded
    def _begin_tool(self, ctx: RunContext[Any], call: ToolCallPart, args: Any) -> ToolFrame | None:
        run = self._run(ctx)
        if run is None:
            return None
        run.tool_call_ids.add(call.tool_call_id)
        frame = ToolFrame(call.tool_name, tool_call_id=call.tool_call_id, arguments=snapshot(args))
        run.tools.append(frame)
        return frame

    @guarded
    def _set_result(self, frame: ToolFrame, result: Any) -> None:
        frame.run.result = chat.tool_result(result)

    @guarded
    def _keep_error(self, ctx: RunContext[Any], error: BaseException) -> None:
        run = self._run(ctx)
        if run is not None:
            run.errors_elsewhere.append(error)

    @guarded
    def _refuse_tool(self, ctx: RunContext[Any], call: ToolCallPart, args: Any, error: Exception) -> None:
        frame = self._begin_tool(ctx, call, chat.parsed(args))
        if frame is not None:
            frame.end(error)
            self._keep_error(ctx, error)


__all__ = ["RolloutCapability"]
