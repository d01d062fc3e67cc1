"""rLLM: episodes of trajectories of steps.

Shapes: rLLM 0.3.0.pre (git 9beb6e0f of 2026-08-15), ``Episode.from_dict`` in ``rllm/types.py`` and ``ModelOutput`` in
``rllm/engine/rollout/rollout_engine.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import outermost_of
from rollout_trace.data.model import CUT_OFF
from rollout_trace.export._calls import check_step_options, usable_steps
from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._extras import count_step_extras, whole_number
from rollout_trace.export._rows import count_unused, episodes, task_id
from rollout_trace.export._skyrl import TrajectoryIds
from rollout_trace.export._values import strict_json
from rollout_trace.train.selection import advantage_array, n_prompt, n_sampled
from rollout_trace.wire.chat_messages import answer, arguments_of, to_chat, with_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step, ToolCall
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._calls import StepOptions
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import ExportReport, Strict


@Exporter
def rllm(
    trajectories: Trajectories,
    *,
    correct: Callable[[Trajectory], bool] | None = None,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> RowIterator:
    """Exports rLLM's episodes, one dict for each run: ``Episode.from_dict(row)``.

    Each trajectory of a run is a trajectory of the episode, named after its agent: rLLM compares trajectories of a task
    that have the same name. A step has ``prompt_ids`` (the whole prompt), ``response_ids``, ``logprobs``,
    ``chat_completions`` (the messages, the answer included), ``reward`` (the step's own, else 0.0), ``advantage`` (the
    step's own), ``weight_version`` and the same facts again in ``model_output``, which rLLM's verl backend reads.
    ``done`` is True on the last. ``id`` is ``TASK:INDEX``: the group, else the task, else the run, with ``_`` for
    ``:``; ``termination_reason`` is ``env_done`` for a completed run, ``max_response_length_exceeded`` if its last
    answer was cut off, ``error`` for a failed run, otherwise ``unknown``.

    A trajectory's ``reward`` is its own, otherwise that of its last step, as in rLLM. Left out and counted:
    trajectories without either, which rLLM would treat as 0.0; steps without logprobs, and steps that cannot be trained
    on.

    Args:
        trajectories: one, or any iterable. Trajectories of an episode need not be adjacent: up to 256 wait for the
            others.
        correct: a function that returns whether a run solved its task (``is_correct``). None: its reward is above 0.
    """
    check_step_options(options)
    return RowIterator(
        "rllm", strict, report, lambda counts, raw: _episodes(trajectories, correct, counts, options, raw), checked=True
    )


def _episodes(
    trajectories: Trajectories,
    correct: Callable[[Trajectory], bool] | None,
    report: ExportReport,
    options: StepOptions,
    raw: bool,
) -> Iterator[Row]:
    ids = TrajectoryIds()
    for group in episodes(trajectories, report):
        # rLLM joins the logprobs of steps one after the other: a step without any would shift those that follow.
        found = list(usable_steps(group, report, options, logprobs=True))
        run = outermost_of(one for one, _ in found)
        made = [row for trajectory, steps in found for row in _trajectory(trajectory, steps, report)]
        if not made:
            continue
        number = ids.of(run)
        solved = (run.reward is not None and run.reward > 0) if correct is None else bool(correct(run))
        episode = {
            "id": f"{number['instance_id'].replace(':', '_')}:{number['repetition_id']}",
            "task": _task(run),
            "termination_reason": _termination(run, [step for _, steps in found for step in steps]),
            "is_correct": solved,
            "session_id": run.episode_id,
            "trajectories": made,
            "metrics": run.metrics or {},
            "info": {"group_id": run.group_id, "rollout_index": run.rollout_index, "rewards": run.rewards},
        }
        yield strict_json(episode, report, f"trajectory {run.id}", arrays=raw)


def _trajectory(trajectory: Trajectory, steps: list[Step], report: ExportReport) -> Iterator[dict[str, Any]]:
    report.read_one()
    where = f"trajectory {trajectory.id}"
    if not steps:
        report.drop("trajectories without a step to train on", where=where)
        return
    # As rLLM itself does for a group in which none has one; it refuses groups in which some have.
    reward = steps[-1].reward if trajectory.reward is None else trajectory.reward
    if reward is None:
        report.drop("trajectories without a reward", where=where)
        return
    taken = ["step rewards", "step advantages", "policy versions"]
    taken += ["rewards by name"] if trajectory.parent_id is None else []
    count_unused(trajectory, (step.id for step in steps), report, *taken)
    yield {
        "uid": trajectory.id,
        "name": trajectory.name,
        "task": _task(trajectory),
        "steps": [_step(step, step is steps[-1], report) for step in steps],
        "reward": float(reward),
        "info": {"status": trajectory.status, "parent_id": trajectory.parent_id, "metadata": trajectory.metadata},
    }


def _step(step: Step, last: bool, report: ExportReport) -> dict[str, Any]:
    count_step_extras(step, report)
    version = whole_number(step.policy_version, report, step.id)
    said = answer(step, "json", report)
    message = {"role": "assistant", "content": None} if said is None else with_text(said)
    ids: dict[str, Any] = {"prompt_ids": step.prompt_token_ids, "logprobs": step.logprobs}
    text = message.get("content") if isinstance(message.get("content"), str) else None
    reasoning = None if step.completion is None else step.completion.reasoning
    calls = () if step.completion is None else step.completion.tool_calls
    advantage = None if step.advantage is None else advantage_array(step, n_sampled(step) or 0)
    return {
        **ids,
        "response_ids": step.completion_token_ids,
        "routing_matrices": None,
        "chat_completions": [*to_chat(step, report), message],
        "observation": None,
        "thought": reasoning or "",
        "action": None,
        "model_response": text or "",
        "model_output": {
            **ids,
            "content": text,
            "reasoning": reasoning,
            "tool_calls": [_tool_call(call, report) for call in calls],
            "completion_ids": step.completion_token_ids,
            "prompt_length": n_prompt(step) or 0,
            "completion_length": n_sampled(step) or 0,
            "finish_reason": step.finish_reason,
            "weight_version": version,
        },
        "info": {"step_id": step.id, "step_reward": step.reward, "logprobs_mode": step.logprobs_mode},
        "reward": 0.0 if step.reward is None else float(step.reward),
        "done": last,
        "mc_return": 0.0,
        "advantage": advantage,
        "weight_version": version,
    }


def _tool_call(call: ToolCall, report: ExportReport) -> dict[str, Any]:
    arguments = arguments_of(call.arguments or "{}")
    report.drop("tool arguments that are no JSON object, left as text", arguments is None)
    return {"name": call.name or "", "arguments": call.arguments if arguments is None else arguments}


def _task(trajectory: Trajectory) -> Any:
    return None if trajectory.task is None else {"id": task_id(trajectory), "data": trajectory.task.data}


def _termination(run: Trajectory, steps: list[Step]) -> str:
    if run.status in ("failed", "aborted"):
        return "error" if run.status == "failed" else "unknown"
    if steps and steps[-1].finish_reason in CUT_OFF:
        return "max_response_length_exceeded"
    return "env_done" if run.status == "completed" else "unknown"
