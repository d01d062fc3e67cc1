"""A dataset of turns for agents on repositories: one row for each call, with the columns of Agent-lightning's.

Shapes: the dataset that Agent-lightning's example ``claude_code`` saves (``claude_code_agent.py`` and
``extended_adapter.py``, 0.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.export._arrow import Rows
from rollout_trace.export._common import count_without_row, exporting, one_by_one, plain, with_steps
from rollout_trace.export._extras import count_step_extras
from rollout_trace.export._files import write_rows
from rollout_trace.export._rows import count_unused, task_id
from rollout_trace.export._usable import check_step_options, count_last_reward, step_rewards, usable_steps
from rollout_trace.file.plain import dumps
from rollout_trace.wire.chat_messages import to_chat, with_text

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._usable import StepOptions
    from rollout_trace.report import ExportReport, Strict

    Decode: TypeAlias = Callable[[list[int]], str]

TURN_COLUMNS = {
    "repo": "string",
    "instance_id": "string",
    "turn": "int64",
    "prompt_ids": "list<int32>",
    "gold_completion_ids": "list<int32>",
    "logprobs": "list<float32>",
    "reward": "float64",
    "prompt": "string",
    "messages": "json",
}
"""The columns of ``turns``, with their types (see ``rollout_trace.export.arrow``)."""


def turns(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    decode: Decode | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> Rows:
    """One row for each call that can be trained on token for token, in the order of the calls.

    - ``repo``: ``task.data["repo"]``; empty where there is none
    - ``instance_id``: ``task.data["instance_id"]``, else the task's id, else the trajectory's
    - ``turn``: the step's position in its trajectory
    - ``prompt_ids``, ``gold_completion_ids``: the whole prompt of the turn, and what was sampled, as the engine gave
      them
    - ``logprobs``: one for each id of the completion; None where the engine gave none
    - ``reward``: the step's own, else that of the next step that has one; the last step has the trajectory's. None: not
      scored
    - ``prompt``: the text of ``prompt_ids``, by ``decode``; None without it
    - ``messages``: those of the request as chat messages, every value a text: contents in parts of text are one text,
      everything else that is no text (tool calls, images) is JSON

    Args:
        trajectories: one, or any iterable.
        decode: makes text of token ids: ``tokenizer.decode``.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: ``include``, ``allow``, ``constrained`` and ``policy_versions`` of ``Trajectory.sequences()``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        TypeError, ValueError: an option is unknown or has an unknown value.
    """
    with exporting("turns", strict, report) as counts:
        return Rows(map(_listed, _rows(trajectories, decode, counts, options)), TURN_COLUMNS)


def iter_turns(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    decode: Decode | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``turns``, each made on demand."""
    check_step_options(options)
    rows = one_by_one("iter_turns", strict, report, lambda counts: _rows(trajectories, decode, counts, options))
    return map(_listed, rows)


def write_turns(
    path: str | os.PathLike[str],
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    decode: Decode | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> int:
    """Writes the rows of ``turns`` to ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``; returns their number.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ImportError, OSError: as ``write_jsonl`` and ``write_parquet``.
        TypeError, ValueError: as ``turns``, or the name has another suffix.
    """
    with exporting("write_turns", strict, report) as counts:
        return write_rows(path, _rows(trajectories, decode, counts, options), TURN_COLUMNS)


def _rows(
    trajectories: Trajectory | Iterable[Trajectory],
    decode: Decode | None,
    report: ExportReport,
    options: StepOptions,
) -> Iterator[dict[str, Any]]:
    check_step_options(options)
    for trajectory, steps in usable_steps(with_steps(trajectories, report), report, options):
        if not steps:
            count_without_row(trajectory, report)
        count_unused(trajectory, [step.id for step in steps], report, rewards=False)
        count_last_reward(trajectory, steps, report)
        for step, reward in zip(steps, _rewards_to_come(step_rewards(trajectory, steps)), strict=True):
            count_step_extras(step, report)
            yield {
                **_instance(trajectory),
                "turn": step.index,
                "prompt_ids": step.prompt_token_ids,
                "gold_completion_ids": step.completion_token_ids,
                "logprobs": step.logprobs,
                "reward": reward,
                "prompt": None if decode is None else decode(plain(step.prompt_token_ids)),
                "messages": None if step.messages is None else _flat_messages(step, report),
            }


def _rewards_to_come(rewards: list[float | None]) -> list[float | None]:
    """For each step its reward, else that of the next one that has one."""
    found: list[float | None] = []
    latest: float | None = None
    for reward in reversed(rewards):
        latest = latest if reward is None else reward
        found.append(latest)
    return found[::-1]


def _instance(trajectory: Trajectory) -> dict[str, str]:
    data = None if trajectory.task is None else trajectory.task.data
    facts = data if isinstance(data, Mapping) else {}
    instance = facts.get("instance_id")
    if not isinstance(instance, str):
        instance = task_id(trajectory) or trajectory.id
    repo = facts.get("repo")
    return {"repo": repo if isinstance(repo, str) else "", "instance_id": instance}


def _flat_messages(step: Step, report: ExportReport) -> list[dict[str, str]]:
    """Chat messages whose values are all texts, as nested columns of datasets need one shape."""
    messages = [with_text(message) for message in to_chat(step, report)]
    return [
        {str(name): value if isinstance(value, str) else _text(value) for name, value in message.items()}
        for message in messages
    ]


def _text(value: Any) -> str:
    return "" if value is None else dumps(value).decode()


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) if hasattr(value, "dtype") else value for name, value in row.items()}
