"""Prompt datasets of the tasks that were run: TRL's, for ``GRPOTrainer`` and the replay of recorded runs, and verl's.

Shapes: TRL 1.16, its pages "Dataset formats" and "GRPO Trainer"; verl 0.9.1, ``verl/utils/dataset/rl_dataset.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._arrow import import_package
from rollout_trace.export._conversations import digest_of
from rollout_trace.export._exporter import Exporter, RowIterator, copied, owned
from rollout_trace.export._rows import each, task_id, task_or_run
from rollout_trace.export._values import finite_counted, number
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import to_chat, tools_of, with_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import Strict
    from rollout_trace.wire.chat_messages import Message

COLUMNS = {
    "prompt": "json",
    "tools": "json",
    "task_id": "string",
    "task": "json",
    "group_id": "string",
    "trajectory_ids": "list<string>",
    "rewards": "list<float64>",
}


@Exporter
def trl_prompts(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports rows for TRL's ``GRPOTrainer``: one for each task, with its prompt as messages and its recorded runs.

    ``prompt`` has the messages of the first call of the task's first run, ``tools`` its tools (None without any),
    ``task`` the task's data. ``trajectory_ids`` and ``rewards`` are those of its runs, in order; TRL hands every column
    but ``prompt`` to the reward functions. Runs with the same ``group_id``, otherwise the same task id, belong to one
    task; a run with neither is its own task.

    A ``rollout_func`` that returns the recorded runs trains on them as if they were sampled now: docs/train-trl.md.

    Args:
        trajectories: one, or any iterable, which is read to its end first.
        report: counts what is left out: trajectories that were opened inside another, those without messages, and what
            a chat message has no place for. Runs whose prompt differs from the first run's are counted, but stay in its
            row.
    """
    return RowIterator("trl_prompts", strict, report, lambda counts, _: _tasks(trajectories, counts).values(), COLUMNS)


def _tasks(trajectories: Trajectories, report: ExportReport) -> dict[str, Row]:
    """The row of each task, by what its runs have in common."""
    tasks: dict[str, Row] = {}
    for trajectory, first, prompt, lost in _first_calls(trajectories, report):
        where = f"trajectory {trajectory.id}"
        reward = number(finite_counted(trajectory.reward, report, "rewards", where))
        name = task_or_run(trajectory)
        if name in tasks:
            differ = prompt != tasks[name]["prompt"]
            report.drop("prompts that differ from that of the task's first run", differ, where=where)
        else:
            tools = tools_of(first, lost)
            report.take(lost, where=where)
            data = None if trajectory.task is None else trajectory.task.data
            tasks[name] = {
                "prompt": finite_counted(copied(prompt), report, "values of prompt", where),
                "tools": finite_counted(copied(tools), report, "values of tools", where),
                "task_id": task_id(trajectory),
                "task": finite_counted(copied(data), report, "values of task", where, metadata=True),
                "group_id": trajectory.group_id,
                "trajectory_ids": [],
                "rewards": [],
            }
        tasks[name]["trajectory_ids"].append(trajectory.id)
        tasks[name]["rewards"].append(reward)
    return tasks


def _first_calls(
    trajectories: Trajectories, report: ExportReport
) -> Iterator[tuple[Trajectory, Step, list[Message], ExportReport]]:
    """Each run with its first call, the messages of that, and counts of what of them has no place in chat."""
    for trajectory in each(trajectories):
        report.read_one()
        lost = ExportReport()
        first = trajectory.steps[0] if trajectory.steps else None
        prompt = [] if first is None else to_chat(first, lost)
        if trajectory.parent_id is None and first is not None and prompt:
            yield trajectory, first, prompt, lost
        else:
            why = "without messages" if trajectory.parent_id is None else "inside another"
            report.drop(f"trajectories {why}", where=f"trajectory {trajectory.id}")


def prompt_schema() -> Any:
    """The column types of ``verl_prompts`` as a ``pyarrow.Schema``: verl's readers know no JSON type."""
    pa = import_package("pyarrow")
    text = pa.string()
    types = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"index": pa.int64(), "split": text, "task_id": text}),
    }
    return pa.schema(types)


@Exporter
def verl_prompts(
    trajectories: Trajectories,
    *,
    data_source: str,
    ability: str,
    split: str = "train",
    ground_truth: Callable[[Trajectory], str | None] | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports rows for verl's ``RLHFDataset``: the prompts of these trajectories' tasks, to sample them again.

    One row for each task: the messages of the first call of its first run, ``data_source`` and ``ability`` as given,
    ``reward_model`` (``style`` "rule" and the ground truth) and ``extra_info`` (``index``, ``split``, ``task_id``).
    Runs with the same ``group_id``, otherwise the same task id, belong to one task; a run with neither has its own row.

    Args:
        ground_truth: a function that returns the text a reward function compares with; by default the task's data, as
            JSON unless it is a string.
        strict: as for ``verl``. Left out are trajectories that were opened inside another, those without messages,
            prompts of more than roles and texts, tools, and what a chat message has no place for.
    """
    facts = {"data_source": data_source, "ability": ability, "split": split}

    def make(counts: ExportReport, raw: bool) -> Iterable[Row]:
        return owned(_prompts(trajectories, facts, ground_truth or task_data, counts), raw)

    return RowIterator("verl_prompts", strict, report, make, prompt_schema)


def _prompts(
    trajectories: Trajectories,
    facts: dict[str, str],
    ground_truth: Callable[[Trajectory], str | None],
    report: ExportReport,
) -> Iterator[Row]:
    # Digests instead of prompts: they stay in memory for each task until the end.
    first_prompts: dict[str, bytes] = {}
    for trajectory, first, messages, lost in _first_calls(trajectories, report):
        where, task = f"trajectory {trajectory.id}", task_or_run(trajectory)
        prompt = [with_text(message) for message in messages]
        lost.drop("tools of prompts", len(tools_of(first, lost) or ()))
        if task in first_prompts:
            differ = digest_of(prompt) != first_prompts[task]
            report.drop("prompts that differ from that of the task's first run", differ, where=where)
        elif not all(set(one) == {"role", "content"} and isinstance(one["content"], str) for one in prompt):
            report.drop("prompts of more than roles and texts", where=where)
        else:
            first_prompts[task] = digest_of(prompt)
            report.take(lost, where=where)
            yield {
                "data_source": facts["data_source"],
                "prompt": prompt,
                "ability": facts["ability"],
                "reward_model": {"style": "rule", "ground_truth": ground_truth(trajectory)},
                "extra_info": {
                    "index": len(first_prompts) - 1,
                    "split": facts["split"],
                    "task_id": task_id(trajectory),
                },
            }


def task_data(trajectory: Trajectory) -> str | None:
    """The data of a task as text: JSON, unless it is a string. None where there are none."""
    data = None if trajectory.task is None else trajectory.task.data
    return data if data is None or isinstance(data, str) else dumps(data).decode()
