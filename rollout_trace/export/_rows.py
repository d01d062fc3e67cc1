"""Shared by exporters of rows: prompt and response of a row, and counts of what a consumer has no field for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.export._common import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence


class PromptAndResponse(NamedTuple):
    """The first prompt of a row, and all that follows: sampled tokens, and the environment's between them."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    """1 where the model sampled the token, 0 where it read it."""
    logprobs: list[float] | None
    """Of the response, 0.0 where the mask is 0; None when a step of the row has none."""


def prompt_and_response(row: Sequence) -> PromptAndResponse:
    """The row split at its first sampled token."""
    at = row.prompt_length
    return PromptAndResponse(
        plain(row.token_ids[:at]),
        plain(row.token_ids[at:]),
        plain(row.loss_mask[at:]),
        None if row.logprobs is None else plain(row.logprobs[at:]),
    )


def count_unused(
    trajectory: Trajectory,
    step_ids: Iterable[str],
    report: ExportReport,
    *,
    rewards: bool = True,
    advantages: bool = True,
    versions: bool = True,
    named: bool = True,
) -> None:
    """Counts what the user set on a trajectory and these steps of it, and for which the consumer has no field.

    Args:
        rewards, advantages, versions: count the steps' rewards, advantages and policy versions.
        named: count the trajectory's rewards by name.
    """
    ids = set(step_ids)
    steps = [step for step in trajectory.steps if step.id in ids]
    unused = {
        "step rewards": rewards and sum(step.reward is not None for step in steps),
        "step advantages": advantages and sum(step.advantage is not None for step in steps),
        "policy versions": versions and sum(step.policy_version is not None for step in steps),
        "rewards by name": named and bool(steps) and len(trajectory.rewards or ()),
    }
    for what, count in unused.items():
        metadata = what in ("policy versions", "rewards by name")
        report.drop(what, count, where=f"trajectory {trajectory.id}", metadata=metadata)


def sampling_facts(row: Sequence, report: ExportReport) -> dict[str, Any]:
    """``temperature`` and ``logprobs_mode`` of a row; None where they are not known, or steps differ.

    Rows whose temperatures differ are counted.
    """
    # Temperatures alone: a trainer scales logits by them. Modes that differ are a finding of ``check()``.
    differ = len(set(row.temperatures)) > 1
    report.drop("temperatures of rows whose steps differ", differ, where=f"step {row.step_ids[0]}", metadata=True)
    return {"temperature": row.temperature, "logprobs_mode": row.logprobs_mode}


def scored_or_none(pairs: list[tuple[Trajectory, Sequence]], report: ExportReport) -> list[tuple[Trajectory, Sequence]]:
    """All rows where none is scored, otherwise the scored ones: for consumers of the scores of all rows or of none."""
    scored = [(trajectory, row) for trajectory, row in pairs if row.reward is not None]
    if not scored:
        return pairs
    report.drop("rows without a reward, where others have one", len(pairs) - len(scored))
    return scored


def all_have_logprobs(logprobs: list[object], report: ExportReport) -> bool:
    """Whether each row has logprobs, for consumers that take those of all rows or of none. Counts what is lost.

    Args:
        logprobs: of each row; None where it has none.
    """
    unknown = sum(one is None for one in logprobs)
    report.drop("rows without logprobs", unknown)
    if unknown:
        report.drop("rows whose logprobs are left out because other rows have none", len(logprobs) - unknown)
    return not unknown


def step_ids_of(rows: Iterable[Sequence]) -> Iterator[str]:
    """Ids of all steps in these rows."""
    return (step_id for row in rows for step_id in row.step_ids)


def task_id(trajectory: Trajectory) -> str | None:
    """The id of a trajectory's task; None where it has none."""
    return None if trajectory.task is None else trajectory.task.id
