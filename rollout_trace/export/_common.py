"""What exporters share: trajectories one by one, their rows of tokens, and an account of what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.errors import ExportError
from rollout_trace.export._values import counted
from rollout_trace.selection import check_options
from rollout_trace.sequences import sequences
from rollout_trace.trajectories import Trajectory, each_trajectory

if TYPE_CHECKING:
    from rollout_trace.selection import SequenceOptions
    from rollout_trace.sequences import Sequences


class ExportReport:
    """What an export left out. Give one to an exporter as ``report=`` to read it afterwards."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}
        """How many of what."""
        self._strict = False
        self._exporter = "export"

    def drop(self, what: str, count: int = 1, *, where: str | None = None) -> None:
        """Counts something that the consumer cannot be given.

        Raises:
            ExportError: the export is strict.
        """
        if not count:
            return
        if self._strict:
            place = "" if where is None else f" ({where})"
            raise ExportError(
                f"export.{self._exporter}: {what}{place}: {count}. Without strict=True it would be left out."
            )
        self.dropped[what] = self.dropped.get(what, 0) + count

    def take(self, other: ExportReport, *, where: str | None = None) -> None:
        """Counts what another report has counted.

        Raises:
            ExportError: the export is strict, and there is something.
        """
        for what, count in other.dropped.items():
            self.drop(what, count, where=where)

    def __str__(self) -> str:
        return ", ".join(f"{what}: {count}" for what, count in self.dropped.items()) or "nothing was left out"


@contextmanager
def exporting(exporter: str, strict: bool, report: ExportReport | None) -> Iterator[ExportReport]:
    """Gives the report to count in, and says once, at the end, what was left out."""
    found = ExportReport() if report is None else report
    before = dict(found.dropped)
    found._strict, found._exporter = strict, exporter
    yield found
    new = {what: count - before.get(what, 0) for what, count in found.dropped.items() if count > before.get(what, 0)}
    if new:
        counts = ", ".join(f"{what}: {count}" for what, count in new.items())
        guard.warn(
            f"export.{exporter} left out: {counts}. Pass report=ExportReport() to read the counts, or strict=True to "
            "raise instead."
        )


each = each_trajectory


def with_steps(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
    """Each trajectory that has a step; counts the others, of which no row says anything."""
    for trajectory in each(trajectories):
        if trajectory.steps:
            yield trajectory
        else:
            report.drop("trajectories without steps", where=f"trajectory {trajectory.id}")


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
    # Every loss predicts a token from those before it.
    report.drop("sampled tokens with no token before them", sum(not row.prompt_length for row in rows), where=where)
    return trajectory, rows


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
