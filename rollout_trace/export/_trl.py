"""TRL: rows of ids and labels for ``SFTTrainer``, and the result of a ``rollout_func`` for ``GRPOTrainer``.

Shapes: TRL 1.16, its pages "Dataset formats" and "GRPO Trainer", and ``trl/trainer/{sft,grpo}_trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.errors import ExportError
from rollout_trace.export._arrow import Rows
from rollout_trace.export._baselines import check_row_options, compare
from rollout_trace.export._common import each, exporting, one_by_one, plain, scored_rows, token_rows
from rollout_trace.export._extras import count_extras, listed_spans
from rollout_trace.export._rows import count_unused, prompt_and_response, sampling_facts, step_ids_of
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
"""The label of a token without loss: ``ignore_index`` of torch's cross entropy."""


def trl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Rows:
    """Rows for ``trl.SFTTrainer`` that need no tokenizer: one for each sequence.

    Each has ``input_ids``, ``labels`` (the same ids, -100 where the model did not sample them), ``reward`` and
    ``trajectory_id``; the trainer uses the first two, the others are there to filter by. Logprobs are not in the rows:
    supervised training needs none.

    Args:
        trajectories: one, or any iterable.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: an option has an unknown value, or a step's ``advantage`` does not fit its completion.
    """
    with exporting("trl", strict, report) as counts:
        return Rows(map(_listed, _rows(trajectories, counts, options)), SCHEMA)


def iter_trl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``trl``, each made on demand: for ``datasets.Dataset.from_generator`` and the like."""
    check_row_options(options)
    rows = one_by_one("iter_trl", strict, report, lambda counts: _rows(trajectories, counts, options))
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
        path: must end with ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``.

    Raises:
        ExportError, ValueError: as ``trl``.
        ImportError, OSError: as ``write_jsonl`` and ``write_parquet``.
    """
    from rollout_trace.export._files import write_rows

    with exporting("write_trl", strict, report) as counts:
        return write_rows(path, _rows(trajectories, counts, options), SCHEMA)


SCHEMA = {"input_ids": "list<int32>", "labels": "list<int32>", "reward": "float64", "trajectory_id": "string"}


def _rows(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: RowOptions
) -> Iterator[dict[str, Any]]:
    import numpy as np

    compared = compare(trajectories, report, options)
    for trajectory, rows in scored_rows(compared.trajectories, report, compared.options):
        count_unused(trajectory, step_ids_of(rows), report)
        count_extras(rows, report)
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
    failed: Literal["keep", "mask"] = "keep",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[SequenceOptions],
) -> dict[str, list[Any]]:
    """The result of a ``rollout_func`` for ``trl.GRPOTrainer``: lists with one entry for each trajectory, in order.

    ``prompt_ids``, ``completion_ids`` (all that follows the first prompt), ``logprobs`` (0.0 on tokens that were not
    sampled; None where they are not known, which TRL reads as "no correction") and ``env_mask`` (1 where the model
    sampled the token) are TRL's. The others are passed to the reward functions as keyword arguments, one value per
    rollout: ``reward``, ``rewards``, ``step_rewards``, ``trajectory_id``, ``temperature``, ``logprobs_mode``,
    ``policy_spans`` ([begin, end, version] in positions of ``completion_ids``, or None). Without
    ``use_vllm`` GRPOTrainer does not read the logprobs: it computes those of the current weights.

    TRL pairs the entries with its prompts by position, so there must be exactly one row for each trajectory.
    Trajectories that were opened inside one of the others are left out and counted.

    Args:
        several: for a trajectory with several sequences (drift, forks): ``raise``, or ``longest``: use the one with the
            most sampled tokens and count the steps of the others.
        failed: for a run whose status is ``failed``, ``timeout`` or ``aborted``, and for one without a sequence:
            ``mask``: a row that nothing is learnt from, the prompt's ids (or ``[0]``) and the completion ``[0]`` with
            mask 0. Its reward is the run's, None where it has none, which TRL leaves out of the baseline. ``keep``: it
            is a run as others.
        strict: as for ``trl``.
        report: as for ``trl``.
        **options: as for ``trl``.

    Raises:
        ExportError: a trajectory has no sequence, or has several and ``several="raise"``; or as for ``trl``.
        ValueError: ``several`` is unknown; or as for ``trl``.
    """
    if several not in ("raise", "longest"):
        raise ValueError(f"several={several!r}: expected 'raise' or 'longest'.")
    if failed not in ("keep", "mask"):
        raise ValueError(f"failed={failed!r}: expected 'keep' or 'mask'.")
    columns: dict[str, list[Any]] = {name: [] for name in _ROLLOUT}
    with exporting("trl_rollout", strict, report) as counts:
        for trajectory, rows in token_rows(outermost(trajectories, counts), counts, options):
            counts.read_one()
            if failed == "mask" and (not rows or trajectory.status in NOT_SUCCEEDED):
                counts.note("runs that failed, as rows that nothing is learnt from", 1)
                sample = _masked(trajectory)
            else:
                sample = _sample(trajectory, only_row(trajectory, rows, several, counts, "TRL"), counts)
            for name, value in zip(_ROLLOUT, sample, strict=True):
                columns[name].append(value)
    return columns


_ROLLOUT = (
    "prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "rewards", "step_rewards", "trajectory_id",
    "temperature", "logprobs_mode", "policy_spans",
)  # fmt: skip


def _sample(trajectory: Trajectory, row: Sequence, report: ExportReport) -> tuple[Any, ...]:
    count_unused(trajectory, row.step_ids, report, rewards=False, versions=False, named=False)
    count_extras([row], report)
    parts = prompt_and_response(row)
    logprobs: list[float | None] = list(parts.logprobs or [])
    if parts.logprobs is None:
        logprobs = [None if sampled else 0.0 for sampled in parts.response_mask]
        report.drop("rows without logprobs", where=f"trajectory {trajectory.id}")
    # The run's reward, also where ``reward="last"`` or "split" gives this row another share of it.
    extra: tuple[Any, ...] = (trajectory.reward, copied(trajectory.rewards), list(row.step_rewards), trajectory.id)
    extra += (*sampling_facts(row, report).values(), listed_spans(row, row.prompt_length))
    return (parts.prompt_ids, parts.response_ids, logprobs, parts.response_mask, *extra)


def _masked(trajectory: Trajectory) -> tuple[Any, ...]:
    """The row of a run that nothing is learnt from. TRL takes no completion without tokens."""
    ids: list[int] = next(
        (plain(step.prompt_token_ids) for step in trajectory.steps if step.prompt_token_ids is not None), []
    )
    facts: tuple[Any, ...] = (trajectory.reward, copied(trajectory.rewards), [], trajectory.id, None, None, None)
    return (ids or [0], [0], [0.0], [0], *facts)


def outermost(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[Trajectory]:
    """The trajectories that were not opened inside another of these; counts the others."""
    all_trajectories = list(each(trajectories))
    ids = {trajectory.id for trajectory in all_trajectories}
    for trajectory in all_trajectories:
        if trajectory.parent_id in ids:
            report.drop("trajectories inside another", where=f"trajectory {trajectory.id}")
        else:
            yield trajectory


def only_row(trajectory: Trajectory, rows: Sequences, several: str, report: ExportReport, consumer: str) -> Sequence:
    """The row of a run, for consumers that pair runs with rows by position.

    Raises:
        ExportError: there is none, or there are several and ``several`` is "raise".
    """
    if not rows:
        left = ", ".join(f"{reason} ({len(ids)})" for reason, ids in rows.report.left_out.items()) or "it has no steps"
        raise ExportError(
            f"trajectory {trajectory.id!r} has no sequence to train on: {left}. {consumer} needs a row for each prompt."
        )
    if len(rows) > 1 and several == "raise":
        facts = rows.report
        raise ExportError(
            f"trajectory {trajectory.id!r} has {len(rows)} sequences ({len(facts.drift)} by drift, {facts.forks} by "
            f"forks; {facts.roots} conversations), and {consumer} takes one row for each rollout. Mend the drift "
            "(rt.drift() shows it), leave steps out (include=), or take one of the sequences (several='longest')."
        )
    longest = max(rows, key=lambda row: int(row.loss_mask.sum()))
    report.drop(
        "steps left out: of other sequences",
        sum(len(row.step_ids) for row in rows if row is not longest),
        where=f"trajectory {trajectory.id}",
    )
    return longest
