"""Records cases of pydantic_evals: one trajectory for each, with the evaluators' results as rewards."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from pydantic_evals import Dataset
from pydantic_evals.evaluators import EvaluatorContext
from pydantic_evals.lifecycle import CaseLifecycle
from pydantic_evals.reporting import ReportCase, ReportCaseFailure

from rollout_trace.integration import AgentFrame, ErrorInfo, Frame, Trajectory, current_scope, guarded, snapshot


class RolloutLifecycle(CaseLifecycle[Any, Any, Any]):
    """Records the cases of an evaluation: ``dataset.evaluate_sync(task, lifecycle=RolloutLifecycle)``.

    Each run of a case is its own trajectory, however its task calls the model. Calls made by evaluators, such as an
    ``LLMJudge``, are in a child trajectory and are not trained on.
    """

    _root: AgentFrame | None = None
    _judges: AgentFrame | None = None
    _before: Trajectory | None = None

    def reward(self, result: ReportCase[Any, Any, Any]) -> float | None:
        """Returns the trajectory's ``reward``. Override it if a case has several results.

        Args:
            result: the case's result, with ``scores`` and ``assertions`` by name.

        Returns:
            The only score or assertion (1 or 0); None if there are several, or if an evaluator failed.
        """
        found = [*result.scores.values(), *result.assertions.values()]
        return float(found[0].value) if len(found) == 1 and not result.evaluator_failures else None

    async def setup(self) -> None:
        """Opens the trajectory. Awaited in the context that the task and the evaluators run in."""
        self._begin()

    async def prepare_context(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorContext[Any, Any, Any]:
        """Records later calls as the evaluators'."""
        self._begin_evaluation()
        return ctx

    async def teardown(self, result: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any] | None) -> None:
        """Closes the trajectory, with the results as rewards."""
        # Without a result, what ended the case is on its way to the caller.
        self._finish(result, sys.exc_info()[1] if result is None else None)

    @guarded
    def _begin(self) -> None:
        # A frame around it: inside a `with rt.trajectory()`, too, each case has a trajectory of its own.
        self._root = AgentFrame("case", parent=Frame(None, None))
        self._before = current_scope.get()
        # As a block of the user's own would: the outermost agent of the task records into it.
        current_scope.set(self._root.trajectory)
        if self._root.trajectory is not None and self.case.name is not None:
            self._set_task(self._root.trajectory, self.case.name)

    @guarded
    def _begin_evaluation(self) -> None:
        if self._root is not None:
            self._judges = AgentFrame("evaluators", parent=self._root, auxiliary=True)
            current_scope.set(self._judges.trajectory)

    @guarded
    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self._root is None:
            return
        try:
            if self._judges is not None:
                self._judges.end(error)
            if result is not None and self._root.trajectory is not None:
                self._describe(self._root.trajectory, result)
        finally:
            self._root.end(error)
            if self._root.parent is not None:
                self._root.parent.end()
            current_scope.set(self._before)

    def _set_task(self, trajectory: Trajectory, name: str) -> None:
        data = {
            "inputs": self.case.inputs,
            "expected_output": self.case.expected_output,
            "metadata": self.case.metadata,
        }
        known = {key: snapshot(value) for key, value in data.items() if value is not None}
        description: Any = {"id": name, **known}
        trajectory.task = description
        # Cases without a name are numbered, from 1 in each dataset.
        digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()
        trajectory.group_id = f"{name}/{digest[:12]}"

    def _describe(self, trajectory: Trajectory, result: Any) -> None:
        """Sets values that only the result has: the number of the run, and its outcome."""
        self._set_task(trajectory, result.source_case_name or result.name)
        number = re.search(r"\[(\d+)/\d+\]$", result.name) if result.source_case_name else None
        trajectory.rollout_index = int(number[1]) - 1 if number else 0
        if isinstance(result, ReportCaseFailure):
            kind, _, message = result.error_message.partition(": ")
            trajectory.status, trajectory.error = "failed", ErrorInfo(type=kind, message=message)
        else:
            self._score(trajectory, result)

    def _score(self, trajectory: Trajectory, result: ReportCase[Any, Any, Any]) -> None:
        numbers = {name: float(one.value) for name, one in [*result.scores.items(), *result.assertions.items()]}
        trajectory.rewards = {**(trajectory.rewards or {}), **numbers} or None
        others = {
            "labels": {name: one.value for name, one in result.labels.items()},
            "reasons": {
                name: one.reason
                for found in (result.scores, result.assertions, result.labels)
                for name, one in found.items()
                if one.reason is not None
            },
            "reward_errors": [f"{one.name}: {one.error_message}" for one in result.evaluator_failures],
        }
        trajectory.metadata = {
            **(trajectory.metadata or {}),
            **{key: one for key, one in others.items() if one},
        } or None
        if trajectory.reward is None:
            trajectory.reward = self.reward(result)


class _Around(RolloutLifecycle):
    """Records the cases of an evaluation that has its own lifecycle, which runs inside this one."""

    def __init__(self, case: Any, inner: Callable[[Any], CaseLifecycle[Any, Any, Any]]) -> None:
        super().__init__(case)
        self._inner = inner(case)

    async def setup(self) -> None:
        await super().setup()
        await self._inner.setup()

    async def prepare_context(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorContext[Any, Any, Any]:
        await super().prepare_context(ctx)
        return await self._inner.prepare_context(ctx)

    async def teardown(self, result: Any) -> None:
        try:
            await self._inner.teardown(result)
        finally:
            await super().teardown(result)


def start() -> Callable[[], None]:
    """Records every case of every evaluation in this process. Returns a function that stops this."""
    base: Any = Dataset.evaluate

    @functools.wraps(base)
    async def evaluate(self: Any, *args: Any, lifecycle: Any = None, **kwargs: Any) -> Any:
        if lifecycle is None:
            lifecycle = RolloutLifecycle
        elif not (isinstance(lifecycle, type) and issubclass(lifecycle, RolloutLifecycle)):
            lifecycle = functools.partial(_Around, inner=lifecycle)
        return await base(self, *args, lifecycle=lifecycle, **kwargs)

    Dataset.evaluate = evaluate  # type: ignore[method-assign]

    def end() -> None:
        if Dataset.evaluate is evaluate:
            Dataset.evaluate = base  # type: ignore[method-assign]

    return end


__all__ = ["RolloutLifecycle"]
