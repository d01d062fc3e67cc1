"""Runs an agent as the ``rollout_func`` of TRL 1.16's ``GRPOTrainer`` (``trl/trainer/grpo_trainer.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace import guard
from rollout_trace.export import trl_rollout
from rollout_trace.report import ExportReport
from rollout_trace.train.trainer_report import report_rows
from rollout_trace.trainers.feed import Feed
from rollout_trace.trainers.served import one_of, refuse

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import TrainerOptions


def rollout_func(
    agent: Agent,
    *,
    reward: Reward | None = None,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 32,
    several: Literal["raise", "longest"] = "longest",
    **options: Unpack[TrainerOptions],
) -> RolloutFunc:
    """Makes a ``rollout_func`` for ``trl.GRPOTrainer`` from an agent, which runs ``num_generations`` times per prompt.

    The agent's task is the prompt, as in the dataset. Its model is the server to which TRL sends the weights. The runs
    are recorded, and TRL gets the sampled ids with logprobs, and the rewards. Pass ``recorded_reward`` to the trainer
    as its reward function. To note the numbers that the trainer computes, call the function's ``trainer.note``.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``; its ``task`` is the prompt.
        output: a new file, folder or address for the rollouts; None: rollouts are not kept.
        in_flight: number of simultaneous rollouts.
        several: what to do with a run that has several rows (drift, sub-conversations), since TRL takes one:
            ``longest``: use the one with the most sampled tokens; ``raise``: raise an error.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``vllm``.

    Returns:
        The function. ``policy_version`` of each step is the trainer's ``global_step``. A run that failed or sampled
        nothing becomes a row that does not train and has no reward; its group's baseline leaves it out. ``report``
        counts what TRL has no place for.

    Raises:
        TypeError, ValueError, OSError, ImportError: an argument is wrong. Raised before any rollout.
    """
    one_of(several, "raise", "longest")
    refuse("rollout_func", options, "the trainer decides which rollouts are made, and when", "policy_version")
    given = {"engine": "vllm", "reward": reward, "output": output, "in_flight": in_flight, **options}
    return RolloutFunc(agent, given, several)


def recorded_reward(reward: Sequence[float | None], **others: Any) -> list[float | None]:
    """Returns the recorded rewards, None for runs that were not scored: the reward function for the trainer."""
    return list(reward)


class RolloutFunc:
    """The result of ``rollout_func``."""

    def __init__(self, agent: Any, options: dict[str, Any], several: Literal["raise", "longest"]) -> None:
        self.report = ExportReport()
        """Counts of what TRL has no place for, over all steps."""
        self._step = 0
        self._several = several
        output = options["output"]
        self.trainer = None if output is None else TrainerNumbers(output)
        """Notes the numbers that the trainer computes for the rows; None without ``output``."""
        self._feed = Feed(agent, **{"progress": False, **options, "policy_version": lambda: self._step})

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Makes the rollouts of these prompts, and returns their columns for TRL."""
        self._step = trainer.state.global_step
        samples = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        tasks = list(prompts[::samples])
        if len(prompts) % samples or any(prompt != tasks[at // samples] for at, prompt in enumerate(prompts)):
            raise ValueError(
                f"rollout_func got {len(prompts)} prompts, which do not form groups of {samples} equal ones. Make "
                "per_device_train_batch_size times steps_per_generation a multiple of num_generations."
            )
        groups = self._feed.make(tasks, samples)
        runs = chain.from_iterable(group.trajectories for group in groups)
        columns = trl_rollout(runs, several=self._several, failed="mask", report=self.report)
        if self.trainer is not None:
            self.trainer.expect(columns, forget=trainer.model.training)
        return columns

    def close(self) -> None:
        """Ends the rollouts after training. The end of the program does the same."""
        self._feed.close()
        if self.trainer is not None:
            self.trainer.write()


class TrainerNumbers:
    """Notes, beside the rollout file, the logprobs and entropies that a GRPOTrainer computes (for ``rt.mismatch``).

    It identifies rows by their ids, because TRL shuffles rows. Only the first numbers for a row are kept: later passes
    over a batch use newer weights. The notes are written once all rows of a generation have arrived. Only the first
    rows are checked against the file, so that a growing file is not read repeatedly; a folder is read each time, to
    find the file.

    Args:
        path: the file that contains the trajectories, or will contain them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._awaited: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        self._rows: list[dict[str, Any]] = []
        self._found: dict[str, list[Any]] = {"trainer_logprobs": [], "entropy": []}
        self._was_read = False

    def expect(self, columns: Mapping[str, Sequence[Any]], *, forget: bool = True) -> None:
        """Registers the rows to expect: the result of ``export.trl_rollout``.

        Earlier rows are no longer expected, unless ``forget`` is False, which is for an evaluation between the steps of
        a generation.
        """
        if forget:
            self.write()
            self._awaited = {}
        for prompt, completion, *place in zip(*(columns[name] for name in _PLACE), strict=True):
            row = dict(zip(_PLACE[2:], place, strict=True)) | {"token_ids": [*prompt, *completion]}
            if row["step_ids"]:
                self._awaited.setdefault(tuple(row["token_ids"]), []).append(row)

    def note(self, input_ids: Any, attention_mask: Any, logprobs: Any, entropies: Any) -> None:
        """Takes a batch's numbers, in the form of TRL's ``_get_per_token_logps_and_entropies``.

        Rows that are not expected, or that already arrived, are ignored. Errors are logged as warnings and do not stop
        training.

        Args:
            input_ids: [rows, tokens]: prompts, padded on the left, and completions, padded on the right.
            attention_mask: [rows, tokens]: 1 on tokens, 0 on padding.
            logprobs: [rows, completion tokens], natural logarithm.
            entropies: [rows, completion tokens], nats.
        """
        try:
            self._note(input_ids, attention_mask, logprobs, entropies)
        except Exception as error:
            guard.warn(f"numbers of a batch were not noted: {guard.describe(error)}")

    def _note(self, input_ids: Any, attention_mask: Any, logprobs: Any, entropies: Any) -> None:
        for at, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            key = tuple(ids[mask.bool()].tolist())
            if key not in self._awaited:
                continue
            self._rows.append(self._awaited[key].pop())
            if not self._awaited[key]:
                del self._awaited[key]
            count = int(mask[-logprobs.shape[1] :].sum())
            for name, values in zip(self._found, (logprobs, entropies), strict=True):
                self._found[name].append(values[at, :count].detach().float().cpu())
        if not self._awaited:
            self.write()

    def write(self) -> None:
        """Writes the numbers noted so far; logs a warning if that fails."""
        rows, found = self._rows, self._found
        self._rows, self._found = [], {name: [] for name in found}
        if not rows:
            return
        try:
            report_rows(self._path, rows, found, is_known=self._was_read)
            self._was_read = True
        except Exception as error:
            guard.warn(f"what the trainer computed for {len(rows)} rows was not noted: {guard.describe(error)}")


_PLACE = ("prompt_ids", "completion_ids", "trajectory_id", "step_ids", "spans")
