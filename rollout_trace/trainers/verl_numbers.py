"""Notes the numbers that verl 0.9's trainer computes for an agent loop (``verl/trainer/ppo/v1/trainer_base.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_trace import guard
from rollout_trace.train.trainer_report import report_rows

FILE = "rollouts_file"
"""Key in a row's ``extra_fields`` for the path of the file that contains its run; None if runs are not kept."""


def note_numbers(batch: Any) -> None:
    """Notes the logprobs and entropies of a batch beside its rollouts, as ``rt.trainer_report`` does.

    Call it after ``_compute_old_log_prob`` of verl's v1 trainer. Rows that do not come from ``agent_loop`` with an
    ``output``, or that do not train, are ignored. Errors are logged as warnings and do not stop training.

    Args:
        batch: the ``KVBatchMeta`` that ``_compute_old_log_prob`` returns: its rows are in verl's transfer queue.
    """
    try:
        by_file: dict[str, list[tuple[dict[str, Any], Any, Any]]] = {}
        for file, place, logprobs, entropy in _rows(batch):
            by_file.setdefault(file, []).append((place, logprobs, entropy))
    except Exception as error:
        guard.warn(f"numbers of a batch were not noted: {guard.describe(error)}")
        return
    for file, found in by_file.items():
        rows, logprobs, entropy = zip(*found, strict=True)
        try:
            report_rows(file, rows, {"trainer_logprobs": logprobs, "entropy": entropy}, is_known=True)
        except Exception as error:
            # The rows of another worker are in another file.
            guard.warn(f"numbers were not noted for {len(rows)} of the rows in {file}: {guard.describe(error)}")


def _rows(batch: Any) -> Iterator[tuple[str, dict[str, Any], Any, Any]]:
    """File, place, logprobs and entropies [response length] of each row."""
    import transfer_queue

    names = ["response_mask", "old_log_probs", "entropy"]
    fields = ["extra_fields", *names]
    data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    extras = data.pop("extra_fields").tolist()
    for extra, mask, *numbers in zip(extras, *(data[name].unbind() for name in names), strict=True):
        if not extra.get(FILE) or not extra.get("step_ids") or not mask.any():
            continue
        # The response begins with the first sampled token, and may be cut.
        length = extra["spans"][0][0] + len(mask)
        spans = [[begin, min(end, length)] for begin, end in extra["spans"] if begin < length]
        place = {
            "trajectory_id": extra["trajectory_id"],
            "step_ids": extra["step_ids"][: len(spans)],
            "spans": spans,
            "token_ids": range(length),
        }
        logprobs, entropies = (one.detach().float().cpu() for one in numbers)
        yield extra[FILE], place, logprobs, entropies
