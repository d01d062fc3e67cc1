"""Runs compared within their groups, before anything is left out: a run without a row still counts in its baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.export._common import each
from rollout_trace.train.groups import Group, finite_reward, groups, run_advantages
from rollout_trace.train.selection import SequenceOptions, check_options

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence

OfRuns: TypeAlias = Literal["grpo", "leave_one_out"]
Advantages: TypeAlias = Literal["grpo", "leave_one_out", "steps"]


class RowOptions(SequenceOptions, total=False):
    """The options of exports whose rows stand for themselves: those of ``Trajectory.sequences()``, and of groups."""

    drop_constant_groups: bool
    """Leaves out the groups in which no two runs differ in reward, whose advantages are all 0, with all trajectories
    opened inside their runs. All runs of a group must then be given at once."""


class Compared(NamedTuple):
    """Trajectories to make rows of, and what the comparison of runs says of them."""

    trajectories: Iterable[Trajectory]
    advantages: dict[str, float | None]
    """Of each run that is in a group, by its id."""
    options: SequenceOptions


def compare(
    trajectories: Trajectory | Iterable[Trajectory],
    report: ExportReport,
    options: RowOptions,
    advantages: Advantages | None = None,
) -> Compared:
    """Holds the trajectories where advantages over runs or groups are asked for; otherwise they stay a stream.

    Raises:
        TypeError, ValueError: there is no such option, or it has no such value; a reward is no finite number.
    """
    own = _of_sequences(options)
    check_options(own)
    drop = options.get("drop_constant_groups", False)
    of_runs = advantages in ("grpo", "leave_one_out")
    if not drop and not of_runs:
        return Compared(each(trajectories), {}, own)
    held = list(each(trajectories))
    found = run_advantages(held, advantages) if of_runs else {}  # type: ignore[arg-type]
    return Compared(_of_different_rewards(held, report) if drop else held, found, own)


def _of_sequences(options: RowOptions) -> SequenceOptions:
    own: Any = {name: value for name, value in options.items() if name != "drop_constant_groups"}
    found: SequenceOptions = own
    return found


def check_row_options(options: RowOptions) -> None:
    """Refuses what no option can be; see ``check_options``."""
    check_options(_of_sequences(options))


def check_advantages(value: object, words: tuple[str | None, ...]) -> None:
    """Refuses what no kind of advantages is.

    Raises:
        ValueError: it is none of the words.
    """
    if value not in words:
        raise ValueError(f"advantages={value!r}: expected {', '.join(map(repr, words[:-1]))}, or {words[-1]!r}.")


def row_advantages(row: Sequence, kind: Advantages | None, of_run: float | None) -> FloatArray | None:
    """float32 [length], 0.0 where the mask is 0: of the steps, or the run's on each sampled token. None without."""
    import numpy as np

    if kind is None or kind == "steps":
        return row.advantages if kind == "steps" else None
    found: FloatArray | None = None if of_run is None else row.loss_mask * np.float32(of_run)
    return found


def _of_different_rewards(trajectories: list[Trajectory], report: ExportReport) -> list[Trajectory]:
    constant = {run.id for group in groups(trajectories) if is_constant(group) for run in group.trajectories}
    around = {trajectory.id: trajectory.parent_id for trajectory in trajectories}
    kept = [one for one in trajectories if not _is_inside(one.id, constant, around)]
    report.drop("trajectories of groups without two different rewards", len(trajectories) - len(kept))
    return kept


def is_constant(group: Group) -> bool:
    """Whether no two runs of the group differ in reward, so that there is nothing to compare.

    Raises:
        ValueError: a reward is no finite number.
    """
    return len({finite_reward(run) for run in group.trajectories if run.reward is not None}) < 2


def _is_inside(trajectory: str, runs: set[str], around: dict[str, str | None]) -> bool:
    """Whether a trajectory is one of these runs, or was opened inside one, at any depth."""
    seen: set[str] = set()
    at: str | None = trajectory
    # A file that somebody else wrote may have parents that go round in a circle.
    while at is not None and at not in seen:
        if at in runs:
            return True
        seen.add(at)
        at = around.get(at)
    return False
