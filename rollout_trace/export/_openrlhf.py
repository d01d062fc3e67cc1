"""OpenRLHF: what its agent executors return.

Shapes: OpenRLHF 0.11.2, ``MultiTurnAgentExecutor.execute`` in ``openrlhf/utils/agent.py``, as
``_process_response_into_experience`` in ``openrlhf/trainer/ppo_utils/samples_generator.py`` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._common import exporting, plain, token_rows
from rollout_trace.export._extras import count_extras
from rollout_trace.export._rows import all_have_logprobs, count_unused, scored_or_none
from rollout_trace.export._trl import only_row, outermost
from rollout_trace.export._verl import task_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequence


def openrlhf(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    several: Literal["raise", "longest"] = "raise",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[SequenceOptions],
) -> list[dict[str, Any]]:
    """What OpenRLHF's ``AgentExecutorBase.execute`` returns, one dict for each run, in order.

    ``observation_tokens`` are all tokens of the run, ``action_ranges`` the positions [begin, end) of what the model
    sampled, ``rollout_log_probs`` a number for each token (0.0 on those that it read). ``reward`` is the run's, and so
    is ``scores``; ``truncated`` is True where the last answer was cut off; ``extra_logs`` has the rewards by name that
    every run has. ``label`` is the task's data as text; ``prompt`` is empty, ``images`` and ``mm_train_inputs`` are
    None.

    OpenRLHF compares each ``n_samples_per_prompt`` rows in order with each other, so there is exactly one row for each
    run. Trajectories that were opened inside one of the others are left out and counted. Its logprobs are of all rows
    or none, and so are rewards: where some runs are scored, the others have no row.

    Args:
        trajectories: one, or any iterable.
        several: for a run with several sequences (drift, forks): ``raise``, or ``longest``: use the one with the most
            sampled tokens and count the steps of the others.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: those of ``Trajectory.sequences()``; ``reward`` changes nothing, as a run is one row.

    Raises:
        ExportError: a run has no sequence, or has several and ``several="raise"``; or ``strict``, and something would
            be left out.
        ValueError: ``several`` or an option has an unknown value, or a step's ``advantage`` does not fit its
            completion.
    """
    if several not in ("raise", "longest"):
        raise ValueError(f"several={several!r}: expected 'raise' or 'longest'.")
    with exporting("openrlhf", strict, report) as counts:
        pairs = []
        for trajectory, rows in token_rows(outermost(trajectories, counts), counts, options):
            counts.read_one()
            pairs.append((trajectory, only_row(trajectory, rows, several, counts, "OpenRLHF")))
        pairs = scored_or_none(pairs, counts)
        has_logprobs = all_have_logprobs([row.logprobs for _, row in pairs], counts)
        names = _common_names([trajectory for trajectory, _ in pairs], counts)
        return [_response(trajectory, row, names, has_logprobs, counts) for trajectory, row in pairs]


def _common_names(trajectories: list[Trajectory], report: ExportReport) -> list[str]:
    """Names of rewards that every run has: OpenRLHF stacks the logs of a batch by the names of the first."""
    all_rewards = [trajectory.rewards or {} for trajectory in trajectories]
    names = [name for name in (all_rewards[0] if all_rewards else ()) if all(name in one for one in all_rewards)]
    others = sum(len(rewards) - len(names) for rewards in all_rewards)
    report.drop("rewards by name that not every run has", others, metadata=True)
    return names


def _response(
    trajectory: Trajectory, row: Sequence, names: list[str], has_logprobs: bool, report: ExportReport
) -> dict[str, Any]:
    count_unused(trajectory, row.step_ids, report, named=False)
    count_extras([row], report)
    last = next(step for step in trajectory.steps if step.id == row.step_ids[-1])
    return {
        "prompt": "",
        "label": task_data(trajectory),
        "images": None,
        "mm_train_inputs": None,
        # The run's, also where ``reward="last"`` or "split" gives this row another share of it.
        "reward": trajectory.reward,
        "scores": trajectory.reward,
        "observation_tokens": plain(row.token_ids),
        "action_ranges": [tuple(span) for span in row.spans],
        "rollout_log_probs": plain(row.logprobs) if has_logprobs else None,
        "truncated": row.truncated or last.finish_reason in CUT_OFF,
        "extra_logs": {name: (trajectory.rewards or {})[name] for name in names},
    }
