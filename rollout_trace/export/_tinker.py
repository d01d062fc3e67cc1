"""Tinker: shifted arrays for its training client.

Shapes: ``tinker`` 0.38, ``tinker.Datum``; and ``trajectory_to_data`` of ``tinker_cookbook.rl.data_processing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._exporter import Exporter, RowIterator, listed
from rollout_trace.export._rows import (
    check_row_options,
    compare,
    has_logprobs,
    row_advantages,
    sampling_facts,
    training_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.tokens import IntArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import Advantages, RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


@Exporter
def tinker(
    trajectories: Trajectories,
    *,
    advantages: Advantages | None = "grpo",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports the parts of a ``tinker.Datum``, one dict for each sequence.

    Arrays are shifted by one: ``model_input`` has all ids but the last, and position i of the other arrays describes
    token i + 1. ``loss_fn_inputs`` has its id (``target_tokens``), ``logprobs`` and ``advantages`` (0.0 if it was not
    sampled); ``mask`` is 1 if it was sampled. ``mask`` is not in ``loss_fn_inputs``, because no loss accepts it::

        tinker.Datum(model_input=tinker.ModelInput.from_ints(row["model_input"]), loss_fn_inputs=row["loss_fn_inputs"])

    With ``advantages=None`` the rows are for supervised training (``cross_entropy``): ``target_tokens`` and ``weights``
    (1.0 where the token was sampled). Each row also has ``reward``, ``trajectory_id``, ``temperature`` and
    ``logprobs_mode``.

    A row whose samples have Tinker's ``sequence_id`` also has ``provenance``: ``model_input`` and ``loss_fn_inputs``,
    lists of spans that together cover these: ``kind`` (``prompt`` or ``sampled``), ``sequence_id``, ``offset`` and
    ``length`` of a ``PromptProvenanceSpan`` or ``SampledProvenanceSpan``.

    Args:
        trajectories: one, or any iterable with all runs of each group.
        advantages: ``grpo`` or ``leave_one_out``: computed for each run within its group (``rt.Group.advantages()``);
            ``steps``: those set on the steps; None: rows for supervised training.
        report: counts what is left out: rows without logprobs, and rows without an advantage (the run was not scored,
            is in no group, or is part of another run of its group).
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``. Tinker's cookbook merges as with
            ``linear=True``.

    Raises:
        ValueError: a reward is no finite number, ``advantages`` is unknown, an option has no such value, or a step's
            ``advantage`` does not fit its completion.
    """
    check_row_options(options, advantages, "grpo", "leave_one_out", "steps", None)
    return RowIterator("tinker", strict, report, lambda counts, _: _rows(trajectories, advantages, counts, options))


def _rows(
    trajectories: Trajectories, advantages: Advantages | None, report: ExportReport, options: RowOptions
) -> Iterator[Row]:
    compared = compare(trajectories, report, options, advantages)
    taken = ["step advantages"] if advantages == "steps" else []
    for trajectory, row in training_rows(compared, report, *taken):
        inputs = _inputs(row, advantages, compared.advantages.get(trajectory.id), report)
        if inputs is None:
            continue
        yield {
            "model_input": listed(row.token_ids[:-1]),
            "loss_fn_inputs": {name: listed(values[1:]) for name, values in inputs.items()},
            "mask": listed(row.loss_mask[1:]),
            "reward": row.reward,
            "trajectory_id": trajectory.id,
            **sampling_facts(row, report),
            **_provenance(trajectory, row),
        }


def _provenance(trajectory: Trajectory, row: Sequence) -> dict[str, Any]:
    """Where the row's tokens come from; empty where Tinker did not sample them all, or a prompt is not as it was."""
    steps = {step.id: step for step in trajectory.steps}
    found: list[dict[str, Any]] = []
    at = 0
    for step_id, (begin, end) in zip(row.step_ids, row.spans, strict=True):
        step = steps[step_id]
        name, prompt, said = (step.extra or {}).get("sequence_id"), step.prompt_token_ids, step.completion_token_ids
        if not isinstance(name, str) or prompt is None or said is None:
            return {}
        if not (_equal(prompt[at:], row.token_ids[at:begin]) and _equal(said[: end - begin], row.token_ids[begin:end])):
            return {}
        found.append({"kind": "prompt", "sequence_id": name, "offset": at, "length": begin - at})
        found.append({"kind": "sampled", "sequence_id": name, "offset": 0, "length": end - begin})
        at = end
    if at != len(row.token_ids):
        return {}
    return {"provenance": {"model_input": _between(found, 0, at - 1), "loss_fn_inputs": _between(found, 1, at)}}


def _equal(one: IntArray, other: IntArray) -> bool:
    return len(one) == len(other) and bool((one == other).all())


def _between(runs: list[dict[str, Any]], begin: int, end: int) -> list[dict[str, Any]]:
    """The parts of runs that are at [begin, end) of what they tile."""
    found, at = [], 0
    for run in runs:
        first, last = max(begin, at), min(end, at + run["length"])
        if first < last:
            found.append({**run, "offset": run["offset"] + first - at, "length": last - first})
        at += run["length"]
    return found


def _inputs(
    row: Sequence, advantages: Advantages | None, run_advantage: float | None, report: ExportReport
) -> dict[str, Any] | None:
    """Unshifted arrays by the names of Tinker's losses; None where the row cannot be trained on."""
    import numpy as np

    if advantages is None:
        return {"target_tokens": row.token_ids, "weights": row.loss_mask.astype(np.float32)}
    values = row_advantages(row, advantages, run_advantage)
    report.drop("rows without an advantage", values is None, where=f"step {row.step_ids[0]}")
    if not has_logprobs(row, report) or values is None:
        return None
    return {"target_tokens": row.token_ids, "logprobs": row.logprobs, "advantages": values}
