"""Agent-lightning: rollouts of triplets, and its dataset of turns for agents on repositories.

Shapes: agentlightning 1.0.2, ``Triplet`` and ``CompletedRollout`` in ``agentlightning/verl/agl_rollout_manager.py``, as
its ``RolloutAdapter`` makes verl's batches of them (``agentlightning/verl/rollout_adapter.py``); the dataset that its
example ``claude_code`` saves (``claude_code_agent.py`` and ``extended_adapter.py``, 0.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.episodes import NOT_SUCCEEDED, episode_of, outermost_of
from rollout_trace.export._calls import (
    calls_in_order,
    check_step_options,
    count_last_reward,
    rewards_to_come,
    training_steps,
    usable_steps,
)
from rollout_trace.export._exporter import Exporter, RowIterator, listed, owned
from rollout_trace.export._extras import count_step_extras
from rollout_trace.export._rows import count_unused, episodes, task_id, task_or_run
from rollout_trace.export._values import number, strict_json
from rollout_trace.file.plain import dumps
from rollout_trace.wire.chat_messages import answer, to_chat, with_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._calls import StepOptions
    from rollout_trace.export._exporter import Row, Trajectories
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


@Exporter
def agent_lightning(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> RowIterator:
    """Exports Agent-lightning's rollouts, one dict for each run: ``CompletedRollout(**row)`` with ``triplets``.

    The triplets are the run's trainable calls, including those of sub-agents, in the order in which they began.
    ``prompt`` has ``token_ids`` (the whole prompt of the turn) and ``raw_content`` (chat messages); ``response`` has
    ``token_ids``, ``raw_content`` and ``log_probs``: one number for each id, None if the engine gave none;
    ``image_urls`` are those of the prompt, None where it has no images. ``reward`` is the step's own; on the last
    triplet it is the run's. ``final_reward`` is the run's reward: that of the outermost trajectory, None if it was not
    scored (``RolloutAdapter`` then uses ``reward_fillna_value``). ``metadata`` of a triplet has ``response_id``,
    ``agent_name``, ``sequence_id`` (the step's position in its trajectory), ``trajectory_id``, ``step_id``,
    ``policy_version``; that of a rollout ``group_id``, ``rollout_index``, ``task_id``, ``rewards`` by name.

    ``data_id`` is the group (else the task, else the run) within which Agent-lightning compares runs, and
    ``sample_idx_in_step`` the run's number in it, from 0. ``step`` is 0: all rows belong to one batch. ``enqueue_time``
    and ``finished_at`` are seconds since 1970; 0.0 if the start is unknown.

    Args:
        trajectories: one, or any iterable. Trajectories of an episode need not be adjacent: up to 256 wait for the
            others.
    """
    check_step_options(options)
    return RowIterator(
        "agent_lightning",
        strict,
        report,
        lambda counts, raw: _rollouts(trajectories, counts, options, raw),
        checked=True,
    )


def _rollouts(trajectories: Trajectories, report: ExportReport, options: StepOptions, raw: bool) -> Iterator[Row]:
    numbers: dict[str, int] = {}
    taken = "step rewards", "policy versions", "rewards by name"
    for group in episodes(trajectories, report):
        found = list(usable_steps(group, report, options))
        for trajectory, steps in found:
            report.read_one()
            count_unused(trajectory, (step.id for step in steps), report, *taken)
        outermost = outermost_of(one for one, _ in found)
        inner = sum(one.reward is not None for one, _ in found if one is not outermost)
        report.drop("rewards of sub-agents", inner, where=f"episode {outermost.episode_id}")
        calls = calls_in_order(found)
        if not calls:
            report.drop("runs without a triplet", where=f"trajectory {outermost.id}")
            continue
        rollout = _rollout(outermost, calls, numbers, report)
        yield strict_json(rollout, report, f"trajectory {outermost.id}", arrays=raw)


def _rollout(
    run: Trajectory, calls: list[tuple[Trajectory, Step]], numbers: dict[str, int], report: ExportReport
) -> dict[str, Any]:
    triplets = [_triplet(trajectory, step, report) for trajectory, step in calls]
    if run.reward is not None:
        count_last_reward(run, calls[-1][1], report)
        triplets[-1]["reward"] = float(run.reward)
    name = task_or_run(run)
    return {
        "rollout_id": episode_of(run),
        "data_id": name,
        "step": 0,
        "sample_idx_in_step": numbers.setdefault(name, len(numbers)),
        "enqueue_time": 0.0 if run.started_at is None else run.started_at.timestamp(),
        "finished_at": None if run.ended_at is None else run.ended_at.timestamp(),
        "rollout_state": "failed" if run.status in NOT_SUCCEEDED else "succeeded",
        "error_message": None if run.error is None else f"{run.error.type}: {run.error.message}",
        "final_reward": number(run.reward),
        "triplets": triplets,
        "metadata": {
            "group_id": run.group_id,
            "rollout_index": run.rollout_index,
            "task_id": task_id(run),
            "rewards": run.rewards,
        },
    }


def _triplet(trajectory: Trajectory, step: Step, report: ExportReport) -> dict[str, Any]:
    count_step_extras(step, report)
    messages = None if step.messages is None else to_chat(step, report)
    return {
        "prompt": {"token_ids": step.prompt_token_ids, "raw_content": messages},
        "response": {
            "token_ids": step.completion_token_ids,
            "raw_content": answer(step, "json", report),
            "log_probs": step.logprobs,
        },
        "image_urls": list(_image_urls(messages or [])) or None,
        "reward": number(step.reward),
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


@Exporter
def turns(
    trajectories: Trajectories,
    *,
    decode: Decode | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> RowIterator:
    """Exports one row for each call that can be trained on token for token, in the order of the calls.

    - ``repo``: ``task.data["repo"]``; empty where there is none
    - ``instance_id``: ``task.data["instance_id"]``, else the task's id, else the trajectory's
    - ``turn``: the step's position in its trajectory
    - ``prompt_ids``, ``gold_completion_ids``: the whole prompt of the turn, and what was sampled, as the engine gave
      them
    - ``logprobs``: one for each id of the completion; None where the engine gave none
    - ``reward``: the step's own, else that of the next step that has one; the last step has the trajectory's. None: not
      scored
    - ``prompt``: the text of ``prompt_ids``, made by ``decode``; None without ``decode``
    - ``messages``: those of the request as chat messages in which every value is a string: text parts are joined, and
      everything else (tool calls, images) is JSON

    Args:
        decode: a function from token ids to text, such as ``tokenizer.decode``.
    """
    check_step_options(options)
    return RowIterator(
        "turns",
        strict,
        report,
        lambda counts, raw: owned(_turns(trajectories, decode, counts, options), raw),
        TURN_COLUMNS,
    )


def _turns(
    trajectories: Trajectories, decode: Decode | None, report: ExportReport, options: StepOptions
) -> Iterator[Row]:
    for trajectory, steps in training_steps(trajectories, report, options, "step rewards"):
        count_last_reward(trajectory, steps[-1], report)
        for step, reward in zip(steps, rewards_to_come(trajectory, steps), strict=True):
            count_step_extras(step, report)
            yield {
                **_instance(trajectory),
                "turn": step.index,
                "prompt_ids": step.prompt_token_ids,
                "gold_completion_ids": step.completion_token_ids,
                "logprobs": step.logprobs,
                "reward": reward,
                "prompt": None if decode is None else decode(listed(step.prompt_token_ids)),
                "messages": None if step.messages is None else _flat_messages(step, report),
            }


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
