"""Tinker: shifted arrays for its training client.

Shapes: ``tinker`` 0.38, ``tinker.Datum``; and ``trajectory_to_data`` of ``tinker_cookbook.rl.data_processing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._baselines import check_advantages, check_row_options, compare, row_advantages
from rollout_trace.export._common import exporting, one_by_one, plain, scored_rows
from rollout_trace.export._extras import count_extras
from rollout_trace.export._rows import count_unused, sampling_facts, step_ids_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import Advantages, RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


def tinker(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    advantages: Advantages | None = "grpo",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> list[dict[str, Any]]:
    """The parts of a ``tinker.Datum``, one dict for each sequence.

    Arrays are shifted by one: ``model_input`` has all ids but the last, and position i of the others is about token
    i + 1: in ``loss_fn_inputs`` its id (``target_tokens``), ``logprobs`` and ``advantages`` (0.0 where it was not
    sampled); in ``mask`` 1 where it was sampled. ``mask`` is not in ``loss_fn_inputs``, as no loss accepts it::

        tinker.Datum(model_input=tinker.ModelInput.from_ints(row["model_input"]), loss_fn_inputs=row["loss_fn_inputs"])

    With ``advantages=None`` the rows are for supervised training (``cross_entropy``): ``target_tokens`` and ``weights``
    (1.0 where the token was sampled). Each row also has ``reward``, ``trajectory_id``, ``temperature`` and
    ``logprobs_mode``.

    Args:
        trajectories: one, or any iterable; all runs of a group must be in it.
        advantages: ``grpo`` or ``leave_one_out``: computed for each run within its group (``rt.Group.advantages()``);
            ``steps``: those set on the steps; None: rows for supervised training.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out: rows without logprobs, and rows without an advantage (the run was not scored,
            is in no group, or is part of another run of its group).
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``. Tinker's cookbook merges as with
            ``linear=True``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: a reward is no finite number, ``advantages`` is unknown, an option has no such value, or a step's
            ``advantage`` does not fit its completion.
    """
    with exporting("tinker", strict, report) as counts:
        return list(_rows(trajectories, advantages, counts, options))


def iter_tinker(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    advantages: Advantages | None = "grpo",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``tinker``, each made on demand: a row as lists takes ten times the memory of its arrays.

    With ``grpo`` or ``leave_one_out``, or ``drop_constant_groups``, all trajectories are read before the first row.
    """
    check_advantages(advantages, _KINDS)
    check_row_options(options)
    return one_by_one("iter_tinker", strict, report, lambda counts: _rows(trajectories, advantages, counts, options))


_KINDS = ("grpo", "leave_one_out", "steps", None)


def _rows(
    trajectories: Trajectory | Iterable[Trajectory],
    advantages: Advantages | None,
    report: ExportReport,
    options: RowOptions,
) -> Iterator[dict[str, Any]]:
    check_advantages(advantages, _KINDS)
    compared = compare(trajectories, report, options, advantages)
    for trajectory, rows in scored_rows(compared.trajectories, report, compared.options):
        count_unused(trajectory, step_ids_of(rows), report, advantages=advantages != "steps")
        count_extras(rows, report)
        for row in rows:
            inputs = _inputs(row, advantages, compared.advantages.get(trajectory.id), report)
            if inputs is None:
                continue
            yield {
                "model_input": plain(row.token_ids[:-1]),
                "loss_fn_inputs": {name: plain(values[1:]) for name, values in inputs.items()},
                "mask": plain(row.loss_mask[1:]),
                "reward": row.reward,
                "trajectory_id": trajectory.id,
                **sampling_facts(row, report),
            }


def _inputs(
    row: Sequence, advantages: Advantages | None, run_advantage: float | None, report: ExportReport
) -> dict[str, Any] | None:
    """Unshifted arrays by the names of Tinker's losses; None where the row cannot be trained on."""
    import numpy as np

    where = f"step {row.step_ids[0]}"
    if advantages is None:
        return {"target_tokens": row.token_ids, "weights": row.loss_mask.astype(np.float32)}
    values = row_advantages(row, advantages, run_advantage)
    if values is None:
        report.drop("rows without an advantage", where=where)
    if row.logprobs is None:
        report.drop("rows without logprobs", where=where)
    if values is None or row.logprobs is None:
        return None
    return {"target_tokens": row.token_ids, "logprobs": row.logprobs, "advantages": values}
