"""TRL: a prompt dataset of the tasks that were run, for ``GRPOTrainer`` and for the replay of recorded runs.

Shapes: TRL 1.16, its pages "Dataset formats" and "GRPO Trainer".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._arrow import Rows
from rollout_trace.export._common import each, exporting
from rollout_trace.export._rows import task_id
from rollout_trace.export._values import copied, finite_counted
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import to_chat, tools_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import Strict

COLUMNS = {
    "prompt": "json",
    "tools": "json",
    "task_id": "string",
    "task": "json",
    "group_id": "string",
    "trajectory_ids": "list<string>",
    "rewards": "list<float64>",
}


def trl_prompts(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> Rows:
    """Rows for TRL's ``GRPOTrainer``: one for each task, with its prompt as messages and its recorded runs.

    ``prompt`` has the messages of the first call of the task's first run, ``tools`` its tools (None without any),
    ``task`` the task's data. ``trajectory_ids`` and ``rewards`` are those of its runs, in order; TRL hands every column
    but ``prompt`` to the reward functions. Runs with the same ``group_id``, else the same task id, are of one task;
    without both, each run is one.

    A ``rollout_func`` that gives the recorded runs back trains on them as if they were sampled now: docs/export.md.

    Args:
        trajectories: one, or any iterable; all are read first.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out: trajectories that were opened inside another, those without messages, and what
            a chat message has no place for. Runs whose prompt is not that of the first are counted, and are in its row.

    Raises:
        ExportError: ``strict``, and something would be left out.
    """
    tasks: dict[str, dict[str, Any]] = {}
    with exporting("trl_prompts", strict, report) as counts:
        for trajectory in each(trajectories):
            counts.read_one()
            _add(trajectory, tasks, counts)
    return Rows(tasks.values(), COLUMNS)


def _add(trajectory: Trajectory, tasks: dict[str, dict[str, Any]], report: ExportReport) -> None:
    where = f"trajectory {trajectory.id}"
    lost = ExportReport()
    first = trajectory.steps[0] if trajectory.steps else None
    prompt = [] if first is None else to_chat(first, lost)
    if trajectory.parent_id is not None or first is None or not prompt:
        why = "without messages" if trajectory.parent_id is None else "inside another"
        report.drop(f"trajectories {why}", where=where)
        return
    reward = finite_counted(trajectory.reward, report, "rewards", where)
    name = trajectory.group_id or task_id(trajectory) or trajectory.id
    row = tasks.get(name)
    if row is None:
        tools = tools_of(first, lost)
        report.take(lost, where=where)
        row = tasks[name] = {
            "prompt": finite_counted(copied(prompt), report, "values of prompt", where),
            "tools": finite_counted(copied(tools), report, "values of tools", where),
            "task_id": task_id(trajectory),
            "task": None if trajectory.task is None
            else finite_counted(copied(trajectory.task.data), report, "values of task", where, metadata=True),
            "group_id": trajectory.group_id,
            "trajectory_ids": [],
            "rewards": [],
        }  # fmt: skip
    else:
        report.drop("prompts that differ from that of the task's first run", prompt != row["prompt"], where=where)
    row["trajectory_ids"].append(trajectory.id)
    row["rewards"].append(None if reward is None else float(reward))
