"""TRL: rows for ``SFTTrainer``, ``DPOTrainer`` and ``KTOTrainer``, and the result of a ``rollout_func`` for GRPO.

Shapes: TRL 1.16, its pages "Dataset formats" ("preference" and "unpaired preference", conversational) and "GRPO
Trainer", and ``trl/trainer/{sft,grpo}_trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.errors import ExportError
from rollout_trace.export._conversations import conversations
from rollout_trace.export._exporter import Exporter, RowIterator, copied, exporting, listed, owned
from rollout_trace.export._extras import listed_spans
from rollout_trace.export._rows import (
    check_row_options,
    compare,
    count_lost,
    count_unused,
    each,
    prompt_and_response,
    sampling_facts,
    token_rows,
    training_rows,
)
from rollout_trace.train.groups import finite_reward, groups
from rollout_trace.train.selection import check_options
from rollout_trace.wire.chat_messages import with_decoded_arguments, with_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import Pair, RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequence, Sequences
    from rollout_trace.wire.chat_messages import Message

NO_LOSS = -100
"""The label of a token without loss: ``ignore_index`` of torch's cross entropy."""
COLUMNS = {"input_ids": "list<int32>", "labels": "list<int32>", "reward": "float64", "trajectory_id": "string"}
DPO_COLUMNS = dict.fromkeys(("prompt", "chosen", "rejected", "tools"), "json")
KTO_COLUMNS = {"prompt": "json", "completion": "json", "label": "bool", "tools": "json"}


@Exporter
def trl(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports rows for ``trl.SFTTrainer`` that need no tokenizer: one for each sequence.

    Each row has ``input_ids``, ``labels`` (the same ids, -100 where the model did not sample them), ``reward`` and
    ``trajectory_id``. The trainer uses the first two; the others are for filtering. Logprobs are not in the rows:
    supervised training needs none.
    """
    check_row_options(options)
    return RowIterator(
        "trl", strict, report, lambda counts, raw: owned(_rows(trajectories, counts, options), raw), COLUMNS
    )


def _rows(trajectories: Trajectories, report: ExportReport, options: RowOptions) -> Iterator[Row]:
    import numpy as np

    for trajectory, row in training_rows(compare(trajectories, report, options), report):
        yield {
            "input_ids": row.token_ids,
            "labels": np.where(row.loss_mask, row.token_ids, NO_LOSS),
            "reward": row.reward,
            "trajectory_id": trajectory.id,
        }


# One row for each run


def trl_rollout(
    trajectories: Trajectories,
    *,
    several: Literal["raise", "longest"] = "raise",
    failed: Literal["keep", "mask"] = "keep",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[SequenceOptions],
) -> dict[str, list[Any]]:
    """Returns the result of a ``rollout_func`` for ``trl.GRPOTrainer``: lists with one entry per trajectory, in order.

    ``prompt_ids``, ``completion_ids`` (all that follows the first prompt), ``logprobs`` (0.0 on tokens that were not
    sampled; None if they are unknown, which TRL reads as "no correction") and ``env_mask`` (1 where the model sampled
    the token) are TRL's. The others are passed to the reward functions as keyword arguments, one value per rollout:
    ``reward``, ``rewards``, ``step_rewards``, ``trajectory_id``, ``temperature``, ``logprobs_mode``, ``policy_spans``
    ([begin, end, version] in positions of ``completion_ids``, or None), and the row's steps: ``step_ids``, and
    ``spans``, the [begin, end] of each step's completion in prompt and completion. Without ``use_vllm`` GRPOTrainer
    does not read the logprobs: it computes those of the current weights.

    TRL pairs the entries with its prompts by position, so there must be exactly one row for each trajectory.
    Trajectories opened inside another one are left out and counted.

    Args:
        several: what to do with a trajectory that has several sequences (drift, forks): ``raise``, or ``longest``: use
            the one with the most sampled tokens and count the steps of the others.
        failed: what to do with a run whose status is ``failed``, ``timeout`` or ``aborted``, or that has no sequence.
            ``mask``: a row that does not train: the prompt's ids (or ``[0]``) and the completion ``[0]`` with mask 0.
            Its reward is the run's; if None, TRL leaves it out of the baseline. ``keep``: treat it like any other run.

    Raises:
        ExportError: a trajectory has no sequence, or has several and ``several="raise"``.
        ValueError: ``several`` or ``failed`` is unknown.
    """
    check_several(several, options)
    if failed not in ("keep", "mask"):
        raise ValueError(f"failed={failed!r}: expected 'keep' or 'mask'.")
    columns: dict[str, list[Any]] = {name: [] for name in _NOTHING}
    with exporting("trl_rollout", strict, report) as counts:
        for trajectory, rows in token_rows(_outermost(trajectories, counts), counts, options):
            counts.read_one()
            if failed == "mask" and (not rows or trajectory.status in NOT_SUCCEEDED):
                counts.note("runs that failed, as rows that nothing is learnt from", 1)
                sample = _masked(trajectory)
            else:
                sample = _sample(trajectory, _only_row(trajectory, rows, several, counts, "TRL"), counts)
            for name, values in columns.items():
                values.append(sample[name])
    return columns


_NOTHING: dict[str, Any] = {
    "prompt_ids": [0], "completion_ids": [0], "logprobs": [0.0], "env_mask": [0], "reward": None, "rewards": None,
    "step_rewards": [], "trajectory_id": None, "temperature": None, "logprobs_mode": None, "policy_spans": None,
    "step_ids": [], "spans": [],
}  # fmt: skip
"""The columns of a rollout, with what they have for a run that nothing is learnt from."""


def _sample(trajectory: Trajectory, row: Sequence, report: ExportReport) -> dict[str, Any]:
    count_lost(trajectory, [row], report, "step rewards", "policy versions", "rewards by name")
    parts = prompt_and_response(row)
    logprobs: list[float | None] = list(parts.logprobs or [])
    if parts.logprobs is None:
        logprobs = [None if sampled else 0.0 for sampled in parts.response_mask]
        report.drop("rows without logprobs", where=f"trajectory {trajectory.id}")
    return {
        "prompt_ids": parts.prompt_ids,
        "completion_ids": parts.response_ids,
        "logprobs": logprobs,
        "env_mask": parts.response_mask,
        **_run_facts(trajectory),
        "step_rewards": list(row.step_rewards),
        **sampling_facts(row, report),
        "policy_spans": listed_spans(row, row.prompt_length),
        "step_ids": list(row.step_ids),
        "spans": [list(span) for span in row.spans],
    }


def _run_facts(trajectory: Trajectory) -> dict[str, Any]:
    # The run's reward, also where ``reward="last"`` or "split" gives its row another share of it.
    return {"reward": trajectory.reward, "rewards": copied(trajectory.rewards), "trajectory_id": trajectory.id}


def _masked(trajectory: Trajectory) -> dict[str, Any]:
    """The row of a run that nothing is learnt from. TRL takes no completion without tokens."""
    first = next((step.prompt_token_ids for step in trajectory.steps if step.prompt_token_ids is not None), None)
    return {**copied(_NOTHING), "prompt_ids": listed(first) or [0], **_run_facts(trajectory)}


def check_several(several: str, options: SequenceOptions) -> None:
    """Validates the options of exports with one row for each run; raises TypeError or ValueError."""
    if several not in ("raise", "longest"):
        raise ValueError(f"several={several!r}: expected 'raise' or 'longest'.")
    check_options(options)


def one_row_each(
    trajectories: Trajectories, several: str, report: ExportReport, options: SequenceOptions, consumer: str
) -> Iterator[Pair]:
    """Each run with its row, for consumers that pair runs with rows by position; counts those inside another."""
    for trajectory, rows in token_rows(_outermost(trajectories, report), report, options):
        report.read_one()
        yield trajectory, _only_row(trajectory, rows, several, report, consumer)


def _outermost(trajectories: Trajectories, report: ExportReport) -> Iterator[Trajectory]:
    """The trajectories that were not opened inside another of these; counts the others."""
    all_trajectories = list(each(trajectories))
    ids = {trajectory.id for trajectory in all_trajectories}
    for trajectory in all_trajectories:
        if trajectory.parent_id in ids:
            report.drop("trajectories inside another", where=f"trajectory {trajectory.id}")
        else:
            yield trajectory


def _only_row(trajectory: Trajectory, rows: Sequences, several: str, report: ExportReport, consumer: str) -> Sequence:
    """The row of a run. Raises ExportError where there is none, or there are several and ``several`` is "raise"."""
    if not rows:
        left = ", ".join(f"{reason} ({len(ids)})" for reason, ids in rows.report.left_out.items()) or "it has no steps"
        raise ExportError(
            f"trajectory {trajectory.id!r} has no sequence to train on: {left}. {consumer} needs a row for each prompt."
        )
    if len(rows) > 1 and several == "raise":
        facts = rows.report
        raise ExportError(
            f"trajectory {trajectory.id!r} has {len(rows)} sequences ({len(facts.drift)} by drift, {facts.forks} by "
            f"forks; {facts.roots} conversations), but {consumer} takes one row for each rollout. Mend the drift "
            "(rt.drift() shows it), leave steps out (include=), or take the longest sequence (several='longest')."
        )
    longest = max(rows, key=lambda row: int(row.loss_mask.sum()))
    report.drop(
        "steps left out: of other sequences",
        sum(len(row.step_ids) for row in rows if row is not longest),
        where=f"trajectory {trajectory.id}",
    )
    return longest


# Preferences between the runs of a group, as messages


@Exporter
def trl_dpo(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports rows for ``trl.DPOTrainer``: each group's run with the highest reward, over the one with the lowest.

    ``prompt`` has the messages before the first answer; ``chosen`` and ``rejected`` have all that follow. ``tools`` is
    None if the agent had none. Of runs with equal rewards, the first is used. TRL renders and tokenises the messages
    again, and trains on everything after the prompt, including tool results. Tool arguments are dicts, as chat
    templates need them. Make a dataset with ``export.dataset(rows)``: ``Dataset.from_list(rows)`` would give all tool
    calls the same keys and number types.

    Args:
        trajectories: one, or any iterable with all runs of each group.
        report: counts what is left out: runs that were not scored, are in no group, are not one conversation (see
            ``chat``), or continue an answer that must not be trained on; groups in which no two of the other runs
            differ in reward; pairs whose prompts or tools differ; rewards and advantages of steps.

    Raises:
        ValueError: a reward is no finite number.
    """
    return RowIterator(
        "trl_dpo", strict, report, lambda counts, raw: owned(_pairs(trajectories, counts), raw), DPO_COLUMNS
    )


@Exporter
def trl_kto(
    trajectories: Trajectories,
    *,
    threshold: float | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports rows for ``trl.KTOTrainer``: each run's ``prompt`` and ``completion`` (see ``trl_dpo``), and a ``label``.

    Args:
        trajectories: one, or any iterable; without a threshold, with all runs of each group.
        threshold: the label is True for a reward of at least this. None: True for a reward above the mean of the run's
            group; runs exactly at the mean are left out.

    Raises:
        ValueError: a reward is no finite number.
    """
    return RowIterator(
        "trl_kto",
        strict,
        report,
        lambda counts, raw: owned(_labelled(trajectories, threshold, counts), raw),
        KTO_COLUMNS,
    )


class _Run(NamedTuple):
    reward: float
    prompt: list[Message]
    completion: list[Message]
    tools: list[dict[str, Any]] | None


def _row(run: _Run, **columns: Any) -> Row:
    return {"prompt": run.prompt, **columns, "tools": run.tools or None}


def _pairs(trajectories: Trajectories, report: ExportReport) -> Iterator[Row]:
    for where, _, runs in _groups(trajectories, report):
        best = max(runs, key=lambda run: run.reward, default=None)
        worst = min(runs, key=lambda run: run.reward, default=None)
        if best is None or worst is None or best.reward == worst.reward:
            report.drop("groups without two different rewards", where=where)
        elif (best.prompt, best.tools) != (worst.prompt, worst.tools):
            report.drop("pairs whose prompts or tools differ", where=where)
        else:
            yield _row(best, chosen=best.completion, rejected=worst.completion)


def _labelled(trajectories: Trajectories, threshold: float | None, report: ExportReport) -> Iterator[Row]:
    found = _by_mean(trajectories, report) if threshold is None else _by_threshold(trajectories, threshold, report)
    for run, label in found:
        yield _row(run, completion=run.completion, label=label)


def _by_mean(trajectories: Trajectories, report: ExportReport) -> Iterator[tuple[_Run, bool]]:
    for where, mean, runs in _groups(trajectories, report):
        for run in runs:
            if run.reward == mean:
                report.drop("runs with the mean reward of their group", where=where)
            else:
                yield run, run.reward > mean


def _by_threshold(trajectories: Trajectories, threshold: float, report: ExportReport) -> Iterator[tuple[_Run, bool]]:
    for run in _runs(each(trajectories), report):
        yield run, run.reward >= threshold


def _groups(trajectories: Trajectories, report: ExportReport) -> Iterator[tuple[str, float, list[_Run]]]:
    """Each group: its name, the mean of all its rewards, and the runs that are one conversation."""
    all_trajectories = list(each(trajectories))
    all_groups = groups(all_trajectories)
    report.drop(
        "trajectories in no group",
        len(all_trajectories) - sum(len(group.trajectories) for group in all_groups),
    )
    for group in all_groups:
        yield f"group {group.id}", group.mean or 0.0, list(_runs(group.trajectories, report))


def _runs(trajectories: Iterable[Trajectory], report: ExportReport) -> Iterator[_Run]:
    for trajectory in trajectories:
        report.read_one()
        where = f"trajectory {trajectory.id}"
        if trajectory.reward is None:
            report.drop("trajectories without a reward", where=where)
            continue
        reward = finite_reward(trajectory)
        chains = conversations(trajectory, report)
        if len(chains) != 1:
            report.drop("trajectories that are not one conversation", where=where)
            continue
        chain = chains[0]
        messages = [with_decoded_arguments(with_text(message), report) for message in chain.messages]
        first = chain.answers[0]
        # TRL trains on every assistant message after the prompt, so each must be the answer of a usable step.
        replies = {at for at, message in enumerate(messages) if at >= first and message.get("role") == "assistant"}
        if replies - set(chain.answers):
            report.drop("trajectories that go on from an answer that cannot be trained on", where=where)
            continue
        taken = "policy versions", "rewards by name"
        count_unused(trajectory, (step.id for step in chain.steps), report, *taken)
        yield _Run(reward, messages[:first], messages[first:], chain.tools)
