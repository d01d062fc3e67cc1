"""verl: the output of agent loops.

Shapes: verl 0.9.1, ``verl/experimental/agent_loop/agent_loop.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._extras import experts_of_all, sampled_versions, whole_numbers
from rollout_trace.export._rows import (
    all_have_logprobs,
    check_row_options,
    common_names,
    compare,
    count_lost,
    prompt_and_response,
    run_facts,
    sampling_facts,
    scored_or_none,
    scored_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import AdvantageMethod, Pair, RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence


@Exporter
def verl(
    trajectories: Trajectories,
    *,
    advantages: AdvantageMethod | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports the arguments of ``AgentLoopOutput``, one dict for each sequence: ``AgentLoopOutput(**row)``.

    ``response_ids`` is all that follows the first prompt; ``response_logprobs`` is 0.0 where ``response_mask`` is 0.
    ``num_turns`` counts two for each completion, as verl does. ``extra_fields`` has the ids that relate rows
    (``trajectory_id``, ``group_id``, ``rollout_index``), its steps (``step_ids``) with the [begin, end] of
    the completion of each in prompt and response (``spans``), the parts of the reward (``reward_extra_info``), the step
    rewards where every step has one (``turn_scores``), ``temperature`` and ``logprobs_mode``, the ``advantage`` of the
    run if ``advantages`` is set, and the policy versions where all are whole numbers, or texts of such
    (``min_global_steps``, ``max_global_steps``).

    ``routed_experts`` is an array [length - 1, layers, k] of prompt and response, in the dtype of the engine: verl
    converts it to int16 and pads it. The key is absent if there are none.

    verl needs these values for all rows of a batch or none. So does this function for the rows of one call. One row
    without logprobs makes ``response_logprobs`` None in all rows. One row without experts, or with a gap in them,
    removes them from all rows, because verl would replay expert 0 there. If some trajectories are scored, the unscored
    ones have no row; if none is, ``reward_score`` is None. ``reward_extra_info`` has the names that every row has.

    The rows of a trajectory are consecutive, in order. A trajectory with several rows has drift or forks. An agent loop
    may return a list of them only in verl's v1 trainer, which gives all rows the reward of the last. verl does not
    truncate: keep rows within its lengths with ``max_prompt_length=`` and ``max_response_length=``.

    Args:
        advantages: ``grpo`` or ``leave_one_out``: computed for each run within its group, however many rows it has
            (``rt.Group.advantages()``); pass all runs of a group. Rows without an advantage are left out. None: verl
            computes them, and counts each row of a ``uid`` as a run.
    """
    check_row_options(options, advantages, "grpo", "leave_one_out", None)
    return RowIterator("verl", strict, report, lambda counts, _: _outputs(trajectories, advantages, counts, options))


def _outputs(
    trajectories: Trajectories, advantages: AdvantageMethod | None, report: ExportReport, options: RowOptions
) -> Iterator[Row]:
    compared = compare(trajectories, report, options, advantages)
    # All rows before the first is given: whether a column exists depends on every row.
    pairs = [(trajectory, row) for trajectory, rows in scored_rows(compared, report) for row in rows]
    if advantages is not None:
        pairs = list(_with_advantage(pairs, compared.advantages, report))
    pairs = scored_or_none(pairs, report)
    names = common_names((trajectory for trajectory, _ in pairs), report, "row")
    has_logprobs = all_have_logprobs([row.logprobs for _, row in pairs], report)
    experts = experts_of_all([(row, None) for _, row in pairs], report)
    for at, (trajectory, row) in enumerate(pairs):
        output = _output(trajectory, row, names, report)
        if experts is not None:
            output["routed_experts"] = experts[at].copy()
        if advantages is not None:
            output["extra_fields"]["advantage"] = compared.advantages[trajectory.id]
        yield output if has_logprobs else {**output, "response_logprobs": None}


def _with_advantage(pairs: list[Pair], advantages: dict[str, float | None], report: ExportReport) -> Iterator[Pair]:
    for trajectory, row in pairs:
        if advantages.get(trajectory.id) is None:
            report.drop("rows without an advantage", where=f"trajectory {trajectory.id}")
        else:
            yield trajectory, row


def _output(trajectory: Trajectory, row: Sequence, names: list[str], report: ExportReport) -> dict[str, Any]:
    scored = None not in row.step_rewards
    taken = "routed_experts", "policy versions", "rewards by name", *(["step rewards"] if scored else ())
    count_lost(trajectory, [row], report, *taken)
    parts = prompt_and_response(row)
    return {
        "prompt_ids": parts.prompt_ids,
        "response_ids": parts.response_ids,
        "response_mask": parts.response_mask,
        "response_logprobs": parts.logprobs,
        "reward_score": row.reward,
        "num_turns": 2 * len(row.step_ids),
        "metrics": _metrics(trajectory, row),
        "extra_fields": {
            "turn_scores": list(row.step_rewards) if scored else [],
            "tool_rewards": [],
            "reward_extra_info": {name: (trajectory.rewards or {})[name] for name in names},
            **run_facts(trajectory),
            "step_ids": list(row.step_ids),
            "spans": [list(span) for span in row.spans],
            **sampling_facts(row, report),
            **_versions(row, report),
        },
    }


def _metrics(trajectory: Trajectory, row: Sequence) -> dict[str, float]:
    """Seconds spent in the row's steps and in the tools that they called; a key is absent where none is known."""
    ids = set(row.step_ids)
    spent = {
        "generate_sequences": [step.latency for step in trajectory.steps if step.id in ids],
        "tool_calls": [run.duration for run in trajectory.tool_runs if run.step_id in ids],
    }
    known = {name: [value for value in values if value is not None] for name, values in spent.items()}
    return {name: sum(values) for name, values in known.items() if values}


def _versions(row: Sequence, report: ExportReport) -> dict[str, int]:
    """Lowest and highest version of the weights that sampled the row, as steps of training; empty where one is none."""
    known = sum(version is not None for version in row.policy_versions)
    numbers = whole_numbers(sampled_versions(row), known, report, "rows", f"step {row.step_ids[0]}")
    return {"min_global_steps": min(numbers), "max_global_steps": max(numbers)} if numbers else {}
