"""SkyRL: the output of its generators.

Shapes: SkyRL 0.3.0, ``GeneratorOutput`` in ``skyrl/train/generators/base.py``, as its
``validate_generator_output`` and ``merge_stepwise_output`` expect it.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._baselines import compare
from rollout_trace.export._common import count_without_row, exporting, plain, token_rows, with_steps
from rollout_trace.export._extras import count_extras, experts_of_all
from rollout_trace.export._rows import all_have_logprobs, count_unused, prompt_and_response, step_ids_of, task_id
from rollout_trace.train.sequences import sequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequence, Sequences


Failed: TypeAlias = Literal["keep", "mask", "mask_group"]
_FAILED = frozenset({"failed", "aborted"})


def skyrl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    stepwise: bool = False,
    arrays: bool = False,
    failed: Failed = "keep",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> dict[str, Any]:
    """A ``GeneratorOutput``: one row for each sequence, or for each step with ``stepwise=True``.

    The rows of a trajectory are consecutive, in the order of the steps, as SkyRL's trainer needs them; ``is_last_step``
    is True on the last, which alone has the reward: the trainer reads it there. ``stop_reasons`` are "stop" for every
    natural end (tool calls too) and "length", the two that SkyRL distinguishes; others are the server's own.
    A trajectory with several rows is valid in SkyRL's step-wise training alone (``step_wise_trajectories``).

    ``trajectory_ids`` are dicts: ``instance_id`` is the group (else the task's id, else the trajectory's own; followed
    by the name of a trajectory opened inside another, so that each agent is compared with its own kind), and
    ``repetition_id`` the ``rollout_index``, or the next free number. For the trainer, convert them:
    ``[TrajectoryID(**one) for one in output["trajectory_ids"]]``.

    ``rollout_expert_indices`` has the routed experts of prompt and response of each row, [length - 1, layers, k]: of
    all tokens but the last, which was not run through the model. The key is there only if every row has them without a
    gap: SkyRL would replay expert 0 in its place.

    Args:
        trajectories: one, or any iterable. Those without a reward are left out: SkyRL has no value for "not scored".
        stepwise: a row for each step, with its whole prompt; ``merge_stepwise_output`` merges them into the rows of
            ``stepwise=False, linear=True``. It takes no routed experts.
        arrays: routed experts as arrays in the dtype of the engine, which SkyRL takes after 0.3.0, instead of lists,
            which 0.3.0 takes: those need fifteen times the memory.
        failed: what becomes of runs whose status is ``failed`` or ``aborted``, and of those that have no row or no
            reward. ``keep``: they are runs like others. ``mask``: one row that nothing is learnt from stands for each,
            so that the trainer gets as many runs of a prompt as it asked for: the prompt's ids (or ``[0]``, also where
            they are more than ``max_prompt_length`` or ``max_length``), the response ``[0]`` with mask 0, the stop
            reason "error", and the run's reward, or 0.0. This reward is in the baseline of the others: ``mask_group``
            masks all runs of a group with such a run, as SkyRL's generator for Harbor does. Trajectories that were
            opened inside another are masked where they failed; without a row or a reward they are left out, as the
            trainer asked for none of them.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out, and notes the runs that were masked. ``rollout_logprobs`` has all rows or none:
            one step without logprobs makes it None.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``; ``reward`` is "last".

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: ``reward`` is not "last", ``failed`` is unknown, an option has an unknown value, or a step's
            ``advantage`` does not fit its completion.
    """
    if options.setdefault("reward", "last") != "last":
        raise ValueError(f"reward={options['reward']!r}: SkyRL takes a trajectory's reward on its last row: 'last'.")
    if failed not in ("keep", "mask", "mask_group"):
        raise ValueError(f"failed={failed!r}: expected 'keep', 'mask' or 'mask_group'.")
    with exporting("skyrl", strict, report) as counts:
        rows = list(_rows(trajectories, stepwise, failed, counts, options))
        has_logprobs = all_have_logprobs([row.rollout_logprobs for row in rows], counts)
        experts = _experts(rows, counts)
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in _Row._fields if name != "source"}
    if experts is not None:
        columns["rollout_expert_indices"] = [one.copy() if arrays else plain(one) for one in experts]
    return {
        **columns,
        "rollout_logprobs": columns["rollout_logprobs"] if has_logprobs else None,
        "rollout_metrics": None,
    }


class _Row(NamedTuple):
    prompt_token_ids: list[int]
    response_ids: list[int]
    rewards: float
    loss_masks: list[int]
    stop_reasons: str | None
    rollout_logprobs: list[float] | None
    trajectory_ids: dict[str, Any]
    is_last_step: bool
    source: tuple[Sequence, int | None] | None
    """The sequence, and where the row ends in it (None: at its end); None for a masked row."""


def _rows(
    trajectories: Trajectory | Iterable[Trajectory],
    stepwise: bool,
    failed: Failed,
    report: ExportReport,
    options: RowOptions,
) -> Iterator[_Row]:
    ids = TrajectoryIds()
    compared = compare(trajectories, report, options)
    runs = compared.trajectories
    masked: frozenset[str] = frozenset()
    if failed == "mask_group":
        runs = list(runs)
        masked = _groups_with_failures(runs, compared.options)
    # A run without steps can have a row only if it is masked.
    runs = with_steps(runs, report) if failed == "keep" else _counted(runs, report)
    for trajectory, found in token_rows(runs, report, compared.options):
        rows = [] if trajectory.reward is None else list(_made(trajectory, found, stepwise, report))
        in_masked_group = bool(rows) and TrajectoryIds.instance_of(trajectory) in masked
        if failed != "keep" and (in_masked_group or _is_masked(trajectory, has_row=bool(rows))):
            report.note("runs that are masked", 1)
            rows = [_masked(trajectory, compared.options)]
        elif trajectory.reward is None:
            report.drop("trajectories without a reward", where=f"trajectory {trajectory.id}")
        elif not rows:
            count_without_row(trajectory, report)
        # No id without rows: the numbers are for the runs that the trainer gets.
        trajectory_id = ids.of(trajectory) if rows else {}
        for position, row in enumerate(rows):
            last = position == len(rows) - 1
            reward = float(trajectory.reward or 0.0) if last else 0.0
            yield row._replace(rewards=reward, trajectory_ids=trajectory_id, is_last_step=last)


def _made(trajectory: Trajectory, sequences: Sequences, stepwise: bool, report: ExportReport) -> Iterator[_Row]:
    count_unused(trajectory, step_ids_of(sequences), report)
    count_extras(sequences, report, "routed_experts")
    yield from _steps(trajectory, sequences) if stepwise else _merged(trajectory, sequences)


def _counted(trajectories: Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        yield trajectory
        report.read_one()


def _is_masked(trajectory: Trajectory, *, has_row: bool) -> bool:
    """Whether a run failed or has no row; of trajectories inside another only those that failed are masked."""
    if trajectory.parent_id is None:
        return trajectory.status in _FAILED or not has_row
    return trajectory.status in _FAILED and has_row


def _groups_with_failures(trajectories: Iterable[Trajectory], options: SequenceOptions) -> frozenset[str]:
    return frozenset(
        TrajectoryIds.instance_of(trajectory)
        for trajectory in trajectories
        if _is_masked(trajectory, has_row=trajectory.reward is not None and bool(sequences(trajectory, **options)))
    )


def _masked(trajectory: Trajectory, options: SequenceOptions) -> _Row:
    """One row without a token to learn from. SkyRL needs a response of at least one token."""
    limits = [limit for limit in (options.get("max_prompt_length"), options.get("max_length")) if limit is not None]
    first = next((step.prompt_token_ids for step in trajectory.steps if step.prompt_token_ids is not None), None)
    fits = first is not None and 0 < len(first) <= min(limits, default=len(first))
    prompt = plain(first) if fits else [0]
    return _Row(prompt, [0], 0.0, [0], "error", [0.0], {}, False, None)


def _experts(rows: list[_Row], report: ExportReport) -> list[Any] | None:
    """The experts of each row; None unless all have them; of a masked row, zeros."""
    found = experts_of_all([row.source for row in rows if row.source is not None], report)
    if found is None:
        return None
    import numpy as np

    waiting, (_, layers, k) = iter(found), found[0].shape
    return [
        np.zeros((len(row.prompt_token_ids), layers, k), found[0].dtype) if row.source is None else next(waiting)
        for row in rows
    ]


def _merged(trajectory: Trajectory, sequences: Sequences) -> Iterator[_Row]:
    steps = {step.id: step for step in trajectory.steps}
    for row in sequences:
        parts = prompt_and_response(row)
        reason = _stop_reason(steps[row.step_ids[-1]], row.truncated)
        ids = parts.prompt_ids, parts.response_ids
        yield _Row(*ids, 0.0, parts.response_mask, reason, parts.logprobs, {}, False, (row, None))


def _steps(trajectory: Trajectory, sequences: Sequences) -> Iterator[_Row]:
    """A row for each step that is in a sequence, in the order in which their calls began."""
    places: dict[str, tuple[Sequence, int, int]] = {}
    for row in sequences:
        for step_id, (start, end) in zip(row.step_ids, row.spans, strict=True):
            places[step_id] = row, start, end
    for step in trajectory.steps:
        if step.id not in places:
            continue
        row, start, end = places[step.id]
        # A row may also be cut in a prompt after this step: then the step itself is whole.
        cut = row.truncated and end == len(row.token_ids)
        yield _Row(
            plain(row.token_ids[:start]),
            plain(row.token_ids[start:end]),
            0.0,
            [1] * (end - start),
            _stop_reason(step, cut),
            None if row.logprobs is None else plain(row.logprobs[start:end]),
            {},
            False,
            (row, end),
        )


_NATURAL_ENDS = frozenset(
    {"stop", "tool_calls", "function_call", "completed", "end_turn", "stop_sequence", "tool_use", "eos"}
)


def _stop_reason(step: Step, truncated: bool) -> str | None:
    if truncated or step.finish_reason in CUT_OFF:
        return "length"
    return "stop" if step.finish_reason in _NATURAL_ENDS else step.finish_reason


class TrajectoryIds:
    """Unique ids for trajectories: the trainer groups rows by ``instance_id`` and needs distinct ``repetition_id``."""

    def __init__(self) -> None:
        self._taken: dict[str, set[int]] = {}
        # Where the search for a free number continues: starting at 0 each time would be quadratic in the runs.
        self._free: dict[str, int] = {}

    @staticmethod
    def instance_of(trajectory: Trajectory) -> str:
        """The group, else the task's id, else the trajectory's own; with the agent's name for one inside another."""
        instance = trajectory.group_id or task_id(trajectory) or trajectory.id
        return instance if trajectory.parent_id is None else f"{instance}/{trajectory.name}"

    def of(self, trajectory: Trajectory) -> dict[str, Any]:
        """The ids of a trajectory; no two calls give the same."""
        instance = self.instance_of(trajectory)
        taken = self._taken.setdefault(instance, set())
        number = trajectory.rollout_index
        if number is None or number in taken:
            number = next(free for free in count(self._free.get(instance, 0)) if free not in taken)
            self._free[instance] = number + 1
        taken.add(number)
        return {"instance_id": instance, "repetition_id": number}
