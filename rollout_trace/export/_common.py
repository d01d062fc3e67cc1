"""Shared by all exporters: iteration over trajectories and their rows of tokens, and counts of what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.data import episodes as data_episodes
from rollout_trace.data.trajectory import Trajectory, each_trajectory
from rollout_trace.export._values import finite_counted, number, numbers
from rollout_trace.report import ExportReport, Strict, check_strict, format_counts
from rollout_trace.train.selection import LIMITS, check_options
from rollout_trace.train.sequences import sequences

if TYPE_CHECKING:
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequences


@contextmanager
def exporting(exporter: str, strict: Strict, report: ExportReport | None) -> Iterator[ExportReport]:
    """Yields the report to count in; at the end, logs a warning for what was left out and one for what was noted."""
    counts = ExportReport() if report is None else report
    before, noted = dict(counts.dropped), dict(counts.noted)
    counts.begin(exporter, strict)
    try:
        yield counts
    finally:
        counts.end()
    # A user's report may have counts of earlier exports: the warnings are about this one.
    left, new = _increase(counts.dropped, before), _increase(counts.noted, noted)
    if left:
        guard.warn(
            f"export.{exporter} left out: {format_counts(left)}. Pass report=ExportReport() to read the counts, or "
            "strict=True to raise instead."
        )
    if new:
        guard.warn(f"export.{exporter}: {format_counts(new)}. See docs/training.md.")


def _increase(counts: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in counts.items() if count > before.get(what, 0)}


each = each_trajectory

MAX_WAITING = 256
"""Trajectories that wait for others of their episode, at most. A process writes the lines of an episode one after the
other; lines of other processes may come between them."""


def episodes(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, *, max_waiting: int = MAX_WAITING
) -> Iterator[list[Trajectory]]:
    """The trajectories of each episode; counts those that come too late to be given with their episode."""

    def count(one: Trajectory) -> None:
        report.drop("trajectories too far from the first of their episode", where=f"trajectory {one.id}")

    return data_episodes.episodes(each(trajectories), most_waiting=max_waiting, too_late=count)


def with_steps(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
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


def scored_rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: SequenceOptions
) -> Iterator[tuple[Trajectory, Sequences]]:
    """``token_rows`` for consumers of rows alone: a scored trajectory without any is counted."""
    for trajectory, rows in token_rows(with_steps(trajectories, report), report, options):
        if not rows:
            count_without_row(trajectory, report)
        yield trajectory, rows


def token_rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: SequenceOptions
) -> Iterator[tuple[Trajectory, Sequences]]:
    """Each trajectory with its sequences, even if there are none; counts the steps and tokens that are in no row.

    Rewards that are not finite numbers are counted and replaced by None, in a copy of the trajectory.

    Raises:
        TypeError, ValueError: before the first row: an option is unknown, or has an unknown value.
    """
    # No generator function: that would check the options at the first row, not at the call.
    check_options(options)
    return (_with_rows(scored(trajectory, report), report, options) for trajectory in each(trajectories))


def _with_rows(trajectory: Trajectory, report: ExportReport, options: SequenceOptions) -> tuple[Trajectory, Sequences]:
    where = f"trajectory {trajectory.id}"
    rows = sequences(trajectory, **options)
    for reason, ids in rows.report.left_out.items():
        report.drop(f"steps left out: {reason}", len(ids), where=f"{where}, step {ids[0]}")
    limits = [name for name in LIMITS if options.get(name) is not None]
    report.drop(f"tokens cut: {', '.join(limits)}", rows.report.tokens_cut, where=where)
    for step_id, count in rows.report.masked.items():
        report.drop("sampled tokens masked for drift", count, where=f"{where}, step {step_id}")
    for reason, ids in rows.report.extras_left_out.items():
        report.drop(f"extras left out: {reason}", len(ids), where=f"{where}, step {ids[0]}", metadata=True)
    spans = {name: end - start for row in rows for name, (start, end) in zip(row.step_ids, row.spans, strict=True)}
    for grammar, ids in rows.report.constrained.items():
        count = sum(spans.get(step_id, 0) for step_id in ids)
        note_grammar(grammar, count, report)
    # Losses predict each token from those before it: without one, the first token cannot be trained on.
    report.drop("sampled tokens with no token before them", sum(not row.prompt_length for row in rows), where=where)
    return trajectory, rows


def note_grammar(grammar: str | None, count: int, report: ExportReport) -> None:
    """Counts tokens sampled under a grammar; nothing where ``grammar`` is None (see ``shaping.constrained``)."""
    if grammar is not None:
        report.note(f"tokens sampled under a grammar ({grammar}), whose ratios are not 1", count)


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


def plain(array: Any) -> Any:
    """An array as a list of Python numbers; None stays None."""
    return None if array is None else array.tolist()


def one_by_one(
    exporter: str, strict: Strict, report: ExportReport | None, rows: Callable[[ExportReport], Iterable[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """An iterator over rows, each made on demand. The warnings come after the last row.

    Raises:
        ValueError: at once: ``strict`` is none of its values.
    """
    # No generator function: that would raise at the first row, not at the call.
    check_strict(strict)

    def made() -> Iterator[dict[str, Any]]:
        with exporting(exporter, strict, report) as counts:
            yield from rows(counts)

    return made()
