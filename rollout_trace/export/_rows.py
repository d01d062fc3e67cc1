"""Shared by exporters of tokens: trajectories, their rows, advantages within groups, and counts of what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.data import episodes as data_episodes
from rollout_trace.data.episodes import lineage
from rollout_trace.data.trajectory import Trajectory, each_trajectory
from rollout_trace.export._exporter import listed
from rollout_trace.export._extras import count_extras
from rollout_trace.export._values import finite_counted, number, numbers
from rollout_trace.train.groups import Group, finite_reward, groups, run_advantages
from rollout_trace.train.selection import LIMITS, SequenceOptions, check_options
from rollout_trace.train.sequences import sequences

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.export._exporter import Trajectories
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence, Sequences

    Pair: TypeAlias = tuple[Trajectory, Sequence]

AdvantageMethod: TypeAlias = Literal["grpo", "leave_one_out"]
Advantages: TypeAlias = Literal["grpo", "leave_one_out", "steps"]

each = each_trajectory

MAX_WAITING = 256
"""Trajectories that wait for others of their episode, at most. A process writes the lines of an episode one after the
other; lines of other processes may come between them."""


class RowOptions(SequenceOptions, total=False):
    """The options of row exports: those of ``Trajectory.sequences()``, and ``drop_constant_groups``."""

    drop_constant_groups: bool
    """Leave out groups in which no two runs differ in reward (all advantages are 0), with all trajectories opened
    inside their runs. Pass all runs of a group in one call."""


# The trajectories


def episodes(
    trajectories: Trajectories, report: ExportReport, *, max_waiting: int = MAX_WAITING
) -> Iterator[list[Trajectory]]:
    """The trajectories of each episode; counts those that come too late to be given with their episode."""

    def count(one: Trajectory) -> None:
        report.drop("trajectories too far from the first of their episode", where=f"trajectory {one.id}")

    return data_episodes.episodes(each(trajectories), most_waiting=max_waiting, too_late=count)


def with_steps(trajectories: Trajectories, report: ExportReport) -> Iterator[Trajectory]:
    """The trajectories that have steps; counts the others, of which there are no rows."""
    for trajectory in each(trajectories):
        if trajectory.steps:
            yield trajectory
        else:
            report.drop("trajectories without steps", where=f"trajectory {trajectory.id}")
            count_without_row(trajectory, report)
        report.read_one()


def count_without_row(trajectory: Trajectory, report: ExportReport) -> None:
    """Counts a scored trajectory without a row: its reward is missing in the consumer's baseline as well."""
    scored = trajectory.reward is not None
    report.drop("scored trajectories without a row", scored, where=f"trajectory {trajectory.id}")


def scored(trajectory: Trajectory, report: ExportReport) -> Trajectory:
    """The trajectory itself, or a copy in which rewards are floats, and those that are not finite numbers None."""
    where = f"trajectory {trajectory.id}"
    reward = number(finite_counted(trajectory.reward, report, "rewards", where))
    named = numbers(finite_counted(trajectory.rewards, report, "rewards", where))
    rewards = [
        number(finite_counted(step.reward, report, "step rewards", f"{where}, step {step.id}"))
        for step in trajectory.steps
    ]
    pairs = list(zip(trajectory.steps, rewards, strict=True))
    unchanged = reward is trajectory.reward and named is trajectory.rewards
    if unchanged and all(step.reward is own for step, own in pairs):
        return trajectory
    steps = [step if step.reward is own else replace(step, reward=own) for step, own in pairs]
    return replace(trajectory, reward=reward, rewards=named, steps=steps)


def task_id(trajectory: Trajectory) -> str | None:
    """The id of a trajectory's task; None where it has none."""
    return None if trajectory.task is None else trajectory.task.id


def task_or_run(trajectory: Trajectory) -> str:
    """Returns what a run is compared within: its group, otherwise its task, otherwise the run itself."""
    return trajectory.group_id or task_id(trajectory) or trajectory.id


# Runs of a group


class Compared(NamedTuple):
    """Trajectories to make rows of, and the advantages of their runs."""

    trajectories: Iterable[Trajectory]
    advantages: dict[str, float | None]
    """The advantage of each run that is in a group, by trajectory id; None where it was not scored. Computed before
    anything is left out: a run without a row still counts."""
    options: SequenceOptions


def compare(
    trajectories: Trajectories, report: ExportReport, options: RowOptions, advantages: Advantages | None = None
) -> Compared:
    """The trajectories to export, with the advantages of their runs. Raises TypeError or ValueError.

    They are read into a list if runs are compared (``advantages``, ``drop_constant_groups``); else they stay a stream.
    """
    own = _sequence_options(options)
    check_options(own)
    drop = options.get("drop_constant_groups", False)
    compares_runs = advantages in ("grpo", "leave_one_out")
    if not drop and not compares_runs:
        return Compared(each(trajectories), {}, own)
    runs = list(each(trajectories))
    # Before constant groups are dropped, and of all runs: also those whose tokens cannot be used are in the baseline.
    values = run_advantages(runs, advantages) if compares_runs else {}  # type: ignore[arg-type]
    return Compared(_without_constant_groups(runs, report) if drop else runs, values, own)


def _sequence_options(options: RowOptions) -> SequenceOptions:
    own: Any = {name: value for name, value in options.items() if name != "drop_constant_groups"}
    sequence_options: SequenceOptions = own
    return sequence_options


def check_row_options(options: RowOptions, advantages: object = None, *choices: str | None) -> None:
    """Raises TypeError or ValueError for unknown options of rows, or unknown values of them or of ``advantages``."""
    if choices and advantages not in choices:
        known = f"{', '.join(map(repr, choices[:-1]))}, or {choices[-1]!r}"
        raise ValueError(f"advantages={advantages!r}: expected {known}.")
    check_options(_sequence_options(options))


def row_advantages(row: Sequence, kind: Advantages | None, run_advantage: float | None) -> FloatArray | None:
    """float32 [length], 0.0 where the mask is 0: the steps' advantages, or the run's on each sampled token; or None."""
    import numpy as np

    if kind is None or kind == "steps":
        return row.advantages if kind == "steps" else None
    values: FloatArray | None = None if run_advantage is None else row.loss_mask * np.float32(run_advantage)
    return values


def _without_constant_groups(trajectories: list[Trajectory], report: ExportReport) -> list[Trajectory]:
    constant = {run.id for group in groups(trajectories) if is_constant(group) for run in group.trajectories}
    parents = {trajectory.id: trajectory.parent_id for trajectory in trajectories}
    kept = [one for one in trajectories if not any(name in constant for name in lineage(one.id, parents))]
    report.drop("trajectories of groups without two different rewards", len(trajectories) - len(kept))
    return kept


def is_constant(group: Group) -> bool:
    """Whether no two runs of the group differ in reward, so that all advantages are 0. Raises ValueError for NaN."""
    return len({finite_reward(run) for run in group.trajectories if run.reward is not None}) < 2


# Rows of tokens


def token_rows(
    trajectories: Trajectories, report: ExportReport, options: SequenceOptions
) -> Iterator[tuple[Trajectory, Sequences]]:
    """Each trajectory with its sequences, even if there are none; counts the steps and tokens that are in no row.

    Rewards that are not finite numbers are counted and replaced by None, in a copy of the trajectory.
    """
    for trajectory in each(trajectories):
        own = scored(trajectory, report)
        rows = sequences(own, **options)
        _count(rows, report, options, f"trajectory {own.id}")
        yield own, rows


def _count(rows: Sequences, report: ExportReport, options: SequenceOptions, where: str) -> None:
    facts = rows.report
    for reason, ids in facts.left_out.items():
        report.drop(f"steps left out: {reason}", len(ids), where=f"{where}, step {ids[0]}")
    limits = [name for name in LIMITS if options.get(name) is not None]
    report.drop(f"tokens cut: {', '.join(limits)}", facts.tokens_cut, where=where)
    for step_id, count in facts.masked.items():
        report.drop("sampled tokens masked for drift", count, where=f"{where}, step {step_id}")
    for reason, ids in facts.extras_left_out.items():
        report.drop(f"extras left out: {reason}", len(ids), where=f"{where}, step {ids[0]}", metadata=True)
    spans = {name: end - start for row in rows for name, (start, end) in zip(row.step_ids, row.spans, strict=True)}
    for grammar, ids in facts.constrained.items():
        note_grammar(grammar, sum(spans.get(step_id, 0) for step_id in ids), report)
    # Losses predict each token from those before it: without one, the first token cannot be trained on.
    report.drop("sampled tokens with no token before them", sum(not row.prompt_length for row in rows), where=where)


def note_grammar(grammar: str | None, count: int, report: ExportReport) -> None:
    """Counts tokens sampled under a grammar; nothing where ``grammar`` is None (see ``shaping.constrained``)."""
    if grammar is not None:
        report.note(f"tokens sampled under a grammar ({grammar}), whose ratios are not 1", count)


def scored_rows(compared: Compared, report: ExportReport) -> Iterator[tuple[Trajectory, Sequences]]:
    """``token_rows`` for consumers of rows alone: a scored trajectory without any is counted."""
    for trajectory, rows in token_rows(with_steps(compared.trajectories, report), report, compared.options):
        if not rows:
            count_without_row(trajectory, report)
        yield trajectory, rows


def training_rows(compared: Compared, report: ExportReport, *taken: str, complete: bool = False) -> Iterator[Pair]:
    """Each row with its trajectory; counts what is not ``taken`` (see ``count_lost``).

    ``complete``: the consumer needs a reward and logprobs; rows without are left out, and counted.
    """
    for trajectory, rows in scored_rows(compared, report):
        if complete and trajectory.reward is None:
            report.drop("trajectories without a reward", where=f"trajectory {trajectory.id}")
            continue
        count_lost(trajectory, rows, report, *taken)
        for row in rows:
            if not complete or has_logprobs(row, report):
                yield trajectory, row


def has_logprobs(row: Sequence, report: ExportReport) -> bool:
    """Whether a row has logprobs; counts one that has none."""
    report.drop("rows without logprobs", row.logprobs is None, where=f"step {row.step_ids[0]}")
    return row.logprobs is not None


def scored_or_none(pairs: list[Pair], report: ExportReport) -> list[Pair]:
    """All rows where none is scored, otherwise the scored ones: for consumers of the scores of all rows or of none."""
    scored = [(trajectory, row) for trajectory, row in pairs if row.reward is not None]
    if not scored:
        return pairs
    report.drop("rows without a reward, where others have one", len(pairs) - len(scored))
    return scored


def all_have_logprobs(logprobs: list[object], report: ExportReport) -> bool:
    """Whether each row has logprobs, for consumers that take those of all rows or none. Counts what is lost."""
    unknown = sum(one is None for one in logprobs)
    report.drop("rows without logprobs", unknown)
    if unknown:
        report.drop("rows whose logprobs are left out because other rows have none", len(logprobs) - unknown)
    return not unknown


def common_names(trajectories: Iterable[Trajectory], report: ExportReport, what: str) -> list[str]:
    """Names of rewards that all have, for consumers that look up the names of the first in all; counts the others."""
    all_rewards = [trajectory.rewards or {} for trajectory in trajectories]
    names = [name for name in (all_rewards[0] if all_rewards else ()) if all(name in one for one in all_rewards)]
    others = sum(len(rewards) - len(names) for rewards in all_rewards)
    report.drop(f"rewards by name that not every {what} has", others, metadata=True)
    return names


# What consumers have no field for

_METADATA = frozenset({"policy versions", "rewards by name"})


def count_lost(trajectory: Trajectory, rows: Iterable[Sequence], report: ExportReport, *taken: str) -> None:
    """Counts what these rows have and the consumer has no field for: what is not ``taken``, as of ``count_unused``.

    Extras are ``taken`` by the name of their field: ``"routed_experts"``.
    """
    rows = list(rows)
    count_unused(trajectory, (step_id for row in rows for step_id in row.step_ids), report, *taken)
    count_extras(rows, report, *taken)


def count_unused(trajectory: Trajectory, step_ids: Iterable[str], report: ExportReport, *taken: str) -> None:
    """Counts what the user set on a trajectory and these steps of it, and for which the consumer has no field.

    ``taken``: any of ``step rewards``, ``step advantages``, ``policy versions``, ``rewards by name``.
    """
    ids = set(step_ids)
    steps = [step for step in trajectory.steps if step.id in ids]
    counts = {
        "step rewards": sum(step.reward is not None for step in steps),
        "step advantages": sum(step.advantage is not None for step in steps),
        "policy versions": sum(step.policy_version is not None for step in steps),
        "rewards by name": len(trajectory.rewards or ()) if steps else 0,
    }
    for what, count in counts.items():
        if what not in taken:
            report.drop(what, count, where=f"trajectory {trajectory.id}", metadata=what in _METADATA)


# Parts of rows


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
    logprobs = None if row.logprobs is None else row.logprobs[at:]
    return PromptAndResponse(*map(listed, (row.token_ids[:at], row.token_ids[at:], row.loss_mask[at:], logprobs)))


def run_facts(trajectory: Trajectory) -> dict[str, Any]:
    """The ids by which rows are related: ``trajectory_id``, ``group_id``, ``rollout_index``."""
    return {
        "trajectory_id": trajectory.id,
        "group_id": trajectory.group_id,
        "rollout_index": trajectory.rollout_index,
    }


def sampling_facts(row: Sequence, report: ExportReport) -> dict[str, Any]:
    """``temperature`` and ``logprobs_mode``; None where they are not known, or steps differ, which is counted."""
    # Temperatures alone: a trainer scales logits by them. Modes that differ are a finding of ``check()``.
    differ = len(set(row.temperatures)) > 1
    report.drop("temperatures of rows whose steps differ", differ, where=f"step {row.step_ids[0]}", metadata=True)
    return {"temperature": row.temperature, "logprobs_mode": row.logprobs_mode}
