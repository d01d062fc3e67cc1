"""What exporters share: trajectories one by one, their rows of tokens, and an account of what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.data.trajectory import Trajectory, each_trajectory
from rollout_trace.export._values import counted
from rollout_trace.report import ExportReport, Strict, format_counts
from rollout_trace.train.selection import check_options
from rollout_trace.train.sequences import sequences

if TYPE_CHECKING:
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequences


@contextmanager
def exporting(exporter: str, strict: Strict, report: ExportReport | None) -> Iterator[ExportReport]:
    """Gives the report to count in, and says once, at the end, what was left out."""
    found = ExportReport() if report is None else report
    before, noted = dict(found.dropped), dict(found.noted)
    found.begin(exporter, strict)
    try:
        yield found
    finally:
        found.end()
    left, new = _more(found.dropped, before), _more(found.noted, noted)
    if left:
        guard.warn(
            f"export.{exporter} left out: {format_counts(left)}. Pass report=ExportReport() to read the counts, or "
            "strict=True to raise instead."
        )
    if new:
        guard.warn(f"export.{exporter}: {format_counts(new)}. See docs/training.md.")


def _more(counts: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in counts.items() if count > before.get(what, 0)}


each = each_trajectory


def with_steps(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
    """Each trajectory that has a step; counts the others, of which no row says anything."""
    for trajectory in each(trajectories):
        if trajectory.steps:
            yield trajectory
        else:
            report.drop("trajectories without steps", where=f"trajectory {trajectory.id}")
            say_without_row(trajectory, report)
        report.read_one()


def say_without_row(trajectory: Trajectory, report: ExportReport) -> None:
    """Counts a trajectory that was scored and of which there is no row: its reward reaches no baseline either."""
    scored = trajectory.reward is not None
    report.drop("scored trajectories without a row", scored, where=f"trajectory {trajectory.id}")


def scored_rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: SequenceOptions
) -> Iterator[tuple[Trajectory, Sequences]]:
    """``token_rows`` of consumers that take nothing but rows: a trajectory without any is counted, if it was scored."""
    for trajectory, rows in token_rows(with_steps(trajectories, report), report, options):
        if not rows:
            say_without_row(trajectory, report)
        yield trajectory, rows


def token_rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: SequenceOptions
) -> Iterator[tuple[Trajectory, Sequences]]:
    """Each trajectory with its sequences, also where it has none; counts the steps and tokens that are in no row.

    Rewards that are not finite numbers are counted, and None in what is given: the trajectory is then a copy.

    Raises:
        TypeError, ValueError: at once: there is no such option, or it has no such value.
    """
    check_options(options)
    return (_with_rows(_scored(trajectory, report), report, options) for trajectory in each(trajectories))


def _with_rows(trajectory: Trajectory, report: ExportReport, options: SequenceOptions) -> tuple[Trajectory, Sequences]:
    where = f"trajectory {trajectory.id}"
    rows = sequences(trajectory, **options)
    for reason, ids in rows.report.left_out.items():
        report.drop(f"steps left out: {reason}", len(ids), where=f"{where}, step {ids[0]}")
    report.drop("tokens cut: max_length", rows.report.tokens_cut, where=where)
    spans = {name: end - start for row in rows for name, (start, end) in zip(row.step_ids, row.spans, strict=True)}
    for grammar, ids in rows.report.constrained.items():
        count = sum(spans.get(step_id, 0) for step_id in ids)
        note_grammar(grammar, count, report)
    # Every loss predicts a token from those before it.
    report.drop("sampled tokens with no token before them", sum(not row.prompt_length for row in rows), where=where)
    return trajectory, rows


def note_grammar(grammar: str | None, count: int, report: ExportReport) -> None:
    """Counts the tokens that a grammar decided, where one did (see ``shaping.constrained``)."""
    if grammar is not None:
        report.note(f"tokens sampled under a grammar ({grammar}), whose ratios are not 1", count)


def _scored(trajectory: Trajectory, report: ExportReport) -> Trajectory:
    """The trajectory itself, or a copy without those of its rewards that are not finite numbers."""
    where = f"trajectory {trajectory.id}"
    reward = counted(trajectory.reward, report, "rewards", where)
    named = counted(trajectory.rewards, report, "rewards", where)
    rewards = [counted(step.reward, report, "step rewards", f"{where}, step {step.id}") for step in trajectory.steps]
    pairs = list(zip(trajectory.steps, rewards, strict=True))
    as_it_is = reward is trajectory.reward and named is trajectory.rewards
    if as_it_is and all(step.reward is own for step, own in pairs):
        return trajectory
    steps = [step if step.reward is own else replace(step, reward=own) for step, own in pairs]
    return replace(trajectory, reward=reward, rewards=named, steps=steps)


def plain(array: Any) -> Any:
    """An array as a list of Python numbers; None stays None."""
    return None if array is None else array.tolist()


def one_by_one(
    exporter: str, strict: Strict, report: ExportReport | None, rows: Callable[[ExportReport], Iterable[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Rows as they are asked for. What was left out is said after the last of them."""
    with exporting(exporter, strict, report) as found:
        yield from rows(found)
