"""SkyRL: the output of its generators.

Shapes: SkyRL 0.3.0, ``GeneratorOutput`` in ``skyrl/train/generators/base.py``, as its
``validate_generator_output`` and ``merge_stepwise_output`` expect it.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._baselines import compare
from rollout_trace.export._common import exporting, plain, scored_rows
from rollout_trace.export._extras import count_extras, experts_of_all
from rollout_trace.export._rows import all_have_logprobs, count_unused, prompt_and_response, step_ids_of, task_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence, Sequences


def skyrl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    stepwise: bool = False,
    arrays: bool = False,
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
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out. ``rollout_logprobs`` has all rows or none: one step without logprobs makes it
            None.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``; ``reward`` is "last".

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: ``reward`` is not "last", an option has an unknown value, or a step's ``advantage`` does not fit its
            completion.
    """
    if options.setdefault("reward", "last") != "last":
        raise ValueError(f"reward={options['reward']!r}: SkyRL takes a trajectory's reward on its last row: 'last'.")
    with exporting("skyrl", strict, report) as counts:
        rows = list(_rows(trajectories, stepwise, counts, options))
        has_logprobs = all_have_logprobs([row.rollout_logprobs for row in rows], counts)
        experts = experts_of_all([row.source for row in rows], counts)
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
    source: tuple[Sequence, int | None]
    """The sequence, and where the row ends in it; None: at its end."""


def _rows(
    trajectories: Trajectory | Iterable[Trajectory], stepwise: bool, report: ExportReport, options: RowOptions
) -> Iterator[_Row]:
    ids = TrajectoryIds()
    compared = compare(trajectories, report, options)
    for trajectory, sequences in scored_rows(compared.trajectories, report, compared.options):
        if trajectory.reward is None:
            report.drop("trajectories without a reward", where=f"trajectory {trajectory.id}")
            continue
        count_unused(trajectory, step_ids_of(sequences), report)
        count_extras(sequences, report, "routed_experts")
        rows = list(_steps(trajectory, sequences) if stepwise else _merged(trajectory, sequences))
        # No id without rows: the numbers are for the runs that the trainer gets.
        trajectory_id = ids.of(trajectory) if rows else {}
        for position, row in enumerate(rows):
            last = position == len(rows) - 1
            reward = float(trajectory.reward) if last else 0.0
            yield row._replace(rewards=reward, trajectory_ids=trajectory_id, is_last_step=last)


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

    def of(self, trajectory: Trajectory) -> dict[str, Any]:
        instance = trajectory.group_id or task_id(trajectory) or trajectory.id
        if trajectory.parent_id is not None:
            instance = f"{instance}/{trajectory.name}"
        taken = self._taken.setdefault(instance, set())
        number = trajectory.rollout_index
        if number is None or number in taken:
            number = next(free for free in count(self._free.get(instance, 0)) if free not in taken)
            self._free[instance] = number + 1
        taken.add(number)
        return {"instance_id": instance, "repetition_id": number}
