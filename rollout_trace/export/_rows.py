"""What exporters of rows share: a row cut at its first sampled token, and what a consumer has no field for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.export._common import plain

if TYPE_CHECKING:
    from rollout_trace.export._common import ExportReport
    from rollout_trace.sequences import Sequence


class Halves(NamedTuple):
    """The prompt, and what follows it: sampled tokens and those that the environment put between them."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    """1 where the model sampled the token."""
    logprobs: list[float] | None
    """Of the response, 0.0 where the mask is 0; None when a step of the row has none."""


def halves(row: Sequence) -> Halves:
    """A row cut at its first sampled token."""
    at = row.prompt_length
    return Halves(
        plain(row.token_ids[:at]),
        plain(row.token_ids[at:]),
        plain(row.loss_mask[at:]),
        None if row.logprobs is None else plain(row.logprobs[at:]),
    )


def say_unused(row: Sequence, report: ExportReport, *, rewards: bool = True, advantages: bool = True) -> None:
    """Counts what the user set on the steps of a row and the consumer has no field for: where the argument is true."""
    where = f"step {row.step_ids[0]}"
    if rewards:
        report.drop("step rewards", sum(reward is not None for reward in row.step_rewards), where=where)
    if advantages and row.advantages is not None:
        report.drop("step advantages", len(row.step_ids), where=where)


def task_id(trajectory: Any) -> str | None:
    """The id of a trajectory's task, where it has one."""
    return None if trajectory.task is None else trajectory.task.id
