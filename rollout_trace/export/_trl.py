"""TRL: rows of ids and labels for ``SFTTrainer``, and what a ``rollout_func`` of ``GRPOTrainer`` returns.

Shapes: TRL 1.16, its pages "Dataset formats" and "GRPO Trainer", and ``trl/trainer/{sft,grpo}_trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.errors import ExportError
from rollout_trace.export._arrow import Rows
from rollout_trace.export._baselines import check_row_options, compare
from rollout_trace.export._common import each, exporting, one_by_one, plain, scored_rows, token_rows
from rollout_trace.export._rows import all_ids, halves, sampled_at, say_unused
from rollout_trace.export._values import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequence, Sequences

NO_LOSS = -100
"""The label of a token that is read, not learned: ``ignore_index`` of torch's cross entropy."""


def trl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Rows:
    """Rows for ``trl.SFTTrainer`` that need no tokenizer: one for each sequence.

    Each has ``input_ids``, ``labels`` (the same ids, -100 where the model did not sample them), ``reward`` and
    ``trajectory_id``; the trainer takes the first two and leaves the others to you, to filter by. Supervised training
    takes no logprobs: they are not in the rows.

    Args:
        trajectories: one, or any iterable.
        strict: raise at the first thing that would be left out.
        report: counts what is left out.
        **options: of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: something would be left out, and ``strict``.
        ValueError: an option has no such value, or a step's ``advantage`` does not fit its completion.
    """
    with exporting("trl", strict, report) as found:
        return Rows(map(_listed, _rows(trajectories, found, options)), SCHEMA)


def iter_trl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``trl``, each made when it is asked for: for ``datasets.Dataset.from_generator`` and the like."""
    check_row_options(options)
    rows = one_by_one("iter_trl", strict, report, lambda found: _rows(trajectories, found, options))
    return map(_listed, rows)


def write_trl(
    path: str | Path,
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> int:
    """Writes the rows of ``trl()`` for ``datasets.load_dataset``; returns how many.

    Args:
        path: ends in ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``.

    Raises:
        ExportError, ValueError: as ``trl``.
        ImportError, OSError: as ``write_jsonl`` and ``write_parquet``.
    """
    from rollout_trace.export._files import write_rows

    with exporting("write_trl", strict, report) as found:
        return write_rows(path, _rows(trajectories, found, options), SCHEMA)


SCHEMA = {"input_ids": "list<int32>", "labels": "list<int32>", "reward": "float64", "trajectory_id": "string"}


def _rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: RowOptions
) -> Iterator[dict[str, Any]]:
    import numpy as np

    compared = compare(trajectories, report, options)
    for trajectory, rows in scored_rows(compared.trajectories, report, compared.options):
        say_unused(trajectory, all_ids(rows), report)
        for row in rows:
            yield {
                "input_ids": row.token_ids,
                "labels": np.where(row.loss_mask, row.token_ids, NO_LOSS),
                "reward": row.reward,
                "trajectory_id": trajectory.id,
            }


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "input_ids": plain(row["input_ids"]), "labels": plain(row["labels"])}


def trl_rollout(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    several: Literal["raise", "longest"] = "raise",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[SequenceOptions],
) -> dict[str, list[Any]]:
    """What a ``rollout_func`` of ``trl.GRPOTrainer`` returns: lists with one entry for each trajectory, in order.

    ``prompt_ids``, ``completion_ids`` (all that follows the first prompt), ``logprobs`` (0.0 on tokens that were not
    sampled; None for tokens whose logprobs are not known, which TRL takes for "no correction") and ``env_mask`` (1
    where the model sampled the token) are TRL's. The others go to the reward functions as keyword arguments, one value
    a rollout: ``reward``, ``rewards``, ``step_rewards``, ``trajectory_id``, ``temperature``, ``logprobs_mode``. Without
    ``use_vllm`` GRPOTrainer does not read the logprobs: it computes those of the weights at hand.

    TRL pairs the entries with its prompts by position, so there must be exactly one row for each trajectory. Give
    outermost trajectories: those opened inside one of the others are left out and counted.

    Args:
        several: of a trajectory with several sequences (drift, forks): ``raise``, or take the one with the most sampled
            tokens and count the steps of the others.
        strict, report, **options: as for ``trl``.

    Raises:
        ExportError: a trajectory has no sequence, or has several and ``several="raise"``; or as for ``trl``.
        ValueError: there is no such ``several``; or as for ``trl``.
    """
    if several not in ("raise", "longest"):
        raise ValueError(f"several={several!r}: expected 'raise' or 'longest'.")
    columns: dict[str, list[Any]] = {name: [] for name in _ROLLOUT}
    with exporting("trl_rollout", strict, report) as found:
        for trajectory, rows in token_rows(_outermost(trajectories, found), found, options):
            found.read_one()
            row = _only(trajectory, rows, several, found)
            for name, value in zip(_ROLLOUT, _sample(trajectory, row, found), strict=True):
                columns[name].append(value)
    return columns


_ROLLOUT = (
    "prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "rewards", "step_rewards", "trajectory_id",
    "temperature", "logprobs_mode",
)  # fmt: skip


def _sample(trajectory: Trajectory, row: Sequence, report: ExportReport) -> tuple[Any, ...]:
    say_unused(trajectory, row.step_ids, report, rewards=False, named=False)
    cut = halves(row)
    logprobs: list[float | None] = list(cut.logprobs or [])
    if cut.logprobs is None:
        logprobs = [None if sampled else 0.0 for sampled in cut.response_mask]
        report.drop("rows without logprobs", where=f"trajectory {trajectory.id}")
    own: tuple[Any, ...] = (row.reward, copied(trajectory.rewards), list(row.step_rewards), trajectory.id)
    own += tuple(sampled_at(row, report).values())
    return (cut.prompt_ids, cut.response_ids, logprobs, cut.response_mask, *own)


def _outermost(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
    given = list(each(trajectories))
    ids = {trajectory.id for trajectory in given}
    for trajectory in given:
        if trajectory.parent_id in ids:
            report.drop("trajectories inside another", where=f"trajectory {trajectory.id}")
        else:
            yield trajectory


def _only(trajectory: Trajectory, rows: Sequences, several: str, report: ExportReport) -> Sequence:
    if not rows:
        left = ", ".join(f"{reason} ({len(ids)})" for reason, ids in rows.report.left_out.items()) or "it has no steps"
        raise ExportError(
            f"trajectory {trajectory.id!r} has no sequence to train on: {left}. TRL needs a row for each prompt."
        )
    if len(rows) > 1 and several == "raise":
        made = rows.report
        raise ExportError(
            f"trajectory {trajectory.id!r} has {len(rows)} sequences ({len(made.drift)} by drift, {made.forks} by "
            f"forks; {made.roots} conversations), and TRL takes one row for each rollout. Mend the drift (rt.drift() "
            "shows it), leave steps out (include=), or take one of the sequences (several='longest')."
        )
    longest = max(rows, key=lambda row: int(row.loss_mask.sum()))
    report.drop(
        "steps left out: of other sequences",
        sum(len(row.step_ids) for row in rows if row is not longest),
        where=f"trajectory {trajectory.id}",
    )
    return longest
