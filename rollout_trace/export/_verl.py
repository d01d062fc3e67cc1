"""verl: the output of agent loops, and rows of its prompt datasets.

Shapes: verl 0.9.1, ``verl/experimental/agent_loop/agent_loop.py`` and ``verl/utils/dataset/rl_dataset.py``.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from rollout_trace.export._arrow import import_pyarrow
from rollout_trace.export._baselines import check_advantages, check_row_options, compare
from rollout_trace.export._common import each, exporting, one_by_one, scored_rows
from rollout_trace.export._extras import count_extras, experts_of_all, sampled_versions, whole_number
from rollout_trace.export._rows import (
    all_have_logprobs,
    count_unused,
    prompt_and_response,
    sampling_facts,
    scored_or_none,
    task_id,
)
from rollout_trace.export._values import copied
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import to_chat, tools_of, with_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import AdvantageMethod, RowOptions
    from rollout_trace.report import Strict
    from rollout_trace.train.sequence import Sequence
    from rollout_trace.wire.chat_messages import Message


def verl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    advantages: AdvantageMethod | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> list[dict[str, Any]]:
    """The arguments of ``AgentLoopOutput``, one dict for each sequence: ``AgentLoopOutput(**row)``.

    ``response_ids`` is all that follows the first prompt; ``response_logprobs`` is 0.0 where ``response_mask`` is 0.
    ``num_turns`` counts two for each completion, as verl does. ``extra_fields`` has the ids that relate rows
    (``trajectory_id``, ``group_id``, ``rollout_index``), the parts of the reward (``reward_extra_info``), the step
    rewards where every step has one (``turn_scores``), ``temperature`` and ``logprobs_mode``, the ``advantage`` of the
    run if ``advantages`` is set, and the policy versions where all are whole numbers, or texts of such
    (``min_global_steps``, ``max_global_steps``).

    ``routed_experts`` is an array [length - 1, layers, k] of prompt and response, in the dtype of the engine: verl
    makes int16 of it, and pads it. The key is absent where there are none.

    verl makes columns of these, for all rows or none; so does this function, for the rows of one call. One row without
    logprobs makes ``response_logprobs`` None in all, and one without experts, or with a gap in them, takes them from
    all: verl would replay expert 0 in its place. Where some trajectories are scored, the others have no row; where
    none is, ``reward_score`` is None. ``reward_extra_info`` has the names that every row has.

    The rows of a trajectory are consecutive, in order. A trajectory with several has drift or forks; an agent loop may
    return them as a list in verl's v1 trainer alone, which gives all rows the reward of the last. verl cuts nothing:
    keep rows within its lengths with ``max_prompt_length=`` and ``max_response_length=``.

    Args:
        trajectories: one, or any iterable.
        advantages: ``grpo`` or ``leave_one_out``: computed for each run within its group, however many rows it has
            (``rt.Group.advantages()``); all runs of a group must be given. Rows without one are left out. None: verl
            computes them, and counts each row of a ``uid`` as a run.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ValueError: an option has an unknown value, or a step's ``advantage`` does not fit its completion.
    """
    with exporting("verl", strict, report) as counts:
        return list(_outputs(trajectories, advantages, counts, options))


def iter_verl(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    advantages: AdvantageMethod | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``verl``, each made on demand; the arrays of all are in memory from the first row on."""
    check_advantages(advantages, _KINDS)
    check_row_options(options)
    return one_by_one("iter_verl", strict, report, lambda counts: _outputs(trajectories, advantages, counts, options))


_KINDS = ("grpo", "leave_one_out", None)


def _outputs(
    trajectories: Trajectory | Iterable[Trajectory],
    advantages: AdvantageMethod | None,
    report: ExportReport,
    options: RowOptions,
) -> Iterator[dict[str, Any]]:
    check_advantages(advantages, _KINDS)
    compared = compare(trajectories, report, options, advantages)
    # All rows before the first is given: whether a column exists depends on every row.
    pairs = [
        (trajectory, row)
        for trajectory, rows in scored_rows(compared.trajectories, report, compared.options)
        for row in rows
    ]
    if advantages is not None:
        pairs = list(_with_advantage(pairs, compared.advantages, report))
    pairs = scored_or_none(pairs, report)
    names = _common_names([trajectory for trajectory, _ in pairs], report)
    has_logprobs = all_have_logprobs([row.logprobs for _, row in pairs], report)
    experts = experts_of_all([(row, None) for _, row in pairs], report)
    for at, (trajectory, row) in enumerate(pairs):
        output = _output(trajectory, row, names, report)
        if experts is not None:
            output["routed_experts"] = experts[at].copy()
        if advantages is not None:
            output["extra_fields"]["advantage"] = compared.advantages[trajectory.id]
        yield output if has_logprobs else {**output, "response_logprobs": None}


_Pair: TypeAlias = "tuple[Trajectory, Sequence]"


def _with_advantage(pairs: list[_Pair], advantages: dict[str, float | None], report: ExportReport) -> Iterator[_Pair]:
    for trajectory, row in pairs:
        if advantages.get(trajectory.id) is None:
            report.drop("rows without an advantage", where=f"trajectory {trajectory.id}")
        else:
            yield trajectory, row


def _common_names(trajectories: list[Trajectory], report: ExportReport) -> list[str]:
    """Names of rewards that every row has: verl looks up the names of the first row in all rows."""
    all_rewards = [trajectory.rewards or {} for trajectory in trajectories]
    names = [name for name in (all_rewards[0] if all_rewards else ()) if all(name in one for one in all_rewards)]
    others = sum(len(rewards) - len(names) for rewards in all_rewards)
    report.drop("rewards by name that not every row has", others, metadata=True)
    return names


def _output(trajectory: Trajectory, row: Sequence, names: list[str], report: ExportReport) -> dict[str, Any]:
    scored = None not in row.step_rewards
    count_unused(trajectory, row.step_ids, report, rewards=not scored, versions=False, named=False)
    count_extras([row], report, "routed_experts")
    parts = prompt_and_response(row)
    return {
        "prompt_ids": parts.prompt_ids,
        "response_ids": parts.response_ids,
        "response_mask": parts.response_mask,
        "response_logprobs": parts.logprobs,
        "reward_score": row.reward,
        "num_turns": 2 * len(row.step_ids),
        "metrics": _metrics(trajectory, row),
        "extra_fields": {
            "turn_scores": list(row.step_rewards) if scored else [],
            "tool_rewards": [],
            "reward_extra_info": {name: (trajectory.rewards or {})[name] for name in names},
            "trajectory_id": trajectory.id,
            "group_id": trajectory.group_id,
            "rollout_index": trajectory.rollout_index,
            **sampling_facts(row, report),
            **_versions(row, report),
        },
    }


def _metrics(trajectory: Trajectory, row: Sequence) -> dict[str, float]:
    """Seconds spent in the row's steps and in the tools that they called; a key is absent where none is known."""
    ids = set(row.step_ids)
    spent = {
        "generate_sequences": [step.latency for step in trajectory.steps if step.id in ids],
        "tool_calls": [run.duration for run in trajectory.tool_runs if run.step_id in ids],
    }
    known = {name: [value for value in values if value is not None] for name, values in spent.items()}
    return {name: sum(values) for name, values in known.items() if values}


def _versions(row: Sequence, report: ExportReport) -> dict[str, int]:
    """Lowest and highest version of the weights that sampled the row; empty where one is no whole number.

    verl's versions are numbers of training steps.
    """
    versions = sampled_versions(row)
    numbers = [number for number in map(whole_number, versions) if number is not None]
    if len(numbers) < len(versions):
        others = sum(version is not None for version in row.policy_versions)
        where = f"step {row.step_ids[0]}"
        report.drop("policy versions of rows where not all are integers", others, where=where, metadata=True)
        return {}
    return {"min_global_steps": min(numbers), "max_global_steps": max(numbers)}


def verl_prompts(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    data_source: str,
    ability: str,
    split: str = "train",
    ground_truth: Callable[[Trajectory], str | None] | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> list[dict[str, Any]]:
    """Rows for verl's ``RLHFDataset``: the prompts of the tasks of these trajectories, to sample them again.

    One row for each task: the messages of the first call of its first run, ``data_source`` and ``ability`` as given,
    ``reward_model`` (``style`` "rule" and the ground truth) and ``extra_info`` (``index``, ``split``, ``task_id``).
    Runs with the same ``group_id``, else the same task id, are of one task; without both, each run has its own row.

    Args:
        ground_truth: returns the text that a reward function compares with; by default the task's data, as JSON unless
            it is a string.
        strict: as for ``verl``. Left out are trajectories that were opened inside another, those without messages,
            prompts of more than roles and texts, tools, and what a chat message has no place for.
        report: as for ``verl``.

    Raises:
        ExportError: ``strict``, and something would be left out.
    """
    with exporting("verl_prompts", strict, report) as counts:
        facts = {"data_source": data_source, "ability": ability, "split": split}
        return list(map(copied, _prompts(trajectories, facts, ground_truth or task_data, counts)))


def write_verl_prompts(
    path: str | Path,
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    data_source: str,
    ability: str,
    split: str = "train",
    ground_truth: Callable[[Trajectory], str | None] | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> int:
    """Writes the rows of ``verl_prompts()``; returns how many.

    Args:
        path: must end with ``.parquet``, the format of verl's documentation, or with ``.jsonl``.
    """
    from rollout_trace.export._files import write_rows

    with exporting("write_verl_prompts", strict, report) as counts:
        facts = {"data_source": data_source, "ability": ability, "split": split}
        # So that a parquet file without rows has them as well. JSON lines need no pyarrow.
        schema = prompt_schema() if str(path).endswith(".parquet") else None
        return write_rows(path, _prompts(trajectories, facts, ground_truth or task_data, counts), schema)


def _prompts(
    trajectories: Trajectory | Iterable[Trajectory],
    facts: dict[str, str],
    ground_truth: Callable[[Trajectory], str | None],
    report: ExportReport,
) -> Iterator[dict[str, Any]]:
    first_prompts: dict[str, bytes] = {}
    for trajectory in each(trajectories):
        report.read_one()
        where = f"trajectory {trajectory.id}"
        task = trajectory.group_id or task_id(trajectory) or trajectory.id
        lost = ExportReport()
        first = trajectory.steps[0] if trajectory.steps else None
        prompt = [with_text(message) for message in to_chat(first, lost)] if first is not None else []
        lost.drop("tools of prompts", len(tools_of(first, lost) or ()) if first is not None else 0)
        if trajectory.parent_id is not None:
            report.drop("trajectories inside another", where=where)
        elif not prompt:
            report.drop("trajectories without messages", where=where)
        elif task in first_prompts:
            differ = _digest(prompt) != first_prompts[task]
            report.drop("prompts that differ from that of the task's first run", differ, where=where)
        elif not all(set(message) == {"role", "content"} and _is_text(message) for message in prompt):
            report.drop("prompts of more than roles and texts", where=where)
        else:
            first_prompts[task] = _digest(prompt)
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


def _digest(prompt: list[Message]) -> bytes:
    # A digest instead of the prompt: it stays in memory for each task until the end.
    return blake2b(dumps(prompt, orjson.OPT_SORT_KEYS), digest_size=16).digest()


def prompt_schema() -> Any:
    """The column types of ``verl_prompts`` as a ``pyarrow.Schema``: verl's readers know no JSON type."""
    pa = import_pyarrow()
    text = pa.string()
    types = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"index": pa.int64(), "split": text, "task_id": text}),
    }
    return pa.schema(types)


def _is_text(message: dict[str, Any]) -> bool:
    return isinstance(message["content"], str)


def task_data(trajectory: Trajectory) -> str | None:
    """The data of a task as text: JSON, unless it is a string. None where there are none."""
    data = None if trajectory.task is None else trajectory.task.data
    return data if data is None or isinstance(data, str) else dumps(data).decode()
