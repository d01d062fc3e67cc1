"""Frames for the agent runs, model calls and tool runs that framework hooks report, and the guard for such hooks.

The hook that reports a start creates the frame; the hook that reports the end ends it.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace import credentials, guard
from rollout_trace._wrong_use import block
from rollout_trace.data import episodes
from rollout_trace.data.model import (
    ErrorInfo,
    Step,
    StepStatus,
    TokenIssue,
    ToolRun,
    amend,
    error_info,
    nanoseconds,
    new_id,
)
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record import lifecycle, program
from rollout_trace.record.call import Failure
from rollout_trace.record.scope import Frame
from rollout_trace.record.state import log_of, state_of
from rollout_trace.record.unseen import step_of

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import Call


F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = "interrupted"
"""``stop_reason`` of a run that waits, for a person or for a result from elsewhere, and may go on in another one."""
_WAITS_FOR = "waits_for"
_CONVERSATION = "conversation_id"


class AgentFrame(Frame):
    """One run of an agent.

    Inside another frame it opens a child trajectory. Directly inside a ``with rt.trajectory()`` block it records into
    that block's trajectory. Outside both it opens a root trajectory.
    """

    def __init__(
        self,
        name: str | None,
        *,
        parent: Frame | None = None,
        metadata: Mapping[str, Any] | None = None,
        conversation: object = None,
        auxiliary: bool = False,
    ) -> None:
        """Begins the frame of an agent run.

        Args:
            name: name of the agent.
            parent: the enclosing frame; by default the active one of this context.
            metadata: for the ``metadata`` of the trajectory, if the frame opens one.
            conversation: the framework's id of the thread, session or conversation that the run belongs to; None or
                empty without one. Runs that continue each other share it, even across processes. It becomes
                ``metadata["conversation_id"]`` of the run's trajectory.
            auxiliary: True for work beside the agent's own, such as a judge's. In a trajectory that the frame opens,
                and in those inside it, no step is ``trainable``; a trajectory without any records is left out.
        """
        super().__init__(parent, name)
        self._outer = self.trajectory
        self._is_auxiliary = auxiliary
        self._is_owned = self.parent is not None or self.trajectory is None
        if self._is_owned:
            self.trajectory = Trajectory(name=str(name) if name else "agent")
            lifecycle.begin(self.trajectory, self._outer)
            # Metadata that a trajectory refuses (two keys that are one in JSON, say) must not cost the recording.
            own = self.trajectory
            guard.run_all("metadata", lambda: setattr(own, "metadata", dict(metadata) if metadata else None))
        elif self.trajectory is not None and self.trajectory.stop_reason == INTERRUPTED:
            # The run that was interrupted goes on in the same block.
            self.trajectory.stop_reason = None
            guard.run_all("metadata", partial(_add_metadata, self.trajectory, _WAITS_FOR, None))
        if conversation and self.trajectory is not None:
            guard.run_all("metadata", partial(_add_metadata, self.trajectory, _CONVERSATION, str(conversation)))
        if not auxiliary:
            # An auxiliary one ends with the frames around it, and its trajectory is to be left out if it is empty.
            self._enlist()

    def interrupt(self, waits_for: Sequence[Any]) -> None:
        """Notes that the run ends because it waits for an approval, an answer, or a result from elsewhere.

        Its trajectory gets the ``stop_reason`` ``interrupted``, unless the user has set another one. A later run in the
        same ``with rt.trajectory()`` block removes it.

        Args:
            waits_for: what the run waits for, in the framework's form, for ``metadata["waits_for"]``; must fit JSON.
        """
        trajectory = self.trajectory
        if trajectory is None or trajectory.stop_reason not in (None, INTERRUPTED):
            return
        trajectory.stop_reason = INTERRUPTED
        found = [*((trajectory.metadata or {}).get(_WAITS_FOR) or ()), *waits_for]
        guard.run_all("metadata", partial(_add_metadata, trajectory, _WAITS_FOR, found))

    def abandon(self) -> None:
        """Ends a run whose end no hook reported. A trajectory that the frame opened becomes ``aborted``."""
        if self.is_open and self._is_owned and self.trajectory is not None and self.trajectory.status == "running":
            self.trajectory.status = "aborted"
        self.end()

    def _ended(self, error: BaseException | None) -> None:
        log = log_of(self.trajectory)
        # In a forked copy of the process the trajectory is left alone: the original process closes and writes it.
        if self._is_owned and self.trajectory is not None and (log is None or log.is_ours):
            is_left_out = self._is_auxiliary and lifecycle.discard(self.trajectory, self._outer)
            if self._is_auxiliary and not is_left_out:
                lifecycle.change_episode(self.trajectory, episodes.leave_out)
            if not is_left_out:
                lifecycle.finish(self.trajectory, self._outer, error)
        # Context variables may reference the ended frame for long; it must not keep the outer trajectory alive.
        self._outer = None


def _add_metadata(trajectory: Trajectory, key: str, value: Any) -> None:
    """Sets one key; None takes it out. A conversation that is named already stays."""
    metadata = dict(trajectory.metadata or {})
    if value is None:
        metadata.pop(key, None)
    elif key != _CONVERSATION:
        metadata[key] = value
    else:
        metadata.setdefault(key, value)
    trajectory.metadata = metadata or None


class ToolFrame(Frame):
    """One execution of a tool. An ``AgentFrame`` that begins inside it is a sub-agent."""

    def __init__(
        self,
        name: str | None,
        *,
        tool_call_id: str | None = None,
        arguments: Any = None,
        parent: Frame | None = None,
    ) -> None:
        """Begins the frame of a tool run.

        Args:
            name: name of the tool.
            tool_call_id: the model's id of the tool call; links the run to the step that requested it.
            arguments: the tool's arguments; not copied.
            parent: the enclosing frame; by default the active one of this context.
        """
        super().__init__(parent, None)
        if self.trajectory is None:
            self.trajectory = program.opened()
        self.run = ToolRun(
            name=name, tool_call_id=tool_call_id, arguments=arguments, started_at=datetime.now(timezone.utc)
        )
        """The record of the run. Set its ``result`` before the frame ends: a string, or any JSON value."""
        self._began = time.perf_counter()
        if self.trajectory is not None:
            self.trajectory.tool_runs.append(self.run)

    def _ended(self, error: BaseException | None) -> None:
        self.run.duration = nanoseconds(time.perf_counter() - self._began)
        if error is not None:
            self.run.error = error_info(error)
        state = None if self.trajectory is None else state_of(self.trajectory)
        if state is not None and state.journal is not None:
            state.journal.tool_run(self.run)


_UNSEEN = {
    True: TokenIssue(code="cached", message="the framework answered without calling the model."),
    False: TokenIssue(
        code="not_on_wire",
        message="the bytes of this call were not seen: its framework's client is not wrapped, or its SDK is not known.",
    ),
}
"""Why a step made from a framework's data has no ids; the key is whether the answer came from its cache."""


class ModelFrame(Frame):
    """One model call of a framework.

    Content, ids and logprobs come from the recorded bytes. The frame adds the agent's name, metadata, and whether the
    framework discarded the answer. If no bytes were recorded, steps are made from the framework's data.
    """

    holds_others = False
    """False: a model call has no children."""
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
            after: the previous frame of a batch in which all frames begin first and the calls are then made in order.
            metadata: additional entries for the steps' ``metadata``.
            trainable: ``trainable`` of its steps; False for a call that is not the agent's own, such as a judge's.
            **facts: fields of ``Step`` in the shape of OpenAI's chat, used if the call's bytes are not recorded:
                ``messages``, ``tools``, ``model``, ``sampling``.
        """
        super().__init__(parent, agent)
        self.metadata: dict[str, Any] = {"framework": framework, **metadata} if metadata else {"framework": framework}
        """Entries for the ``metadata`` of the steps."""
        self.calls: list[Call] = []
        """Recorded calls that began in its context."""
        self.response_id: str | None = None
        """The provider's id of the answer, if the framework reported it."""
        self.began = time.perf_counter()
        """Start of the call, in seconds."""
        self._started = datetime.now(timezone.utc)
        self._after = after
        self.facts = facts
        """Fields of ``Step``, used if the call's bytes are not recorded; more may be added until the frame ends."""
        self._answers: list[Mapping[str, Any]] = []
        self._outcome: StepStatus | None = None
        self._error: ErrorInfo | None = None
        self._superseded = False
        self._trainable = trainable
        self._ended_at: float | None = None
        self._made: list[Step] | None = None
        self.is_arriving = False
        """Set by the integration when the answer begins to arrive; later calls here belong to the consumer."""
        self._enlist()

    @property
    def takes_calls(self) -> bool:  # type: ignore[override]
        """False once the answer arrives, and after a cancelled call, since few frameworks report cancellations."""
        if self.is_arriving:
            return False
        last = self.calls[-1].failure if self.calls else None
        return last is None or last.kind != "cancelled"

    @property
    def step_id(self) -> str:
        """Id of the step for the answer, known even before the answer; with several choices, that of the first."""
        return f"{self.calls[-1].id if self.calls else self._id}.0"

    @property
    def _id(self) -> str:
        """Id of the call, if its bytes are not seen. Generated on first use, because most are seen."""
        # One atomic operation: tools that run in several threads may ask for it at once.
        return self._own_id or self.__dict__.setdefault("_own_id", new_id())

    def tell(self, **facts: Any) -> None:
        """Adds fields of ``Step``, used if the call's bytes are not recorded, however the call ends."""
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
        """Sets the answer as the framework reports it. Call it before ``end``.

        Args:
            *answers: one mapping per choice with fields of ``Step``: ``completion``, ``finish_reason``, ``usage``,
                ``response_model``, ``logprobs``. Used only if no bytes were recorded.
            response_id: the provider's id of the answer; it matches the frame to its call if the context was lost.
            cached: True if the framework answered without calling the model.
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
        """Ends a frame without a reported outcome. Recorded calls keep theirs; one without bytes is ``abandoned``."""
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
        """Adds the framework's metadata to the steps of each matched call. ``seen`` has the steps by call."""
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
        """Steps made from the framework's data, for a frame without a recorded call; empty until the frame ends."""
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
            "started_at": self._started,
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


def guarded(function: F) -> F:
    """Decorates an integration's hook: its exceptions are logged and counted, not raised into the agent.

    After an exception, the hook returns None. Under pytest the exception is raised.
    """

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as failure:
            guard.failed(function.__qualname__, None, failure)
            return None

    return safe  # type: ignore[return-value]


@block
def tool_run(name: str, *, tool_call_id: str | None = None, arguments: Any = None) -> _GeneratorContextManager[ToolRun]:
    """Records and times one execution of a tool in the current trajectory. Set ``result`` on the yielded ``ToolRun``.

    An exception of the tool is recorded and re-raised. Outside a trajectory, the run is yielded but not recorded. A run
    that begins or ends after its trajectory has closed causes a warning, because an already written file lacks the run
    or its result.

    Args:
        name: name of the tool.
        tool_call_id: the model's id of the tool call; links the run to the step that requested it.
        arguments: the tool's arguments; copied.

    Raises:
        TypeError: a function stands where the name should.
    """
    if callable(name):
        # Of `@rt.tool_run` without arguments, the function would never run.
        raise TypeError(
            f"rt.tool_run() takes the tool's name, a text, as its first argument. Got {name!r:.80}. Write "
            '`with rt.tool_run("search") as run: run.result = search(...)` where the tool is called.'
        )
    return _tool_run(name, tool_call_id, arguments)


@contextmanager
def _tool_run(name: str, tool_call_id: str | None, arguments: Any) -> Iterator[ToolRun]:
    try:
        # A tool may change them.
        arguments = copy.deepcopy(arguments)
    except Exception:  # They cannot be copied: as they are.
        pass
    with ToolFrame(name, tool_call_id=tool_call_id, arguments=arguments) as frame:
        trajectory = frame.trajectory
        _warn_if_closed(trajectory, name, "began")
        try:
            yield frame.run
        finally:
            _warn_if_closed(trajectory, name, "ended")


def _warn_if_closed(trajectory: Trajectory | None, name: str, what: str) -> None:
    if trajectory is None or trajectory.is_open:
        return
    state = state_of(trajectory)
    named = f"{trajectory.name!r} ({trajectory.id})"
    if state is not None and state.log is not None:
        guard.warn_once(
            "tool-run-in-a-fork",
            f"tool run {name!r} {what} in a process that was forked inside its trajectory {named}, which belongs to "
            "the other process. So the run is recorded nowhere. Use rt.tool_run in the other process, around the code "
            "that waits for this one.",
        )
    else:
        opened_at = None if state is None else state.opened_at
        guard.warn_once(
            "tool-run-after-close",
            f"tool run {name!r} {what} when its trajectory {named}, opened at {opened_at}, had closed. The file has "
            "only part of it, or nothing. End tool runs inside the `with rt.trajectory()` block.",
        )
