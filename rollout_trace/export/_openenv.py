"""OpenEnv: training traces.

Shapes: OpenEnv 0.10.0, ``TrainingTrace`` in ``openenv/core/harness/training.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._chat_exchange import chat_request, chat_response
from rollout_trace.export._common import count_without_row, exporting, one_by_one, with_steps
from rollout_trace.export._extras import count_step_extras
from rollout_trace.export._rows import count_unused, task_id
from rollout_trace.export._strict_json import strict_json
from rollout_trace.export._usable import check_step_options, usable_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._usable import StepOptions
    from rollout_trace.report import ExportReport, Strict


def openenv(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> list[dict[str, Any]]:
    """OpenEnv's training traces, one dict for each trajectory: ``TrainingTrace.model_validate(row["trace"])``.

    A turn for each call that can be trained on: ``node_id`` (the step's id), ``prompt_token_ids`` (whole),
    ``completion_token_ids``, ``per_token_logps``, ``loss_mask`` (0 on the prompt, 1 on the completion), ``request`` and
    ``response`` as a chat completion, and ``metadata``: ``reward`` of the step, ``policy_version``, ``turn``,
    ``finish_reason``. A trace has no reward; beside it the row has ``reward``, ``trajectory_id``, ``parent_id``,
    ``group_id``, ``rollout_index``, ``task_id``. Steps without logprobs, and those without a prompt, are left out.

    Args:
        trajectories: one, or any iterable.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: ``include``, ``allow``, ``constrained`` and ``policy_versions`` of ``Trajectory.sequences()``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        TypeError, ValueError: an option is unknown or has an unknown value.
    """
    with exporting("openenv", strict, report) as counts:
        return list(_traces(trajectories, counts, options))


def iter_openenv(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``openenv``, each made on demand."""
    check_step_options(options)
    return one_by_one("iter_openenv", strict, report, lambda counts: _traces(trajectories, counts, options))


def _traces(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: StepOptions
) -> Iterator[dict[str, Any]]:
    check_step_options(options)
    for trajectory, found in usable_steps(with_steps(trajectories, report), report, options, logprobs=True):
        # Counted there as tokens without one before them.
        steps = [step for step in found if step.prompt_token_ids is not None and len(step.prompt_token_ids)]
        if not steps:
            count_without_row(trajectory, report)
            continue
        count_unused(trajectory, [step.id for step in steps], report, rewards=False, versions=False)
        row = {
            "trace": {"schema_version": 1, "turns": [_turn(step, report) for step in steps]},
            "reward": trajectory.reward,
            "trajectory_id": trajectory.id,
            "parent_id": trajectory.parent_id,
            "group_id": trajectory.group_id,
            "rollout_index": trajectory.rollout_index,
            "task_id": task_id(trajectory),
        }
        yield strict_json(row, report, f"trajectory {trajectory.id}")


def _turn(step: Step, report: ExportReport) -> dict[str, Any]:
    import numpy as np

    count_step_extras(step, report)
    prompt, completion = step.prompt_token_ids, step.completion_token_ids
    assert prompt is not None
    assert completion is not None
    return {
        "node_id": step.id,
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "per_token_logps": step.logprobs,
        "loss_mask": np.repeat(np.array([0, 1], np.int8), [len(prompt), len(completion)]),
        "request": chat_request(step, report),
        "response": chat_response([step], report, tokens=False),
        "metadata": {
            "turn": step.index,
            "reward": step.reward,
            "policy_version": step.policy_version,
            "finish_reason": step.finish_reason,
        },
    }
