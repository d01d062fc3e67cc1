"""OpenPipe ART: groups of trajectories, as exchanges with token ids.

Shapes: openpipe-art 0.5.23, ``TrajectoryGroup``, ``Trajectory`` and ``ChatCompletionsExchange`` in
``art/trajectories/__init__.py``.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import outermost_of
from rollout_trace.export._calls import calls_in_order, check_step_options, usable_steps
from rollout_trace.export._exchanges import chat_request, chat_response
from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._extras import count_step_extras, whole_numbers
from rollout_trace.export._rows import count_unused, episodes, task_id
from rollout_trace.export._values import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._calls import StepOptions
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import ExportReport, Strict

_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
"""Those that the types of openai allow."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@Exporter
def art(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> RowIterator:
    """Exports ART's groups of trajectories, one dict for each group: ``art.TrajectoryGroup.model_validate(row)``.

    Each run is one trajectory, including the calls of sub-agents. Its ``exchanges.chat_completions`` are the trainable
    calls in the form of vLLM's chat completions, whatever the protocol was: with ``prompt_token_ids``, ``token_ids``
    and logprobs, which ART uses instead of rendering the messages again. Each of a call's ``n`` choices is its own
    exchange. ``reward`` is the run's, ``metrics`` has the trajectory's metrics and its rewards by name
    (``reward/NAME``), ``metadata`` the ids, ``initial_policy_version`` and ``final_policy_version`` the lowest and
    highest version where all are whole numbers.

    Runs are grouped by ``group_id``, otherwise by task; a run without either is its own group. Unscored runs are left
    out and counted, because ART would treat their reward as 0; so are steps without logprobs. Finish reasons that chat
    does not have (``abort``) become ``stop``. Unknown times are 1970.

    Args:
        trajectories: one, or any iterable, which is read to its end first.
    """
    check_step_options(options)
    return RowIterator("art", strict, report, lambda counts, _: _groups(trajectories, counts, options), checked=True)


def _groups(trajectories: Trajectories, report: ExportReport, options: StepOptions) -> Iterable[Row]:
    groups: dict[str, Row] = {}
    # Groups are whole at the end alone, so none waits less long.
    for episode in episodes(trajectories, report, max_waiting=sys.maxsize):
        found = list(usable_steps(episode, report, options, logprobs=True))
        run = outermost_of(one for one, _ in found)
        made = _trajectory(run, found, report)
        if made is not None:
            name = run.group_id or task_id(run) or run.episode_id or run.id
            group = groups.setdefault(name, {"trajectories": [], "metadata": {"group_id": name}})
            group["trajectories"].append(made)
    return groups.values()


def _trajectory(
    run: Trajectory, found: list[tuple[Trajectory, list[Step]]], report: ExportReport
) -> dict[str, Any] | None:
    where = f"trajectory {run.id}"
    for trajectory, steps in found:
        report.read_one()
        taken = ["policy versions", *(["rewards by name"] if trajectory is run else ())]
        count_unused(trajectory, (step.id for step in steps), report, *taken)
        report.drop("rewards of sub-agents", trajectory is not run and trajectory.reward is not None, where=where)
    calls = calls_in_order(found)
    if run.reward is None or not calls:
        report.drop("runs without a reward" if run.reward is None else "runs without a call to train on", where=where)
        return None
    found_versions = [step.policy_version for _, step in calls]
    known = sum(version is not None for version in found_versions)
    versions = whole_numbers(found_versions, known, report, "runs")
    made = {
        "exchanges": {"chat_completions": [_exchange(step, report) for _, step in calls]},
        "reward": float(run.reward),
        "metrics": {
            **(run.metrics or {}),
            **{f"reward/{name}": float(value) for name, value in (run.rewards or {}).items()},
        },
        "metadata": {
            "trajectory_id": run.id,
            "rollout_index": run.rollout_index,
            "task_id": task_id(run),
            "status": run.status,
            "metadata": run.metadata,
        },
        "initial_policy_version": min(versions, default=None),
        "final_policy_version": max(versions, default=None),
    }
    checked: dict[str, Any] = strict_json(made, report, where)
    return checked


def _exchange(step: Step, report: ExportReport) -> dict[str, Any]:
    count_step_extras(step, report)
    began = step.started_at or _EPOCH
    response = chat_response([step], report)
    for choice in response["choices"]:
        choice["index"] = 0
        choice["finish_reason"] = choice["finish_reason"] if choice["finish_reason"] in _FINISH_REASONS else "stop"
    # Of this choice alone, as ART compares the count with its ids.
    prompt, completion = len(response["prompt_token_ids"]), len(response["choices"][0]["token_ids"])
    response["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {
        "request": chat_request(step, report),
        "response": response,
        "start_time": began.isoformat(),
        "end_time": (began + timedelta(seconds=step.latency or 0.0)).isoformat(),
    }
