"""Shared by exporters of single calls: the steps that can be trained on, and counts of what is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, TypedDict

from rollout_trace._field_docs import document_fields
from rollout_trace.export._rows import count_unused, count_without_row, note_grammar, scored, with_steps
from rollout_trace.export._values import number
from rollout_trace.train.selection import (
    check_options,
    have_wanted_versions,
    n_prompt,
    n_sampled,
    reason_left_out,
)
from rollout_trace.train.shaping import constrained

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Trajectories
    from rollout_trace.report import ExportReport


@document_fields
class StepOptions(TypedDict, total=False):
    """The options of ``Trajectory.sequences()`` that choose single steps."""

    include: Callable[[Step], bool] | None
    """A function that returns True for the usable steps to keep."""
    allow: Collection[str]
    """Reasons that do not exclude a step, such as ``{"abandoned", "retokenized"}``."""
    constrained: Literal["keep", "drop"]
    """``drop`` leaves out steps that were sampled under a grammar."""
    policy_versions: Collection[str | int] | Callable[[str | int | None], bool] | None
    """Allowed versions of the weights. A usable step with another version excludes its whole trajectory."""


def check_step_options(options: StepOptions) -> None:
    """Raises TypeError or ValueError for options of steps that are unknown or have an unknown value."""
    unknown = options.keys() - StepOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(StepOptions.__annotations__)
        raise TypeError(f"exports of steps have no option {', '.join(sorted(unknown))}; they have {known}.")
    check_options(options)  # type: ignore[arg-type]  # its options are among those of sequences


def usable_steps(
    trajectories: Iterable[Trajectory], report: ExportReport, options: StepOptions, *, logprobs: bool = False
) -> Iterator[tuple[Trajectory, list[Step]]]:
    """Each trajectory with its steps that can be trained on token for token; counts the others by reason.

    Rewards that are not finite numbers are counted and are None; with ``logprobs`` steps need these.
    """
    for one in trajectories:
        trajectory = scored(one, report)
        where = f"trajectory {trajectory.id}"
        steps = []
        for step in trajectory.steps:
            reason = reason_left_out(step, options)  # type: ignore[arg-type]
            if reason is None and logprobs and step.logprobs is None:
                reason = "logprobs_missing"
            if reason is None:
                steps.append(step)
            else:
                report.drop(f"steps left out: {reason}", where=f"{where}, step {step.id}")
        if not have_wanted_versions(steps, options):  # type: ignore[arg-type]
            report.drop("steps left out: policy_version", len(steps), where=where)
            steps = []
        unseen = sum(not n_prompt(step) for step in steps)
        report.drop("sampled tokens with no token before them", unseen, where=where)
        for step in steps:
            note_grammar(constrained(step), n_sampled(step) or 0, report)
        yield trajectory, steps


def training_steps(
    trajectories: Trajectories, report: ExportReport, options: StepOptions, *taken: str, complete: bool = False
) -> Iterator[tuple[Trajectory, list[Step]]]:
    """Each trajectory with its usable steps, if any; counts what is not ``taken`` (see ``count_unused``).

    ``complete``: the consumer needs a prompt and logprobs; steps without are left out, and counted.
    """
    for trajectory, found in usable_steps(with_steps(trajectories, report), report, options, logprobs=complete):
        # Counted there as tokens without one before them.
        steps = [step for step in found if n_prompt(step)] if complete else found
        if steps:
            count_unused(trajectory, (step.id for step in steps), report, *taken)
            yield trajectory, steps
        else:
            count_without_row(trajectory, report)


def count_last_reward(trajectory: Trajectory, step: Step, report: ExportReport) -> None:
    """Counts the last step's own reward where the run's stands in its place: consumers read a run's reward there."""
    lost = trajectory.reward is not None and step.reward is not None
    report.drop("rewards of last steps, in whose place the run's stands", lost, where=f"trajectory {trajectory.id}")


def rewards_to_come(trajectory: Trajectory, steps: list[Step]) -> list[float | None]:
    """For each step its reward, else that of the next one that has one; the last has the trajectory's, if scored."""
    rewards = [number(step.reward) for step in steps]
    if trajectory.reward is not None:
        rewards[-1] = float(trajectory.reward)
    for at in range(len(rewards) - 2, -1, -1):
        rewards[at] = rewards[at + 1] if rewards[at] is None else rewards[at]
    return rewards


def calls_in_order(found: list[tuple[Trajectory, list[Step]]]) -> list[tuple[Trajectory, Step]]:
    """The steps of a run's trajectories by the time they began; as they are where a time is not known."""
    calls = [(trajectory, step) for trajectory, steps in found for step in steps]
    if any(step.started_at is None for _, step in calls):
        return calls
    return sorted(calls, key=lambda call: call[1].started_at)  # type: ignore[arg-type,return-value]
