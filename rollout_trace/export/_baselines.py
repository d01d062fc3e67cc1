"""Advantages of runs within their groups, computed before anything is left out: a run without a row still counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.data.episodes import lineage
from rollout_trace.export._common import each
from rollout_trace.train.groups import Group, finite_reward, groups, run_advantages
from rollout_trace.train.selection import SequenceOptions, check_options

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence

AdvantageMethod: TypeAlias = Literal["grpo", "leave_one_out"]
Advantages: TypeAlias = Literal["grpo", "leave_one_out", "steps"]


class RowOptions(SequenceOptions, total=False):
    """The options of exports of rows: those of ``Trajectory.sequences()``, and ``drop_constant_groups``."""

    drop_constant_groups: bool
    """Leave out groups in which no two runs differ in reward (all advantages are 0), with all trajectories opened
    inside their runs. All runs of a group must then be given in one call."""


class Compared(NamedTuple):
    """Trajectories to make rows of, and the advantages of their runs."""

    trajectories: Iterable[Trajectory]
    advantages: dict[str, float | None]
    """The advantage of each run that is in a group, by trajectory id; None where it was not scored."""
    options: SequenceOptions


def compare(
    trajectories: Trajectory | Iterable[Trajectory],
    report: ExportReport,
    options: RowOptions,
    advantages: Advantages | None = None,
) -> Compared:
    """The trajectories to export, with the advantages of their runs.

    They are read into a list if runs are compared (``advantages``, ``drop_constant_groups``); else they stay a stream.

    Raises:
        TypeError, ValueError: an option is unknown or has an unknown value; a reward is no finite number.
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


def check_row_options(options: RowOptions) -> None:
    """Validates options of rows; raises as ``check_options``."""
    check_options(_sequence_options(options))


def check_advantages(value: object, choices: tuple[str | None, ...]) -> None:
    """Validates the argument ``advantages`` of an exporter.

    Raises:
        ValueError: the value is none of the choices.
    """
    if value not in choices:
        raise ValueError(f"advantages={value!r}: expected {', '.join(map(repr, choices[:-1]))}, or {choices[-1]!r}.")


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
    """Whether no two runs of the group differ in reward, so that all advantages are 0.

    Raises:
        ValueError: a reward is no finite number.
    """
    return len({finite_reward(run) for run in group.trajectories if run.reward is not None}) < 2
