"""OpenRLHF: what its agent executors return.

Shapes: OpenRLHF 0.11.2, ``MultiTurnAgentExecutor.execute`` in ``openrlhf/utils/agent.py``, as
``_process_response_into_experience`` in ``openrlhf/trainer/ppo_utils/samples_generator.py`` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._exporter import Exporter, RowIterator, listed
from rollout_trace.export._prompts import task_data
from rollout_trace.export._rows import all_have_logprobs, common_names, count_lost, scored_or_none
from rollout_trace.export._trl import check_several, one_row_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequence


@Exporter
def openrlhf(
    trajectories: Trajectories,
    *,
    several: Literal["raise", "longest"] = "raise",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[SequenceOptions],
) -> RowIterator:
    """Exports what OpenRLHF's ``AgentExecutorBase.execute`` returns: one dict for each run, in order.

    ``observation_tokens`` are all tokens of the run, ``action_ranges`` the positions [begin, end) that the model
    sampled, and ``rollout_log_probs`` one number per token (0.0 on tokens that it read). ``reward`` and ``scores`` are
    the run's reward; ``truncated`` is True if the last answer was cut off; ``extra_logs`` has the rewards by name that
    every run has. ``label`` is the task's data as text; ``prompt`` is empty, ``images`` and ``mm_train_inputs`` are
    None.

    OpenRLHF groups each ``n_samples_per_prompt`` consecutive rows, so there is exactly one row for each run.
    Trajectories opened inside another one are left out and counted. Either all rows have logprobs or none, and the same
    holds for rewards: if some runs are scored, the unscored ones have no row.

    Args:
        several: what to do with a run that has several sequences (drift, forks): ``raise``, or ``longest``: use the one
            with the most sampled tokens and count the steps of the others.
        **options: those of ``Trajectory.sequences()``; ``reward`` has no effect, since a run is one row.

    Raises:
        ExportError: a run has no sequence, or has several and ``several="raise"``; or ``strict``, and something would
            be left out.
        ValueError: ``several`` or an option has an unknown value, or a step's ``advantage`` does not fit its
            completion.
    """
    check_several(several, options)
    return RowIterator("openrlhf", strict, report, lambda counts, _: _responses(trajectories, several, counts, options))


def _responses(
    trajectories: Trajectories, several: str, report: ExportReport, options: SequenceOptions
) -> Iterator[Row]:
    pairs = scored_or_none(list(one_row_each(trajectories, several, report, options, "OpenRLHF")), report)
    has_logprobs = all_have_logprobs([row.logprobs for _, row in pairs], report)
    # OpenRLHF stacks the logs of a batch by the names of the first.
    names = common_names((trajectory for trajectory, _ in pairs), report, "run")
    for trajectory, row in pairs:
        yield _response(trajectory, row, names, has_logprobs, report)


def _response(
    trajectory: Trajectory, row: Sequence, names: list[str], has_logprobs: bool, report: ExportReport
) -> dict[str, Any]:
    count_lost(trajectory, [row], report, "rewards by name")
    last = next(step for step in trajectory.steps if step.id == row.step_ids[-1])
    return {
        "prompt": "",
        "label": task_data(trajectory),
        "images": None,
        "mm_train_inputs": None,
        # The run's, also where ``reward="last"`` or "split" gives this row another share of it.
        "reward": trajectory.reward,
        "scores": trajectory.reward,
        "observation_tokens": listed(row.token_ids),
        "action_ranges": [tuple(span) for span in row.spans],
        "rollout_log_probs": listed(row.logprobs) if has_logprobs else None,
        "truncated": row.truncated or last.finish_reason in CUT_OFF,
        "extra_logs": {name: (trajectory.rewards or {})[name] for name in names},
    }
