"""Frames for model calls that framework hooks report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials
from rollout_trace.data.model import ErrorInfo, Step, StepStatus, TokenIssue, amend, error_info, nanoseconds, new_id
from rollout_trace.record.call import Failure
from rollout_trace.record.scope import Frame
from rollout_trace.record.state import log_of
from rollout_trace.record.unseen import step_of

if TYPE_CHECKING:
    from rollout_trace.record.call import Call

_UNSEEN = {
    True: TokenIssue(code="cached", message="the framework answered without calling the model."),
    False: TokenIssue(
        code="not_on_wire",
        message="the bytes of this call were not seen: its framework's client is not wrapped, or of no known SDK.",
    ),
}
"""Why a step made from a framework's data has no ids; the key is whether the answer came from its cache."""


class ModelFrame(Frame):
    """One model call of a framework.

    Content, ids and logprobs come from the recorded bytes; the frame adds the agent's name, metadata, and whether the
    framework discarded the answer. A call whose bytes were not seen becomes steps made from the framework's data.
    """

    holds_others = False
    """A model call has no children."""
    _own_id: str | None = None

    def __init__(
        self,
        framework: str,
        *,
        parent: Frame | None = None,
        agent: str | None = None,
        after: ModelFrame | None = None,
        metadata: Mapping[str, Any] | None = None,
        trainable: bool = True,
        **facts: Any,
    ) -> None:
        """Begins the frame of a model call.

        Args:
            framework: name of the framework, for ``step.metadata["framework"]``.
            parent: the enclosing frame; by default the active one of this context.
            agent: name of the calling agent; by default that of the parent.
            after: the frame before it in a batch whose frames all begin first and whose calls are then made in order.
            metadata: more entries for the steps' ``metadata``.
            trainable: False for a call that is not the agent's own, such as a judge's: ``trainable`` of its steps.
            **facts: fields of ``Step`` for a call whose bytes are not seen: ``messages``, ``tools``, ``model``,
                ``sampling``; in the shape of OpenAI's chat.
        """
        super().__init__(parent, agent)
        self.metadata: dict[str, Any] = {"framework": framework, **metadata} if metadata else {"framework": framework}
        """For the ``metadata`` of the steps."""
        self.calls: list[Call] = []
        """Recorded calls that began in its context."""
        self.response_id: str | None = None
        """The provider's id of the answer, if the framework reported it."""
        self.began = time.perf_counter()
        """Start, in seconds."""
        self._started_at = time.time()
        self._after = after
        self.facts = facts
        """Fields of ``Step`` for a call whose bytes are not seen; more may be added until the frame ends."""
        self._answers: list[Mapping[str, Any]] = []
        self._outcome: StepStatus | None = None
        self._error: ErrorInfo | None = None
        self._superseded = False
        self._trainable = trainable
        self._ended_at: float | None = None
        self._made: list[Step] | None = None
        self.is_arriving = False
        """Set by the integration at the first piece of the answer: later calls in this context are the consumer's."""
        self._enlist()

    @property
    def takes_calls(self) -> bool:  # type: ignore[override]
        """False once the answer arrives, and after a cancelled call: few frameworks report a cancellation."""
        if self.is_arriving:
            return False
        last = self.calls[-1].failure if self.calls else None
        return last is None or last.kind != "cancelled"

    @property
    def step_id(self) -> str:
        """Id of the step for its answer, also before there is one; the first of several choices."""
        return f"{self.calls[-1].id if self.calls else self._id}.0"

    @property
    def _id(self) -> str:
        """Id of the call, if its bytes are not seen. Generated on first use, because most are seen."""
        # One atomic operation: tools that run in several threads may ask for it at once.
        return self._own_id or self.__dict__.setdefault("_own_id", new_id())

    def tell(self, **facts: Any) -> None:
        """Adds fields of ``Step`` for a call whose bytes are not seen. They are used however the call ends."""
        self.facts.update(facts)

    def _enlist(self) -> None:
        log = log_of(self.trajectory)
        if log is not None:
            log.frames.append(self)
            log.model_frames.append(self)

    def join(self, call: Call) -> None:
        """Assigns a call on a wrapped client to this frame, or to an earlier one of its batch."""
        # The frames of a batch all begin before its first call, so the active one is the last of them. Calls are made
        # in the order of the frames: the earliest open one without a call is meant.
        frame, waiting = self, self._after
        while waiting is not None:
            if waiting.is_open and not waiting.calls:
                frame = waiting
            waiting = waiting._after
        frame.calls.append(call)

    def answered(self, *answers: Mapping[str, Any], response_id: str | None = None, cached: bool = False) -> None:
        """Sets the answer as the framework reports it. To be called before ``end``.

        Args:
            *answers: one mapping per choice with fields of ``Step``: ``completion``, ``finish_reason``, ``usage``,
                ``response_model``, ``logprobs``. Used only if no bytes were seen.
            response_id: the provider's id; matches the frame with its call if the context was not carried over.
            cached: the framework answered without calling the model.
        """
        self._answers = list(answers)
        # As the step has it that it is joined with.
        self.response_id = None if response_id is None else credentials.cut(str(response_id))
        self._outcome = "cached" if cached else "ok"
        if cached:
            # It made no call: those assigned by context belong to other frames of its batch.
            self.calls = []

    def supersede(self) -> None:
        """Marks the answer as discarded by the framework, which calls again. May be called after ``end``."""
        self._superseded = True

    def failed(self, error: BaseException) -> None:
        """Records that the framework failed to process a complete answer. May be called after ``end``."""
        self._error = self._error or error_info(error)

    def abandon(self) -> None:
        """Ends a frame without a reported outcome: recorded calls keep theirs, an unseen one is ``abandoned``."""
        if self.is_open and self._outcome is None:
            self._outcome = "abandoned"
        self.end()

    def _ended(self, error: BaseException | None) -> None:
        self._ended_at = time.perf_counter()
        if error is not None:
            self._error = error_info(error)
            kind = Failure.of(error).kind
            self._outcome = "abandoned" if kind == "closed" else kind
        if not self.calls:
            log = log_of(self.trajectory)
            if log is not None:
                log.count_reported(self.facts, self._answers, self.metadata)
                if log.journal is not None:
                    log.journal.steps(self.steps())

    def forget(self) -> None:
        """Drops references to calls, answers and steps."""
        self.calls, self._answers, self.facts, self._made = [], [], {}, []
        self._after = self._error = None

    def _metadata_of_steps(self) -> dict[str, Any]:
        """Metadata for its steps, made when they are."""
        return self.metadata

    def mark_all(self, seen: Sequence[list[Step]]) -> None:
        """Adds the framework's metadata to the steps of each matched call. ``seen``: the steps by call."""
        for steps in seen:
            self.mark(steps)

    def mark(self, steps: list[Step]) -> None:
        """Adds agent, metadata, status and error from the framework to the steps of one call."""
        for step in steps:
            # Otherwise marked before: steps are read repeatedly, and frames of two frameworks may share a call.
            if step.metadata is None or "framework" not in step.metadata:
                amend(step, metadata={**(step.metadata or {}), **self._metadata_of_steps()})
                if not self._trainable:
                    step.trainable = False
            if self.agent is not None:
                amend(step, agent=self.agent)
            if self._superseded and step.status == "ok":
                amend(step, status="superseded")
            if self._error is not None and step.status == "ok" and step.error is None:
                # The status stays ok: the completion arrived whole, only its processing failed.
                amend(step, error=self._error)

    def steps(self) -> list[Step]:
        """Steps made from the framework's data, for a frame without a recorded call; none before it has ended."""
        if self.is_open:
            return []
        if self._made is None:
            self._made = [self._step(choice, answer) for choice, answer in enumerate(self._answers or [{}])]
        self.mark(self._made)
        return self._made

    def _step(self, choice: int, answer: Mapping[str, Any]) -> Step:
        status = self._outcome or "abandoned"
        own_fields = {
            "id": f"{self._id}.{choice}",
            "call_id": self._id,
            "choice": choice,
            "agent": self.agent,
            "response_id": self.response_id,
            "started_at": datetime.fromtimestamp(self._started_at, timezone.utc),
            "latency": None if self._ended_at is None else nanoseconds(self._ended_at - self.began),
            "status": "superseded" if self._superseded and status == "ok" else status,
            "error": self._error,
            "metadata": dict(self._metadata_of_steps()),
        }
        step = step_of(own_fields, (self.facts, answer))
        step.trainable = self._trainable
        if step.token_issue is None and step.completion_token_ids is None:
            # No issue where the framework reported ids, as it does for a local model.
            amend(step, token_issue=_UNSEEN[status == "cached"])
        return step
