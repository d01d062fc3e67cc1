"""AReaL: trajectories as its workflows return them.

Shapes: AReaL 1.0.4, what ``InteractionWithTokenLogpReward.to_tensor_dict`` in ``areal/experimental/openai/types.py``
gives and ``concat_padded_tensors`` in ``areal/utils/data.py`` joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._baselines import check_row_options, compare
from rollout_trace.export._common import exporting, one_by_one, scored_rows
from rollout_trace.export._extras import count_extras, whole_number
from rollout_trace.export._rows import count_unused, step_ids_of
from rollout_trace.export._values import within_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


def areal(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> list[dict[str, Any]]:
    """What AReaL's ``RolloutWorkflow.arun_episode`` returns, one dict of arrays [1, length] for each sequence.

    Make tensors of them with ``torch.from_numpy``; ``concat_padded_tensors`` joins several.

    - ``input_ids`` int64, ``attention_mask`` bool
    - ``loss_mask`` int64: 1 where the model sampled the token
    - ``logprobs`` float32: 0.0 where it did not
    - ``versions`` int64: the version of the weights that sampled the token; -1 where the mask is 0 or it is not known
    - ``rewards`` float32 [1]

    AReaL's own style ``concat`` joins calls by their messages; here calls are joined by ids, and a row ends where they
    do not go on. Left out and counted: trajectories without a reward, which AReaL would take for 0; rows without
    logprobs; versions that are no whole numbers.

    Args:
        trajectories: one, or any iterable.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: an option has an unknown value, or a step's ``advantage`` does not fit its completion.
    """
    with exporting("areal", strict, report) as counts:
        return list(_rows(trajectories, counts, options))


def iter_areal(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``areal``, each made on demand."""
    check_row_options(options)
    return one_by_one("iter_areal", strict, report, lambda counts: _rows(trajectories, counts, options))


def _rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: RowOptions
) -> Iterator[dict[str, Any]]:
    import numpy as np

    compared = compare(trajectories, report, options)
    for trajectory, rows in scored_rows(compared.trajectories, report, compared.options):
        where = f"trajectory {trajectory.id}"
        if within_float32(trajectory.reward, report, where) is None:
            report.drop("trajectories without a reward", trajectory.reward is None, where=where)
            continue
        count_unused(trajectory, step_ids_of(rows), report, versions=False)
        count_extras(rows, report)
        for row in rows:
            if row.logprobs is None:
                report.drop("rows without logprobs", where=f"step {row.step_ids[0]}")
                continue
            arrays = {
                "input_ids": row.token_ids.astype(np.int64),
                "loss_mask": row.loss_mask.astype(np.int64),
                "logprobs": row.logprobs.copy(),
                "versions": _versions(row, report),
                "attention_mask": np.ones(len(row.token_ids), np.bool_),
            }
            reward = np.array([row.reward], np.float32)
            yield {**{name: array[None] for name, array in arrays.items()}, "rewards": reward}


def _versions(row: Sequence, report: ExportReport) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [length]: the version of each sampled token as a number; -1 for the others."""
    import numpy as np

    versions = np.full(len(row.token_ids), -1, np.int64)
    for begin, end, version in row.policy_spans or ():
        number = whole_number(version)
        report.drop("policy versions that are no whole numbers", number is None, where=f"step {row.step_ids[0]}",
                    metadata=True)  # fmt: skip
        versions[begin:end] = -1 if number is None else number
    return versions
