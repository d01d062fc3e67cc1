"""What a framework is doing, as its hooks tell it: an agent runs, a model is called, a tool runs.

This is the contract for integrations. A frame is made when the framework says that something begins, and ended when it
says that it is over. Frames know their trajectory; a call on a wrapped client belongs to the innermost frame of its
context. The wire has the truth about a model call, the frame adds its structure: the agent, what the framework threw
away or answered from its cache. A model call whose bytes were not seen becomes a step of what the framework said.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timezone
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace import guard
from rollout_trace.call import Failure, new_id
from rollout_trace.model import ErrorInfo, Step, StepStatus, TokenIssue, ToolRun, amend, error_info, nanoseconds
from rollout_trace.recordings import write_closed
from rollout_trace.trajectories import Trajectory, close_trajectory, open_trajectory

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.call import Call

F = TypeVar("F", bound=Callable[..., Any])

current_scope: ContextVar[Trajectory | None] = ContextVar("rollout_trace_trajectory", default=None)
"""The trajectory whose ``with rt.trajectory()`` block this context is in."""
_entered: ContextVar[Frame | None] = ContextVar("rollout_trace_frame", default=None)


def active() -> Frame | None:
    """The innermost frame of this context that has not ended; None where the user opened a trajectory inside it."""
    frame = _nearest(_entered.get())
    return frame if frame is not None and frame.scope is current_scope.get() else None


def _nearest(frame: Frame | None) -> Frame | None:
    while frame is not None and not (frame.is_open and frame.takes_calls):
        frame = frame.parent
    return frame


def here() -> Trajectory | None:
    """The trajectory of this context: that of the active frame, or of the ``with`` block around."""
    frame = active()
    return current_scope.get() if frame is None else frame.trajectory


def enter(frame: Frame | None) -> Frame | None:
    """Makes a frame this context's, and gives the one before."""
    before = _entered.get()
    _entered.set(frame)
    return before


def entered() -> Frame | None:
    """The frame that this context entered last, open or not."""
    return _entered.get()


def begin(trajectory: Trajectory, parent: Trajectory | None) -> None:
    """Opens a trajectory, as a child of the one around it."""
    if parent is not None:
        parent._opened_inside += 1
    if parent is not None and parent._log is not None:
        trajectory.episode_id, trajectory.parent_id = parent.episode_id, parent.id
        trajectory.parent_step_id = parent._log.last_step_id()
    try:
        open_trajectory(trajectory)
    except Exception as failure:
        guard.failed("open", None, failure)


def finish(trajectory: Trajectory, parent: Trajectory | None, error: BaseException | None) -> None:
    """Closes a trajectory and hands it on. What could not be completed is written as it is."""
    try:
        try:
            close_trajectory(trajectory, error)
        finally:
            write_closed(trajectory, parent)
    except Exception as failure:
        guard.failed("close", None, failure)


_UNSEEN = {
    True: TokenIssue(code="cached", message="the framework answered without calling the model."),
    False: TokenIssue(
        code="not_on_wire",
        message="the bytes of this call were not seen: its framework's client is not wrapped, or of no known SDK.",
    ),
}
"""Why a step that a framework told of has no ids, by whether it answered from its cache."""


class Frame:
    """Something that a framework does. Thread safe where the framework calls its hooks in order."""

    def __init__(self, parent: Frame | None, agent: str | None) -> None:
        around = active() if parent is None else _nearest(parent)
        # A model call is not a place where other things happen, though a context may still be in one.
        self.parent: Frame | None = around.parent if isinstance(around, ModelFrame) else around
        """The frame around this one: the given one, or the active one of this context."""
        self.agent: str | None = agent if agent is not None or self.parent is None else self.parent.agent
        """Name of the agent that does it."""
        self.scope = current_scope.get()
        self.trajectory: Trajectory | None = self.scope if self.parent is None else self.parent.trajectory
        """Where it is recorded; None where there is no trajectory, or when the frame has ended."""
        self.is_open = True
        self._inner: dict[Frame, None] = {}
        if self.parent is not None:
            self.parent._inner[self] = None

    @property
    def takes_calls(self) -> bool:
        """Whether what happens in its context is still its own."""
        return True

    def enter(self) -> Self:
        """Makes the frame this context's: calls made in it, and in contexts copied from it, belong to the frame.

        Nothing needs to be undone: a frame that has ended gives way to the one around it.
        """
        enter(self)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """It is over, and so is all that went on inside; ``error`` is what ended it. Only the first end counts."""
        if not self.is_open:
            return
        for inner in list(self._inner):
            inner.abandon()
        self.is_open = False
        if self.parent is not None:
            self.parent._inner.pop(self, None)
        try:
            self._ended(error)
        except Exception as failure:
            guard.failed("end", None, failure)
        self.trajectory = None

    def abandon(self) -> None:
        """What was around it is over, and nobody said how this ended."""
        self.end()

    def forget(self) -> None:
        """Lets go of what it holds: its trajectory is closed, and a context may know the frame for long."""

    def _enlist(self) -> None:
        """Has its trajectory end it, and look at what it says, if nobody does before."""
        if self.trajectory is not None and self.trajectory._log is not None:
            self.trajectory._log.frames.append(self)

    def _ended(self, error: BaseException | None) -> None:
        """What kinds of frames do at their end."""

    def __enter__(self) -> Self:
        self._before = _entered.get()
        return self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)
        # Not reset(token): a generator may leave the block in another context than it entered.
        enter(self._before)


class AgentFrame(Frame):
    """A run of an agent.

    Inside another agent's run it has a trajectory of its own, a child of that one's. Directly inside a
    ``with rt.trajectory()`` block that trajectory is the agent's; with neither, the run opens a trajectory.
    """

    def __init__(
        self, name: str | None, *, parent: Frame | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(parent, name)
        self._outer = self.trajectory
        self._is_owned = self.parent is not None or self.trajectory is None
        if self._is_owned:
            self.trajectory = Trajectory(name=str(name) if name else "agent")
            begin(self.trajectory, self._outer)
            # What the framework says of the run is not worth the run.
            guard.each("metadata", partial(_describe, self.trajectory, metadata))
        self._enlist()

    def abandon(self) -> None:
        """The run ended without a word: its own trajectory is ``aborted``."""
        if self.is_open and self._is_owned and self.trajectory is not None and self.trajectory.status == "running":
            self.trajectory.status = "aborted"
        self.end()

    def _ended(self, error: BaseException | None) -> None:
        log = None if self.trajectory is None else self.trajectory._log
        # A forked process leaves the block: the trajectory is its parent's, who closes and writes it.
        if self._is_owned and self.trajectory is not None and (log is None or log.is_ours):
            finish(self.trajectory, self._outer, error)
        # A context may know the frame for long.
        self._outer = None


def _describe(trajectory: Trajectory, metadata: Mapping[str, Any] | None) -> None:
    trajectory.metadata = dict(metadata) if metadata else None


class ModelFrame(Frame):
    """A call of a model, as the framework sees it."""

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
        from rollout_trace.framework_facts import step_of

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


class ToolFrame(Frame):
    """A run of a tool. What runs inside it is another agent's, if the framework says an agent begins."""

    def __init__(
        self,
        name: str | None,
        *,
        tool_call_id: str | None = None,
        arguments: Any = None,
        parent: Frame | None = None,
    ) -> None:
        super().__init__(parent, None)
        self.run = ToolRun(
            name=name, tool_call_id=tool_call_id, arguments=arguments, started_at=datetime.now(timezone.utc)
        )
        """Set its ``result`` before the end: a text, or what JSON can hold."""
        self._began = time.perf_counter()
        if self.trajectory is not None:
            self.trajectory.tool_runs.append(self.run)

    def _ended(self, error: BaseException | None) -> None:
        self.run.duration = nanoseconds(time.perf_counter() - self._began)
        if error is not None:
            self.run.error = error_info(error)


def guarded(function: F) -> F:
    """For an integration's hooks: a failure of theirs is the recorder's, never the agent's. It is logged and counted,
    and under pytest raised."""

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as failure:
            guard.failed(function.__qualname__, None, failure)
            return None

    return safe  # type: ignore[return-value]
