"""slime: samples of its rollouts.

Shapes: slime 0.3.1 (git 624b824a of 2026-08-21), ``Sample`` in ``slime/utils/types.py``, and what
``slime/ray/rollout.py`` makes of samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import episode_of
from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._baselines import check_row_options, compare
from rollout_trace.export._common import exporting, one_by_one, scored_rows
from rollout_trace.export._extras import count_extras, experts_of_all, listed_spans, note_masks, parts_of_mask
from rollout_trace.export._rows import (
    all_have_logprobs,
    count_unused,
    prompt_and_response,
    sampling_facts,
    scored_or_none,
    task_id,
)
from rollout_trace.export._values import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


def slime(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> list[dict[str, Any]]:
    """The fields of slime's ``Sample``, one dict for each sequence: ``Sample.from_dict(row)``.

    ``tokens`` are prompt and response, ``response_length`` counts all that follows the first prompt; ``loss_mask`` and
    ``rollout_log_probs`` (0.0 where the mask is 0) are of the response. ``group_index`` numbers the groups (else tasks,
    else trajectories), ``rollout_id`` the runs: rows of one run, also of trajectories inside another, have the same.
    ``status`` is ``truncated`` where the last answer was cut off, ``aborted`` where the engine broke it off, ``failed``
    where the trajectory failed, otherwise ``completed``. ``weight_versions`` are texts, in order: one for each answer,
    or several where the weights changed within it. ``prompt`` and ``response``, the texts, are empty. ``metadata`` has
    ``trajectory_id``, ``group_id``, ``rollout_index``, ``rewards`` by name, ``step_rewards``, ``temperature``,
    ``logprobs_mode`` and ``policy_spans`` ([begin, end, version] in positions of the response, or None).

    Where the engine gave them, arrays:

    - ``rollout_routed_experts``: int32 [tokens - 1, layers, k]
    - ``rollout_top_p_token_ids`` int32 [sum of counts] and ``rollout_top_p_token_offsets`` int32
      [response_length + 1]: the ids that could be sampled at each token of the response; none at those it read.

    slime makes columns of logprobs and experts, for all rows of a batch or none; so does this function, for the rows of
    one call: one row without logprobs takes them from all, and one without experts, or with a gap in them, takes those.
    Where some trajectories are scored, the others have no row; where none is, ``reward`` is None.

    Args:
        trajectories: one, or any iterable.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: an option has an unknown value, or a step's ``advantage`` does not fit its completion.
    """
    with exporting("slime", strict, report) as counts:
        return list(_samples(trajectories, counts, options))


def iter_slime(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``slime``, each made on demand; the arrays of all are in memory from the first row on."""
    check_row_options(options)
    return one_by_one("iter_slime", strict, report, lambda counts: _samples(trajectories, counts, options))


def _samples(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: RowOptions
) -> Iterator[dict[str, Any]]:
    import numpy as np

    compared = compare(trajectories, report, options)
    # All rows before the first is given: whether a column exists depends on every row.
    pairs = scored_or_none(
        [
            (trajectory, row)
            for trajectory, rows in scored_rows(compared.trajectories, report, compared.options)
            for row in rows
        ],
        report,
    )
    rows = [row for _, row in pairs]
    has_logprobs = all_have_logprobs([row.logprobs for row in rows], report)
    experts = experts_of_all([(row, None) for row in rows], report)
    note_masks(rows, report)
    numbers = _Numbers()
    for at, (trajectory, row) in enumerate(pairs):
        sample = _sample(trajectory, row, report)
        if not has_logprobs:
            sample["rollout_log_probs"] = None
        if experts is not None:
            sample["rollout_routed_experts"] = experts[at].astype(np.int32)
        group = trajectory.group_id or task_id(trajectory) or trajectory.id
        yield {
            "index": at,
            "group_index": numbers.of("group", group),
            "rollout_id": numbers.of("rollout", episode_of(trajectory)),
            **sample,
        }


def _sample(trajectory: Trajectory, row: Sequence, report: ExportReport) -> dict[str, Any]:
    count_unused(trajectory, row.step_ids, report, rewards=False, versions=False, named=False)
    count_extras([row], report, "routed_experts", "sampling_mask")
    parts = prompt_and_response(row)
    return {
        "prompt": "",
        "response": "",
        "tokens": parts.prompt_ids + parts.response_ids,
        "response_length": len(parts.response_ids),
        "loss_mask": parts.response_mask,
        "rollout_log_probs": parts.logprobs,
        **_kept_tokens(row),
        "weight_versions": [str(span.version) for span in row.policy_spans or ()],
        "reward": row.reward,
        "status": _status(trajectory, row),
        "metadata": {
            "trajectory_id": trajectory.id,
            "group_id": trajectory.group_id,
            "rollout_index": trajectory.rollout_index,
            "rewards": copied(trajectory.rewards),
            "step_rewards": list(row.step_rewards),
            **sampling_facts(row, report),
            "policy_spans": listed_spans(row, row.prompt_length),
        },
    }


def _kept_tokens(row: Sequence) -> dict[str, Any]:
    """The sampling mask of the response, ids and offsets; empty where the row has none."""
    import numpy as np

    if row.sampling_mask is None:
        return {}
    (mask,) = parts_of_mask(row.sampling_mask, [(row.prompt_length, len(row.token_ids))])
    return {
        "rollout_top_p_token_ids": mask.ids.copy(),
        "rollout_top_p_token_offsets": mask.offsets.astype(np.int32),
    }


def _status(trajectory: Trajectory, row: Sequence) -> str:
    last = next(step for step in trajectory.steps if step.id == row.step_ids[-1])
    if row.truncated or last.finish_reason in CUT_OFF:
        return "truncated"
    if last.finish_reason == "abort" or trajectory.status == "aborted":
        return "aborted"
    return "failed" if trajectory.status == "failed" else "completed"


class _Numbers:
    """Numbers for ids, counted from 0 in the order of their first use, for each kind of id."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, int]] = {}

    def of(self, kind: str, name: str) -> int:
        known = self._found.setdefault(kind, {})
        return known.setdefault(name, len(known))
