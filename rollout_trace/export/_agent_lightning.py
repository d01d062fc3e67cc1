"""Agent-lightning: rollouts of triplets.

Shapes: agentlightning 1.0.2, ``Triplet`` and ``CompletedRollout`` in ``agentlightning/verl/agl_rollout_manager.py``, as
its ``RolloutAdapter`` makes verl's batches of them (``agentlightning/verl/rollout_adapter.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import NOT_SUCCEEDED, episode_of, outermost_of
from rollout_trace.export._common import episodes, exporting, one_by_one
from rollout_trace.export._extras import count_step_extras
from rollout_trace.export._rows import count_unused, task_id
from rollout_trace.export._strict_json import strict_json
from rollout_trace.export._usable import calls_in_order, check_step_options, count_last_reward, usable_steps
from rollout_trace.export._values import copied
from rollout_trace.wire.chat_messages import answer, to_chat

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._usable import StepOptions
    from rollout_trace.report import ExportReport, Strict


def agent_lightning(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> list[dict[str, Any]]:
    """Agent-lightning's rollouts, one dict for each run: ``CompletedRollout(**row)`` with ``triplets``.

    The triplets are the calls of the run that can be trained on, sub-agents' included, in the order in which they
    began. ``prompt`` has ``token_ids`` (the whole prompt of the turn) and ``raw_content`` (chat messages); ``response``
    has ``token_ids``, ``raw_content`` and ``log_probs``: a number for each id, None where the engine gave none;
    ``image_urls`` are those of the prompt, None where it has no images. ``reward`` is the step's own; on the last
    triplet it is the run's, which is ``final_reward``, too: that of the outermost trajectory, None where it was not
    scored (its ``RolloutAdapter`` then takes ``reward_fillna_value``). ``metadata`` of a triplet has ``response_id``,
    ``agent_name``, ``sequence_id`` (the step's position in its trajectory), ``trajectory_id``, ``step_id``,
    ``policy_version``; that of a rollout ``group_id``, ``rollout_index``, ``task_id``, ``rewards`` by name.

    ``data_id`` is the group (else the task, else the run), whose runs Agent-lightning compares, and
    ``sample_idx_in_step`` its number, from 0. ``step`` is 0: all rows are of one batch. ``enqueue_time`` and
    ``finished_at`` are seconds since 1970; a run whose begin is not known has 0.0.

    Args:
        trajectories: one, or any iterable. Those of an episode need not stand together: 256 wait for the others.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: ``include``, ``allow``, ``constrained`` and ``policy_versions`` of ``Trajectory.sequences()``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        TypeError, ValueError: an option is unknown or has an unknown value.
    """
    with exporting("agent_lightning", strict, report) as counts:
        return list(_rollouts(trajectories, counts, options))


def iter_agent_lightning(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> Iterator[dict[str, Any]]:
    """The rollouts of ``agent_lightning``, each made on demand."""
    check_step_options(options)
    return one_by_one("iter_agent_lightning", strict, report, lambda counts: _rollouts(trajectories, counts, options))


def _rollouts(
    trajectories: Trajectory | Iterable[Trajectory], report: ExportReport, options: StepOptions
) -> Iterator[dict[str, Any]]:
    check_step_options(options)
    numbers: dict[str, int] = {}
    for group in episodes(trajectories, report):
        found = list(usable_steps(group, report, options))
        for trajectory, steps in found:
            report.read_one()
            count_unused(trajectory, [step.id for step in steps], report, rewards=False, versions=False, named=False)
        outermost = outermost_of(one for one, _ in found)
        inner = sum(one.reward is not None for one, _ in found if one is not outermost)
        report.drop("rewards of sub-agents", inner, where=f"episode {outermost.episode_id}")
        calls = calls_in_order(found)
        if not calls:
            report.drop("runs without a triplet", where=f"trajectory {outermost.id}")
            continue
        yield strict_json(_rollout(outermost, calls, numbers, report), report, f"trajectory {outermost.id}")


def _rollout(
    run: Trajectory, calls: list[tuple[Trajectory, Step]], numbers: dict[str, int], report: ExportReport
) -> dict[str, Any]:
    triplets = [_triplet(trajectory, step, report) for trajectory, step in calls]
    if run.reward is not None:
        count_last_reward(run, [calls[-1][1]], report)
        triplets[-1]["reward"] = float(run.reward)
    name = run.group_id or task_id(run) or run.id
    return {
        "rollout_id": episode_of(run),
        "data_id": name,
        "step": 0,
        "sample_idx_in_step": numbers.setdefault(name, len(numbers)),
        "enqueue_time": 0.0 if run.started_at is None else run.started_at.timestamp(),
        "finished_at": None if run.ended_at is None else run.ended_at.timestamp(),
        "rollout_state": "failed" if run.status in NOT_SUCCEEDED else "succeeded",
        "error_message": None if run.error is None else f"{run.error.type}: {run.error.message}",
        "final_reward": None if run.reward is None else float(run.reward),
        "triplets": triplets,
        "metadata": {
            "group_id": run.group_id,
            "rollout_index": run.rollout_index,
            "task_id": task_id(run),
            "rewards": copied(run.rewards),
        },
    }


def _triplet(trajectory: Trajectory, step: Step, report: ExportReport) -> dict[str, Any]:
    count_step_extras(step, report)
    messages = None if step.messages is None else copied(to_chat(step, report))
    return {
        "prompt": {"token_ids": step.prompt_token_ids, "raw_content": messages},
        "response": {
            "token_ids": step.completion_token_ids,
            "raw_content": copied(answer(step, "json", report)),
            "log_probs": step.logprobs,
        },
        "image_urls": list(_image_urls(messages or [])) or None,
        "reward": None if step.reward is None else float(step.reward),
        "metadata": {
            "response_id": step.response_id,
            "agent_name": step.agent or trajectory.name,
            "sequence_id": step.index,
            "trajectory_id": trajectory.id,
            "step_id": step.id,
            "policy_version": step.policy_version,
        },
    }


def _image_urls(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            image = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
            url = image.get("url") if isinstance(image, dict) else None
            if isinstance(url, str):
                yield url
