"""A call of a model, as a framework's hooks report it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

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
"""Why a step that a framework told of has no ids, by whether it answered from its cache."""


class ModelFrame(Frame):
    """A call of a model, as the framework sees it.

    The wire has the truth about the call; the frame adds its structure: the agent, what the framework threw away or
    answered from its cache. A call whose bytes were not seen becomes steps of what the framework reported.
    """

    holds_others = False

    def __init__(
        self,
        framework: str,
        *,
        parent: Frame | None = None,
        agent: str | None = None,
        after: ModelFrame | None = None,
        metadata: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """A model call begins.

        Args:
            framework: its name, for ``step.metadata["framework"]``.
            parent: the frame around it; the active one of this context where it is not given.
            agent: who calls; that of the parent where it is not given.
            after: the call before it in a batch that is begun at once and then made in order.
            metadata: what else the framework says of the call, for the steps' ``metadata``.
            **facts: fields of ``Step`` for a call whose bytes are not seen: ``messages``, ``tools``, ``model``,
                ``sampling``; in chat's shape.
        """
        super().__init__(parent, agent)
        self.metadata = {"framework": framework, **(metadata or {})}
        self.calls: list[Call] = []
        self.response_id: str | None = None
        self.began = time.perf_counter()
        self._started = datetime.now(timezone.utc)
        self._after = after
        self.facts = facts
        """Fields of ``Step`` for a call whose bytes are not seen; they may be completed until the end."""
        self._answers: list[Mapping[str, Any]] = []
        self._outcome: StepStatus | None = None
        self._error: ErrorInfo | None = None
        self._superseded = False
        self._latency: float | None = None
        self._made: list[Step] | None = None
        self.is_arriving = False
        """The framework has the first piece of the answer: the calls that follow in its context are its consumer's."""
        self._id = new_id()
        self._enlist()

    @property
    def takes_calls(self) -> bool:
        """Not once its answer arrives, nor after its call was cancelled: few frameworks tell of that."""
        if self.is_arriving:
            return False
        last = self.calls[-1].failure if self.calls else None
        return last is None or last.kind != "cancelled"

    @property
    def step_id(self) -> str:
        """Id that the step of its answer has, or will have; of several the first."""
        return f"{self.calls[-1].id if self.calls else self._id}.0"

    def tell(self, **facts: Any) -> None:
        """More fields of ``Step`` for a call whose bytes are not seen, as they become known; however it ends."""
        self.facts.update(facts)

    def _enlist(self) -> None:
        super()._enlist()
        log = log_of(self.trajectory)
        if log is not None:
            log.model_frames.append(self)

    def join(self, call: Call) -> None:
        """A call on a wrapped client begins inside: it is what this frame, or one before it in a batch, is about."""
        frame, waiting = self, self._after
        while waiting is not None:
            if waiting.is_open and not waiting.calls:
                frame = waiting
            waiting = waiting._after
        frame.calls.append(call)

    def answered(self, *answers: Mapping[str, Any], response_id: str | None = None, cached: bool = False) -> None:
        """What the framework says the model answered, to be told before ``end``.

        Args:
            *answers: for each choice fields of ``Step``: ``completion``, ``finish_reason``, ``usage``,
                ``response_model``, ``logprobs``. Used where no bytes were seen.
            response_id: the provider's; joins the frame to its call where the context did not carry over.
            cached: the framework answered without calling the model.
        """
        self._answers = list(answers)
        self.response_id = None if response_id is None else str(response_id)
        self._outcome = "cached" if cached else "ok"
        if cached:
            # Those that the context gave it are of another call of its batch.
            self.calls = []

    def supersede(self) -> None:
        """The framework throws the answer away, and asks again. May be said after the end."""
        self._superseded = True

    def failed(self, error: BaseException) -> None:
        """The framework could make nothing of an answer that arrived whole. May be said after the end."""
        self._error = self._error or error_info(error)

    def abandon(self) -> None:
        """Nobody said how the call ended: what was seen on the wire says it; with nothing seen it is abandoned."""
        if self.is_open and self._outcome is None:
            self._outcome = "abandoned"
        self.end()

    def _ended(self, error: BaseException | None) -> None:
        self._latency = nanoseconds(time.perf_counter() - self.began)
        if error is not None:
            self._error = error_info(error)
            kind = Failure.of(error).kind
            self._outcome = "abandoned" if kind == "closed" else kind

    def forget(self) -> None:
        """Of its calls and answers."""
        self.calls, self._answers, self.facts, self._made = [], [], {}, []
        self._after = self._error = None

    def mark_all(self, seen: Sequence[list[Step]]) -> None:
        """Puts what the framework knows on the steps of each of its calls."""
        for steps in seen:
            self.mark(steps)

    def mark(self, steps: list[Step]) -> None:
        """Puts what the framework knows on the steps of its calls."""
        for step in steps:
            if step.metadata is None or "framework" not in step.metadata:
                amend(step, metadata={**(step.metadata or {}), **self.metadata})
            if self.agent is not None:
                amend(step, agent=self.agent)
            if self._superseded and step.status == "ok":
                amend(step, status="superseded")
            if self._error is not None and step.status == "ok" and step.error is None:
                # It arrived whole; what the framework made of it failed.
                amend(step, error=self._error)

    def steps(self) -> list[Step]:
        """The steps of a call whose bytes were not seen, of what the framework said; none while it runs."""
        if self.is_open:
            return []
        if self._made is None:
            self._made = [self._step(choice, answer) for choice, answer in enumerate(self._answers or [{}])]
        self.mark(self._made)
        return self._made

    def _step(self, choice: int, answer: Mapping[str, Any]) -> Step:
        status = self._outcome or "abandoned"
        known = {
            "id": f"{self._id}.{choice}",
            "call_id": self._id,
            "choice": choice,
            "agent": self.agent,
            "response_id": self.response_id,
            "started_at": self._started,
            "latency": self._latency,
            "status": "superseded" if self._superseded and status == "ok" else status,
            "error": self._error,
            "metadata": dict(self.metadata),
        }
        step = step_of(known, (self.facts, answer))
        if step.token_issue is None and step.completion_token_ids is None:
            # A local model's ids, which the framework gives, need no wire.
            amend(step, token_issue=_UNSEEN[status == "cached"])
        return step
