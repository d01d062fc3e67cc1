"""OpenEnv: training traces.

Shapes: OpenEnv 0.10.0, ``TrainingTrace`` in ``openenv/core/harness/training.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._calls import check_step_options, training_steps
from rollout_trace.export._exchanges import chat_request, chat_response
from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._extras import count_step_extras
from rollout_trace.export._rows import run_facts, task_id
from rollout_trace.export._values import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.export._calls import StepOptions
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import ExportReport, Strict


@Exporter
def openenv(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> RowIterator:
    """Exports OpenEnv's training traces, one dict for each trajectory: ``TrainingTrace.model_validate(row["trace"])``.

    Each trainable call is a turn with ``node_id`` (the step's id), ``prompt_token_ids`` (whole),
    ``completion_token_ids``, ``per_token_logps``, ``loss_mask`` (0 on the prompt, 1 on the completion), ``request`` and
    ``response`` as a chat completion, and ``metadata``: ``reward`` of the step, ``policy_version``, ``turn``,
    ``finish_reason``. A trace has no reward; beside it, the row has ``reward``, ``trajectory_id``, ``parent_id``,
    ``group_id``, ``rollout_index``, ``task_id``. Steps without logprobs, and those without a prompt, are left out.
    """
    check_step_options(options)
    return RowIterator(
        "openenv", strict, report, lambda counts, raw: _traces(trajectories, counts, options, raw), checked=True
    )


def _traces(trajectories: Trajectories, report: ExportReport, options: StepOptions, raw: bool) -> Iterator[Row]:
    taken = "step rewards", "policy versions"
    for trajectory, steps in training_steps(trajectories, report, options, *taken, complete=True):
        row = {
            "trace": {"schema_version": 1, "turns": [_turn(step, report) for step in steps]},
            "reward": trajectory.reward,
            "trajectory_id": trajectory.id,
            "parent_id": trajectory.parent_id,
            **run_facts(trajectory),
            "task_id": task_id(trajectory),
        }
        yield strict_json(row, report, f"trajectory {trajectory.id}", arrays=raw)


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
