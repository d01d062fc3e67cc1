"""Inspect's hooks, which open and close the trajectories of samples."""

from __future__ import annotations

import functools

from inspect_ai.hooks import Hooks, RunEnd, SampleAttemptEnd, SampleAttemptStart, SampleEnd, TaskEnd, TaskStart, hooks
from inspect_ai.log import EvalSpec
from inspect_ai.log._samples import sample_active
from inspect_ai.model import get_model

from rollout_trace.integration import guarded
from rollout_trace_inspect import models, settings
from rollout_trace_inspect.files import Files
from rollout_trace_inspect.samples import SampleRun


class RolloutHooks(Hooks):
    """The only instance serves every evaluation: runs are found by the uuid of their sample."""

    def __init__(self) -> None:
        self._files = Files()
        self._specs: dict[str, EvalSpec] = {}
        self._samples: dict[str, SampleRun] = {}

    def enabled(self) -> bool:
        """Whether anything is to be recorded."""
        return settings.is_on()

    async def on_task_start(self, data: TaskStart) -> None:
        """Keeps the task's specification for its samples."""
        self._specs[data.eval_id] = data.spec

    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        """Opens a trajectory. Awaited in the context of the solvers and scorers."""
        self._begin(data)

    @guarded
    def _begin(self, data: SampleAttemptStart) -> None:
        sample, api = sample_active(), get_model().api
        chosen = settings.settings_for(api)
        if chosen is None or sample is None:
            return
        if self._files.use(data.eval_id, sample.log_location, chosen.path):
            self._samples[data.sample_id] = SampleRun(data, self._specs.get(data.eval_id), sample, api, chosen)

    async def on_sample_attempt_end(self, data: SampleAttemptEnd) -> None:
        """Closes the trajectory of an attempt that another one follows."""
        if data.will_retry and (run := self._samples.pop(data.sample_id, None)) is not None:
            run.fail(data.error)

    async def on_sample_end(self, data: SampleEnd) -> None:
        """Closes the trajectory of a sample, with its scores."""
        if (run := self._samples.pop(data.sample_id, None)) is not None:
            run.finish(data.sample)

    async def on_task_end(self, data: TaskEnd) -> None:
        """Closes the file beside the log."""
        self._abandon(data.eval_id)
        await self._files.close(data.eval_id)

    async def on_run_end(self, data: RunEnd) -> None:
        """Closes what is left: a task that was cancelled has no end of its own."""
        self._abandon(None)
        self._specs.clear()
        await self._files.close(None)

    def _abandon(self, eval_id: str | None) -> None:
        """Ends the samples of an evaluation, or of all, whose end no hook reported."""
        if eval_id is not None:
            self._specs.pop(eval_id, None)
        for uuid, run in [*self._samples.items()]:
            if eval_id is None or run.eval_id == eval_id:
                del self._samples[uuid]
                run.abandon()


@functools.cache
def register() -> None:
    """Registers the hooks with Inspect, once.

    Not when the module is imported: Inspect counts registered hooks for its users, those that are off too.
    """
    description = "records the samples of evaluations as trajectories (rollout-trace)"
    hooks(name="rollout_trace", description=description)(RolloutHooks)
    models.install()
