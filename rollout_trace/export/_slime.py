"""slime: samples of its rollouts.

Shapes: slime 0.3.1 (git 624b824a of 2026-08-21), ``Sample`` in ``slime/utils/types.py``, and what
``slime/ray/rollout.py`` makes of samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import episode_of
from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._exporter import Exporter, RowIterator, copied
from rollout_trace.export._extras import experts_of_all, listed_spans, note_masks, parts_of_mask
from rollout_trace.export._rows import (
    all_have_logprobs,
    check_row_options,
    compare,
    count_lost,
    prompt_and_response,
    run_facts,
    sampling_facts,
    scored_or_none,
    scored_rows,
    task_or_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


@Exporter
def slime(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports the fields of slime's ``Sample``, one dict for each sequence: ``Sample.from_dict(row)``.

    ``tokens`` are prompt and response, ``response_length`` counts all that follows the first prompt; ``loss_mask`` and
    ``rollout_log_probs`` (0.0 where the mask is 0) are of the response. ``group_index`` numbers the groups (else tasks,
    else trajectories), ``rollout_id`` the runs: all rows of a run, including its inner trajectories, share it.
    ``status`` is ``truncated`` if the last answer was cut off, ``aborted`` if the engine aborted it, ``failed`` if the
    trajectory failed, otherwise ``completed``. ``weight_versions`` are strings, in order: one for each answer, or
    several if the weights changed within it. ``prompt`` and ``response``, the texts, are empty. ``metadata`` has
    ``trajectory_id``, ``group_id``, ``rollout_index``, ``rewards`` by name, ``step_rewards``, ``temperature``,
    ``logprobs_mode`` and ``policy_spans`` ([begin, end, version] in positions of the response, or None).

    If the engine gave them, there are also arrays:

    - ``rollout_routed_experts``: int32 [tokens - 1, layers, k]
    - ``rollout_top_p_token_ids`` int32 [sum of counts] and ``rollout_top_p_token_offsets`` int32
      [response_length + 1]: the ids that could be sampled at each token of the response; none at those it read.

    slime needs logprobs, and experts, for all rows of a batch or none. So does this function for the rows of one call:
    one row without logprobs removes them from all rows, and one row without experts, or with a gap in them, removes the
    experts. If some trajectories are scored, the unscored ones have no row; if none is, ``reward`` is None.
    """
    check_row_options(options)
    return RowIterator("slime", strict, report, lambda counts, _: _samples(trajectories, counts, options))


def _samples(trajectories: Trajectories, report: ExportReport, options: RowOptions) -> Iterator[Row]:
    import numpy as np

    # All rows before the first is given: whether a column exists depends on every row.
    found = scored_rows(compare(trajectories, report, options), report)
    pairs = scored_or_none([(trajectory, row) for trajectory, rows in found for row in rows], report)
    has_logprobs = all_have_logprobs([row.logprobs for _, row in pairs], report)
    experts = experts_of_all([(row, None) for _, row in pairs], report)
    note_masks((row for _, row in pairs), report)
    groups: dict[str, int] = {}
    runs: dict[str, int] = {}
    for at, (trajectory, row) in enumerate(pairs):
        sample = _sample(trajectory, row, report)
        if not has_logprobs:
            sample["rollout_log_probs"] = None
        if experts is not None:
            sample["rollout_routed_experts"] = experts[at].astype(np.int32)
        # Numbers for ids, from 0 in the order of their first use.
        group = groups.setdefault(task_or_run(trajectory), len(groups))
        run = runs.setdefault(episode_of(trajectory), len(runs))
        yield {"index": at, "group_index": group, "rollout_id": run, **sample}


def _sample(trajectory: Trajectory, row: Sequence, report: ExportReport) -> dict[str, Any]:
    count_lost(trajectory, [row], report, *_TAKEN)
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
            **run_facts(trajectory),
            "rewards": copied(trajectory.rewards),
            "step_rewards": list(row.step_rewards),
            **sampling_facts(row, report),
            "policy_spans": listed_spans(row, row.prompt_length),
        },
    }


_TAKEN = ("routed_experts", "sampling_mask", "step rewards", "policy versions", "rewards by name")


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
