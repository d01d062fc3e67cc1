"""AReaL: trajectories as its workflows return them.

Shapes: AReaL 1.0.4, what ``InteractionWithTokenLogpReward.to_tensor_dict`` in ``areal/experimental/openai/types.py``
gives and ``concat_padded_tensors`` in ``areal/utils/data.py`` joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._extras import whole_number
from rollout_trace.export._rows import check_row_options, compare, training_rows
from rollout_trace.export._values import within_float32

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from typing_extensions import Unpack

    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


@Exporter
def areal(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports what AReaL's ``RolloutWorkflow.arun_episode`` returns: one dict of arrays [1, length] for each sequence.

    Convert them with ``torch.from_numpy``; ``concat_padded_tensors`` joins several.

    - ``input_ids`` int64, ``attention_mask`` bool
    - ``loss_mask`` int64: 1 where the model sampled the token
    - ``logprobs`` float32: 0.0 where it did not
    - ``versions`` int64: the version of the weights that sampled the token; -1 where the mask is 0 or it is not known
    - ``rewards`` float32 [1]

    AReaL's own ``concat`` style joins calls by their messages. Here calls are joined by ids, and a row ends where the
    next prompt does not continue them. Left out and counted: trajectories without a reward, which AReaL would treat as
    0; rows without logprobs; versions that are not integers.
    """
    check_row_options(options)
    return RowIterator("areal", strict, report, lambda counts, _: _rows(trajectories, counts, options))


def _rows(trajectories: Trajectories, report: ExportReport, options: RowOptions) -> Iterator[Row]:
    import numpy as np

    compared = compare(trajectories, report, options)
    for _, row in training_rows(compared, report, "policy versions", complete=True):
        if within_float32(row.reward, report, f"step {row.step_ids[0]}") is None:
            continue
        arrays = {
            "input_ids": row.token_ids.astype(np.int64),
            "loss_mask": row.loss_mask.astype(np.int64),
            "logprobs": row.logprobs.copy(),  # type: ignore[union-attr]  # rows without are left out
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
        number = whole_number(version, report, row.step_ids[0])
        versions[begin:end] = -1 if number is None else number
    return versions
