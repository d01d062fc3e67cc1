"""One attempt at one epoch of a sample: its trajectory."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any

from inspect_ai.hooks import SampleAttemptStart
from inspect_ai.log import EvalSample, EvalSpec, transcript

from rollout_trace.integration import AgentFrame, ErrorInfo, Frame, enter, entered, guarded, snapshot
from rollout_trace_inspect import scores
from rollout_trace_inspect.events import EventFrames
from rollout_trace_inspect.judges import mark_judges
from rollout_trace_inspect.settings import Settings

_current: ContextVar[SampleRun | None] = ContextVar("rollout_trace_inspect_sample", default=None)


def current_sample() -> SampleRun | None:
    """The recorded sample that runs in this context."""
    run = _current.get()
    return run if run is not None and run.is_open else None


class SampleRun:
    """An attempt that begins in this context, which its solvers and scorers share. It is ended there, too.

    Args:
        start: the hook's data.
        spec: of the task; None if no hook was called when it began.
        sample: Inspect's ``ActiveSample``.
        api: of the model that is evaluated.
        settings: how it is recorded.
    """

    def __init__(
        self, start: SampleAttemptStart, spec: EvalSpec | None, sample: Any, api: Any, settings: Settings
    ) -> None:
        self.eval_id = start.eval_id
        self.run_id = start.run_id
        self.api = api
        self.settings = settings
        self._first_scorer = None if spec is None or not spec.scorers else spec.scorers[0].name.split("/")[-1]
        self._before = entered()
        # A frame around it: inside a `with rt.trajectory()`, too, each sample has a trajectory of its own.
        self._around = Frame(None, None)
        # Releases before the agent's name was known have none.
        name = getattr(sample, "agent_name", None) or sample.task
        self._root = AgentFrame(name, parent=self._around, metadata=_metadata(start, spec, sample))
        self._describe(start, spec, sample)
        self._events = EventFrames(self._root)
        self._unsubscribe = transcript()._subscribe(self._events)
        self._root.enter()
        mark_judges()
        _current.set(self)

    @property
    def is_open(self) -> bool:
        """Whether the attempt is still open."""
        return self._root.is_open

    def _describe(self, start: SampleAttemptStart, spec: EvalSpec | None, sample: Any) -> None:
        trajectory, row = self._root.trajectory, sample.sample
        if trajectory is None:
            return
        data = {
            "id": f"{sample.task}/{row.id}",
            "input": row.input,
            "target": row.target,
            "choices": row.choices,
            "metadata": row.metadata,
        }
        trajectory.task = snapshot({key: value for key, value in data.items() if value is not None})
        # Inspect keeps the task's id in retries: the epochs of a sample are one group, in however many logs they are.
        task_id = start.eval_id if spec is None else spec.task_id
        trajectory.group_id = f"{task_id}/{row.id}"
        trajectory.rollout_index = start.summary.epoch - 1

    @guarded
    def finish(self, sample: EvalSample) -> None:
        """Ends the trajectory of a sample that ran to its end, or whose last attempt failed, with its scores."""
        trajectory = self._root.trajectory
        if trajectory is not None:
            trajectory.reward, numbers, others = scores.rewards(sample.scores or {}, self._first_scorer)
            trajectory.rewards = numbers or None
            if others:
                trajectory.metadata = {**(trajectory.metadata or {}), "scores": others}
            if sample.limit is not None:
                trajectory.stop_reason = f"{sample.limit.type}_limit"
        self._end(sample.error)

    @guarded
    def fail(self, error: Any) -> None:
        """Ends the trajectory of an attempt that another one follows. ``error``: Inspect's ``EvalError``."""
        self._events.supersede()
        self._end(error)

    @guarded
    def abandon(self) -> None:
        """Ends the trajectory of an attempt whose end no hook reported."""
        self._root.abandon()
        self._end(None)

    def _end(self, error: Any) -> None:
        """``error``: an ``EvalError``, which has the message alone, or None."""
        trajectory, raised = self._root.trajectory, self._events.error
        if error is None:
            raised = None
        elif raised is None and trajectory is not None:
            trajectory.status, trajectory.error = "failed", ErrorInfo(type="error", message=error.message)
        self._root.end(raised)
        self._around.end()
        self._unsubscribe()
        if _current.get() is self:
            _current.set(None)
            enter(self._before)


def _metadata(start: SampleAttemptStart, spec: EvalSpec | None, sample: Any) -> dict[str, Any]:
    """Returns the metadata that links the trajectory to the log."""
    found = {
        "log": os.path.basename(sample.log_location) if sample.log_location else None,
        "task": sample.task,
        "model": sample.model,
        "sample_id": snapshot(start.summary.id),
        "sample_uuid": start.sample_id,
        "epoch": start.summary.epoch,
        "attempt": start.attempt,
        "eval_id": start.eval_id,
        "run_id": start.run_id,
        "task_id": None if spec is None else spec.task_id,
        "eval_set_id": start.eval_set_id,
    }
    return {"inspect": {key: value for key, value in found.items() if value is not None}}
