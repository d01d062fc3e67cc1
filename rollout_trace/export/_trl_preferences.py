"""TRL: preferences between the runs of a group, as messages, for ``DPOTrainer`` and ``KTOTrainer``.

Shapes: TRL 1.16, its page "Dataset formats": "preference" and "unpaired preference", conversational.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.export._arrow import Rows
from rollout_trace.export._common import each, exporting
from rollout_trace.export._conversations import conversations
from rollout_trace.export._rows import count_unused
from rollout_trace.export._values import copied
from rollout_trace.train.groups import finite_reward, groups
from rollout_trace.wire.chat_messages import with_decoded_arguments, with_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.wire.chat_messages import Message


DPO_COLUMNS = dict.fromkeys(("prompt", "chosen", "rejected", "tools"), "json")
KTO_COLUMNS = {"prompt": "json", "completion": "json", "label": "bool", "tools": "json"}


def trl_dpo(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> Rows:
    """Rows for ``trl.DPOTrainer``: for each group, the run with the highest reward over the one with the lowest.

    ``prompt`` has the messages before the first answer, ``chosen`` and ``rejected`` all that follows; ``tools`` is None
    where the agent had none. The first of equal runs counts. TRL renders and tokenises the messages anew, and
    trains on all that follows the prompt, results of tools included. Tool arguments are dicts, as chat templates need
    them. Make a dataset with ``export.dataset(rows)``: ``Dataset.from_list(rows)`` gives all calls the keys and number
    types of one.

    Args:
        trajectories: one, or any iterable; all runs of a group must be in it.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out: runs that were not scored, are in no group, are not one conversation (see
            ``chat``), or continue an answer that is not to be trained on; groups in which no two of the other runs
            differ in reward; pairs whose prompts or tools differ; rewards and advantages of steps.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: a reward is no finite number.
    """
    with exporting("trl_dpo", strict, report) as counts:
        return Rows(map(copied, _pairs(trajectories, counts)), DPO_COLUMNS)


def trl_kto(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    threshold: float | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> Rows:
    """Rows for ``trl.KTOTrainer``: ``prompt`` and ``completion`` of each run as for ``trl_dpo``, and a ``label``.

    Args:
        trajectories: one, or any iterable; without a threshold all runs of a group must be in it.
        threshold: the label is True for a reward of at least this. None: True for a reward above the mean of the run's
            group; runs exactly at the mean are left out.
        strict: as for ``trl_dpo``.
        report: as for ``trl_dpo``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: a reward is no finite number.
    """
    with exporting("trl_kto", strict, report) as counts:
        labelled = (
            _by_mean(trajectories, counts) if threshold is None else _by_threshold(trajectories, threshold, counts)
        )
        rows = (_row(run, completion=run.completion, label=label) for run, label in labelled)
        return Rows(map(copied, rows), KTO_COLUMNS)


class _Run(NamedTuple):
    reward: float
    prompt: list[Message]
    completion: list[Message]
    tools: list[dict[str, Any]] | None


def _row(run: _Run, **columns: Any) -> dict[str, Any]:
    return {"prompt": run.prompt, **columns, "tools": run.tools or None}


def _pairs(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[dict[str, Any]]:
    for where, _, runs in _groups(trajectories, report):
        best = max(runs, key=lambda run: run.reward, default=None)
        worst = min(runs, key=lambda run: run.reward, default=None)
        if best is None or worst is None or best.reward == worst.reward:
            report.drop("groups without two different rewards", where=where)
        elif (best.prompt, best.tools) != (worst.prompt, worst.tools):
            report.drop("pairs whose prompts or tools differ", where=where)
        else:
            yield _row(best, chosen=best.completion, rejected=worst.completion)


def _by_mean(trajectories: Trajectory | Iterable[Trajectory], report: ExportReport) -> Iterator[tuple[_Run, bool]]:
    for where, mean, runs in _groups(trajectories, report):
        for run in runs:
            if run.reward == mean:
                report.drop("runs with the mean reward of their group", where=where)
            else:
                yield run, run.reward > mean


def _by_threshold(
    trajectories: Trajectory | Iterable[Trajectory], threshold: float, report: ExportReport
) -> Iterator[tuple[_Run, bool]]:
    for trajectory in each(trajectories):
        for run in _runs([trajectory], report):
            yield run, run.reward >= threshold


def _groups(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport
) -> Iterator[tuple[str, float, list[_Run]]]:
    """Each group: its name, the mean of its rewards, and the runs that are one conversation.

    The mean is of all scored runs, those that are left out included.
    """
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
        count_unused(trajectory, [step.id for step in chain.steps], report, versions=False, named=False)
        yield _Run(reward, messages[:first], messages[first:], chain.tools)
