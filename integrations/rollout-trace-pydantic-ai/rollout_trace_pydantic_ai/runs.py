"""Runs of agents, and the turns that they consist of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai import ModelRetry, UnexpectedModelBehavior
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import StreamedResponse
from pydantic_ai.settings import merge_model_settings

from rollout_trace.integration import AgentFrame, ModelFrame, ToolFrame, entered, guarded
from rollout_trace_pydantic_ai import chat

if TYPE_CHECKING:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.tools import RunContext


class RunFrame(AgentFrame):
    """Frame of one run of an agent. Agents without a capability that run inside it are recorded by the same one."""

    def __init__(self, ctx: RunContext[Any], capability: AbstractCapability[Any]) -> None:
        """``capability``: the one that records the run."""
        name = None if ctx.agent is None else ctx.agent.name
        super().__init__(name, metadata={"run_id": ctx.run_id}, conversation=ctx.conversation_id)
        self.run_id = ctx.run_id
        self.capability = capability
        self.turn: Turn | None = None
        """The turn that goes on, or the last one."""
        self.tool_call_ids: set[str] = set()
        """Ids of the tool calls that are recorded as tool runs."""
        self.tools: list[ToolFrame] = []
        """Frames of this turn's tools."""
        self.errors_elsewhere: list[BaseException] = []
        """Exceptions of this turn that are recorded on a tool run or on another agent's trajectory."""

    def begin_turn(self, run_step: int) -> Turn:
        """Begins the run's next turn. ``run_step``: its number, from 1."""
        self.tools.clear()
        self.errors_elsewhere.clear()
        self.turn = Turn(self, run_step)
        return self.turn

    def fail(self, error: BaseException) -> None:
        """Ends what the run has open, with the exception that ended it. One about the last answer is set on that."""
        for tool in self.tools:
            # Tools of a cancelled run see the cancellation after it.
            tool.end(error)
        if self.turn is not None:
            self.turn.close(error)
            is_elsewhere = any(one is error or one is error.__cause__ for one in self.errors_elsewhere)
            if isinstance(error, UnexpectedModelBehavior) and not is_elsewhere:
                self.turn.fail(error)
        outer = self.parent
        while outer is not None and not isinstance(outer, RunFrame):
            outer = outer.parent
        if outer is not None and outer.is_open:
            outer.errors_elsewhere.append(error)

    def _ended(self, error: BaseException | None) -> None:
        super()._ended(error)
        # Its calls hold messages; a trajectory of many runs keeps their frames to its end.
        self.turn = None
        self.tools.clear()
        self.errors_elsewhere.clear()

    def mark_rejected(self, request: Any) -> None:
        """Sets an error on the last answer, if this request says that it was of no use.

        The answer stays a turn of the conversation: the model is sent it again, with the reason. The error of a tool
        that ran is on its tool run.

        Args:
            request: the last message that is sent to the model.
        """
        if self.turn is None:
            return
        for part in request.parts:
            reason = chat.retry_reason(part)
            if reason is not None and getattr(part, "tool_call_id", None) not in self.tool_call_ids:
                self.turn.fail(ModelRetry(reason))


class Turn:
    """One request of an agent to its model.

    Several model calls may be made for it: fallbacks, further attempts, the parts of a paused answer.

    Args:
        run: the run that it is a part of.
        run_step: number of the turn in its run, from 1.
    """

    def __init__(self, run: RunFrame, run_step: int) -> None:
        self.run_step = run_step
        self.metadata = {"run_id": run.run_id, "run_step": run_step}
        """For the steps of its calls."""
        self.calls: list[ModelCall] = []
        self._others: list[ModelCall] = []
        self._is_finished = False
        self._run = run
        self._kept: ModelFrame | None = None

    def add_other(self, call: ModelCall) -> None:
        """Adds a call that a hook makes itself: its answer may become the turn's."""
        if not self._is_finished:
            self._others.append(call)

    def finish(self, request: ModelRequestContext, response: ModelResponse) -> None:
        """Marks the answers that are not the one that the agent goes on with.

        Args:
            request: of the turn.
            response: what the agent goes on with. Without a model call, a capability has made it.
        """
        self._is_finished = True
        answered = [call for call in self.calls if call.is_answered]
        kept = _given_by([*self._others, *answered], response)
        if kept is None and answered and not answered[-1].response_id:
            # Without the provider's id, an answer that a hook has changed cannot be told from one that it replaced.
            kept = answered[-1]
        if kept is None and not self.calls:
            self._add_made(request, response)
        for call in answered:
            # A paused answer is a part of the kept one, which the provider has continued.
            if call is not kept and not call.is_paused:
                call.frame.supersede()
        if kept is not None:
            self._kept = kept.frame
            # Of a call that a hook has made, it is the turn's only now.
            kept.frame.metadata.update(self.metadata)
        self._others.clear()

    def close(self, error: BaseException) -> None:
        """Ends the calls that are still open: of a cancelled run, they see the cancellation after it."""
        for call in self.calls:
            if call.frame.is_open:
                call.failed(error)

    def fail(self, error: Exception) -> None:
        """Sets an error on the answer that the agent could not go on with."""
        answered = [call.frame for call in self.calls if call.is_answered]
        frame = self._kept or (answered[-1] if answered else None)
        if frame is not None:
            frame.failed(error)

    def _add_made(self, request: ModelRequestContext, response: ModelResponse) -> None:
        frame = ModelFrame("pydantic-ai", parent=self._run, metadata=self.metadata)
        asked = (request.messages, request.model_settings, request.model_request_parameters, request.model.model_name)
        frame.answered({**chat.request_fields(*asked), **chat.answer_fields(response)}, cached=True)
        frame.end()
        self._kept = frame


class ModelCall:
    """One call of a model.

    Args:
        is_client_recorded: whether the bytes of its client's requests are seen.
        model: that is called.
        messages: Pydantic AI's messages, as the model gets them.
        model_settings: the request's.
        model_request_parameters: the request's; they have its tools.
        run_context: of the run that makes the call; None if there is none, or for an unstreamed call.
    """

    def __init__(
        self,
        is_client_recorded: bool,
        model: Any,
        messages: list[Any],
        model_settings: Any,
        model_request_parameters: Any,
        run_context: Any = None,
    ) -> None:
        self._is_client_recorded = is_client_recorded
        # An agent has merged the model's own settings; `pydantic_ai.direct` has not.
        merged = merge_model_settings(model.settings, model_settings)
        self._asked = (list(messages), merged, model_request_parameters, model.model_name)
        self.response: ModelResponse | None = None
        self.response_id: str | None = None
        """The provider's id of the answer; None without one."""
        self.is_answered = False
        self.is_paused = False
        """Whether the provider has paused its answer; another call continues it."""
        turn = _turn_of(run_context or get_current_run_context())
        self.frame = ModelFrame("pydantic-ai", metadata=None if turn is None else turn.metadata)
        if turn is not None:
            turn.calls.append(self)
        elif (run := run_of(None)) is not None and run.turn is not None:
            run.turn.add_other(self)

    @guarded
    def answered(self, answer: ModelResponse | StreamedResponse) -> None:
        """Ends the frame with a whole answer, which is used if no bytes were seen."""
        self.is_answered = True
        self.response_id = answer.provider_response_id
        self.is_paused = getattr(answer, "state", None) == "suspended"
        if isinstance(answer, ModelResponse):
            self.response = answer
        try:
            if not self.frame.calls:
                response = answer if isinstance(answer, ModelResponse) else answer.get()
                fields = {**chat.request_fields(*self._asked), **chat.answer_fields(response)}
                self.frame.answered(fields, response_id=self.response_id, cached=self._is_client_recorded)
        finally:
            self.frame.end()

    @guarded
    def failed(self, error: BaseException, stream: StreamedResponse | None = None) -> None:
        """Ends the frame with the exception that ended the call. ``stream``: has what had arrived; None if nothing."""
        try:
            if not self.frame.calls:
                self.frame.tell(**chat.request_fields(*self._asked))
                if stream is not None:
                    self.frame.answered(chat.answer_fields(stream.get()), response_id=stream.provider_response_id)
        finally:
            # Of a stream that its reader left, the bytes show whether all of it had arrived.
            self.frame.end(None if self.frame.calls and isinstance(error, GeneratorExit) else error)


def _turn_of(run_context: Any) -> Turn | None:
    """The turn that a call is made for; None for a call of a tool or a hook, whose context is of no step of the run."""
    run = None if run_context is None else run_of(run_context.run_id)
    turn = None if run is None else run.turn
    return turn if turn is not None and turn.run_step == run_context.run_step else None


def _given_by(calls: Sequence[ModelCall], response: ModelResponse) -> ModelCall | None:
    """The call that gave this response; None if none did."""
    for call in calls:
        if call.response is response:
            return call
    # The latest: some servers give all answers the same id.
    for call in reversed(calls):
        if call.response_id and call.response_id == response.provider_response_id:
            return call
    return None


def run_of(run_id: str | None) -> RunFrame | None:
    """The open run with this id that the context is in. With None: the innermost one."""
    # Not `active()`: that is None inside a trajectory block that the user opened within the run.
    frame = entered()
    while frame is not None:
        if isinstance(frame, RunFrame) and frame.is_open and (run_id is None or frame.run_id == run_id):
            return frame
        frame = frame.parent
    return None
