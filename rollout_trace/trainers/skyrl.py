"""Runs an agent as the generator of SkyRL 0.4's trainers (``skyrl/train/generators/base.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.collection.task_files import Keyed
from rollout_trace.export import skyrl
from rollout_trace.report import ExportReport
from rollout_trace.trainers.feed import Feed
from rollout_trace.trainers.served import refuse

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import TrainerOptions
    from rollout_trace.train.groups import Group


class Generator:
    """A generator for ``get_generator`` of a SkyRL experiment: ``generate`` runs an agent for each prompt.

    The agent's task is a dict: the dataset's row (``prompt``, ``env_class`` and the other columns) and the trainer's
    ``sampling_params``. The agent's model is SkyRL's HTTP endpoint. The runs are recorded, and SkyRL gets the sampled
    ids with logprobs, and the rewards.

    A run's ``group_id`` is SkyRL's ``instance_id``, prefixed with ``eval/`` in an evaluation, and followed by ``#2``
    when it comes again.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``.
        output: a new file, folder or address for the rollouts; None: rollouts are not kept.
        in_flight: number of simultaneous rollouts.
        step_wise_trajectories: the value of SkyRL's setting of this name. True: a run may have several rows, from
            drift, forks and trajectories opened inside it, which share the run's advantage. False: a run has one row,
            its own with the most sampled tokens; the others are counted in ``report``.
        failed: what to do with a run that failed, has no reward, or sampled nothing. ``mask``: its row has loss mask 0,
            and its reward, or 0.0, counts in its group's baseline. ``mask_group``: all rows of its group have loss mask
            0.
        policy_version: as for ``rt.rollouts``. None: the number of steps that the trainer had finished when it last
            asked for rollouts. If weights change during rollouts, pass a function, such as ``lambda:
            inference_engine_client.weight_version``.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``vllm``.

    Raises:
        TypeError, ValueError, OSError, ImportError: an argument is wrong. Raised before any rollout.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        reward: Reward | None = None,
        output: str | os.PathLike[str] | None = None,
        in_flight: int = 32,
        step_wise_trajectories: bool = False,
        failed: Literal["mask", "mask_group"] = "mask",
        policy_version: int | str | Callable[[], int | str] | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        if failed not in ("mask", "mask_group"):
            raise ValueError(f"failed={failed!r}: expected 'mask' or 'mask_group'.")
        refuse("Generator", options, "SkyRL decides which rollouts are made")
        self.report = ExportReport()
        """Counts of what SkyRL has no place for, over all batches."""
        self._finished = 0
        self._is_step_wise = step_wise_trajectories
        self._failed: Literal["mask", "mask_group"] = failed
        version = (lambda: self._finished) if policy_version is None else policy_version
        given: dict[str, Any] = {"engine": "vllm", "progress": False, **options, "policy_version": version}
        self._feed = Feed(agent, reward=reward, output=output, in_flight=in_flight, **given)

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the ``GeneratorOutput`` for a ``GeneratorInput``, in its order.

        Raises:
            ValueError: the input has no ``trajectory_ids``.
            RuntimeError: a rollout has no trajectory.
        """
        ids = input_batch.get("trajectory_ids")
        if ids is None:
            raise ValueError("the GeneratorInput has no trajectory_ids: they say which prompts form a group.")
        metadata = input_batch.get("batch_metadata")
        is_training = metadata is None or metadata.training_phase == "train"
        if metadata is not None and metadata.global_step is not None:
            # The step that is worked on; that of an evaluation is finished.
            self._finished = metadata.global_step - is_training
        groups: list[Group] = []
        for samples, tasks in groupby(_tasks(input_batch, is_training), key=lambda pair: pair[0]):
            groups += await self._feed.amake([task for _, task in tasks], samples)
        output = self._exported(groups)
        runs = chain.from_iterable(group.trajectories for group in groups)
        given = {(run.group_id, run.rollout_index): one for run, one in zip(runs, ids, strict=True)}
        found = [given[one["instance_id"], one["repetition_id"]] for one in output["trajectory_ids"]]
        return {**output, "trajectory_ids": found}

    async def aclose(self) -> None:
        """Cancels running rollouts and waits until all is written. The end of the trainer's loop does the same."""
        await self._feed.aclose()

    def _exported(self, groups: list[Group]) -> dict[str, Any]:
        runs = chain.from_iterable(group.trajectories for group in groups)
        if not self._is_step_wise:
            inside = sum(len(group.inside) for group in groups)
            self.report.drop("trajectories inside another", inside)
            return self._longest(skyrl(runs, failed=self._failed, report=self.report))
        inner = chain.from_iterable(group.inside for group in groups)
        return skyrl([*runs, *inner], failed=self._failed, report=self.report)

    def _longest(self, output: dict[str, Any]) -> dict[str, Any]:
        """One row of each run, which has its reward."""
        ids = [tuple(one.values()) for one in output["trajectory_ids"]]
        rewards = dict(zip(ids, output["rewards"], strict=True))  # Of the last row.
        best: dict[Any, int] = {}
        for at, (one, mask) in enumerate(zip(ids, output["loss_masks"], strict=True)):
            if one not in best or sum(mask) > sum(output["loss_masks"][best[one]]):
                best[one] = at
        self.report.drop("rows left out: of other sequences", len(ids) - len(best))
        kept = {
            name: [values[at] for at in best.values()] if isinstance(values, list) else values
            for name, values in output.items()
        }
        return {**kept, "rewards": [rewards[one] for one in best], "is_last_step": [True] * len(best)}


def _tasks(given: Mapping[str, Any], is_training: bool) -> list[tuple[int, Keyed]]:
    """The tasks of the prompts that stand together and are one instance, each with the number of its runs."""
    extras, parameters = given.get("env_extras"), given.get("sampling_params")
    found = []
    for instance, positions in groupby(
        range(len(given["prompts"])), lambda at: given["trajectory_ids"][at].instance_id
    ):
        at, *others = positions
        task = {"prompt": given["prompts"][at], "env_class": given["env_classes"][at], **(extras[at] if extras else {})}
        if parameters is not None:
            task["sampling_params"] = parameters
        found.append((1 + len(others), Keyed(instance if is_training else f"eval/{instance}", task)))
    return found
