"""Runs an agent as the generate function of slime (624b824a, ``slime/rollout/sglang_rollout.py``) and Miles."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.export import slime
from rollout_trace.report import ExportReport
from rollout_trace.trainers.served import Served, ServedTask, longest, one_of, refuse, scored

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import TrainerOptions
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.groups import Group

_OF_SAMPLE = ("index", "group_index", "rollout_id", "prompt", "response", "metadata", "status")
"""Fields of the export's rows that the sample has already, or that are set here."""


def generate_function(
    agent: Agent,
    *,
    reward: Reward | None = None,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 256,
    several: Literal["longest", "all"] = "longest",
    base_url: str | None = None,
    policy_version: int | str | Callable[[], int | str] | None = None,
    **options: Unpack[TrainerOptions],
) -> Generate:
    """Makes the function that slime and Miles call for each sample, from an agent.

    The agent's task is a dict: ``prompt``, ``label`` and ``metadata`` of the sample, the trainer's ``sampling_params``,
    and ``evaluation``. ``task.base_url`` is the trainer's SGLang router. The sample gets the ids, the loss mask, the
    logprobs, the reward, the run's last answer as ``response``, and the ``metadata`` that ``export.slime`` writes.

    A run that failed, has no reward although ``reward`` is given, or has no sampled ids with logprobs gets the status
    ``failed`` and ``remove_sample``, so that it does not train; its reward, or 0.0, counts in its group's baseline. A
    run that the engine aborted is ``aborted``, and the trainer repeats it.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``. None: the trainer's own reward model scores each successful run.
        output: a new file, folder or address for the rollouts; None: rollouts are not kept.
        in_flight: maximum number of simultaneous rollouts; the trainer's own limit is lower.
        several: what to do with a run that has several rows, from drift, forks and sub-agents. ``longest``: use its own
            row with the most sampled tokens, and count the others in ``report``. ``all``: each becomes a sample with
            the run's reward and ``rollout_id``; slime then normalises rewards over the whole batch, not over groups.
        base_url: address of the model, ending with ``/v1``; None: the router's address in the trainer's arguments.
        policy_version: as for ``rt.rollouts``; the engine's own versions take precedence.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``sglang``.

    Returns:
        The function. A run's ``group_id`` is the sample's ``group_index``, or in an evaluation ``eval/`` and its
        ``index``; ``metadata["slime"]`` has its ``index``.

    Raises:
        TypeError, ValueError, OSError, ImportError: an argument is wrong. Raised before any rollout.
    """
    one_of(several, "longest", "all")
    refuse("generate_function", options, "the trainer decides which rollouts are made")
    given: dict[str, Any] = {"engine": "sglang", "progress": False, **options, "policy_version": policy_version}
    served = Served(agent, reward=reward, output=output, in_flight=in_flight, **given)
    return Generate(served, several, base_url, is_scored=reward is not None)


class Generate:
    """The result of ``generate_function``."""

    def __init__(
        self, served: Served, several: Literal["longest", "all"], base_url: str | None, *, is_scored: bool
    ) -> None:
        self.report = ExportReport()
        """Counts of what the trainer has no place for, over all samples."""
        self._served = served
        self._several = several
        self._base_url = base_url
        self._is_scored = is_scored

    async def __call__(
        self, args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
    ) -> Any:
        """Returns the sample, filled in; with ``several="all"``, a list of samples if a run has several rows."""
        fields = {"prompt": sample.prompt, "label": sample.label, "metadata": sample.metadata}
        key = f"eval/{sample.index}" if evaluation or sample.group_index is None else str(sample.group_index)
        address = self._base_url or f"http://{args.sglang_router_ip}:{args.sglang_router_port}/v1"
        task = ServedTask(
            {**fields, "sampling_params": dict(sampling_params), "evaluation": evaluation},
            base_url=address,
            model="default",
            group=key,
            known={"slime": {"index": sample.index}},
        )
        filled = self._filled(sample, await self._served.make(key, task))
        return filled[0] if len(filled) == 1 else filled

    def _filled(self, sample: Any, group: Group) -> list[Any]:
        (run,) = group.trajectories
        rows = self._rows(run, group)
        is_lost = run.status in NOT_SUCCEEDED - {"aborted"} or not rows or (run.reward is None and self._is_scored)
        if is_lost:
            self.report.note("runs as samples that nothing is learnt from", 1)
        # A copy: its lists become those of a sample.
        rows = rows or [copy.deepcopy(_EMPTY)]
        return [self._sample(sample, run, row, is_lost=is_lost, is_one=len(rows) == 1) for row in rows]

    def _rows(self, run: Trajectory, group: Group) -> list[Mapping[str, Any]]:
        """The rows of a run that are wanted, all with ids and logprobs."""
        if self._several == "longest":
            self.report.drop("trajectories inside another", len(group.inside))
        inner = group.inside if self._several == "all" else ()
        # One by one: a row without logprobs takes them from all the others of a call.
        ones = [self._with_logprobs(one if one is run else scored(one, run)) for one in (run, *inner)]
        parts = [list(slime(one, report=self.report)) for one in ones if one.steps]
        rows: list[Mapping[str, Any]] = [row for part in parts for row in part if row["rollout_log_probs"] is not None]
        found = longest(rows, lambda row: sum(row["loss_mask"]), self.report) if self._several == "longest" else None
        return rows if found is None else [found]

    def _with_logprobs(self, one: Trajectory) -> Trajectory:
        """The trajectory without the steps that are in rows without logprobs alone."""
        if all(step.logprobs is not None for step in one.steps):
            return one
        rows = one.sequences()
        kept = {name for row in rows if row.logprobs is not None for name in row.step_ids}
        lost = {name for row in rows if row.logprobs is None for name in row.step_ids} - kept
        self.report.drop("rows without logprobs", sum(row.logprobs is None for row in rows))
        return replace(one, steps=[step for step in one.steps if step.id not in lost])

    def _sample(self, given: Any, run: Trajectory, row: Mapping[str, Any], *, is_lost: bool, is_one: bool) -> Any:
        sample = given if is_one else copy.deepcopy(given)
        for name, value in row.items():
            if name not in _OF_SAMPLE and hasattr(sample, name):
                setattr(sample, name, value)
        sample.reward = (run.reward or 0.0) if is_lost else run.reward
        sample.status = type(sample).Status("failed" if is_lost else row["status"])
        sample.remove_sample = is_lost
        if not is_one:
            sample.rollout_id = sample.index
        last = next((step.completion for step in reversed(run.steps) if step.completion is not None), None)
        sample.response = last.content if last is not None and isinstance(last.content, str) else ""
        sample.metadata = {**(sample.metadata or {}), "trajectory_id": run.id, **row["metadata"]}
        return sample

    async def aclose(self) -> None:
        """Cancels running rollouts and waits until all is written. The end of the trainer's loop does the same."""
        await self._served.aclose()


_EMPTY: Mapping[str, Any] = {
    "tokens": [0, 0],
    "response_length": 1,
    "loss_mask": [0],
    "rollout_log_probs": [0.0],
    "weight_versions": [],
    "metadata": {},
    "status": "failed",
}
"""The row of a run from which nothing was sampled: the trainers have no place for a sample without a token."""
