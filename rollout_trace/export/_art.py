"""OpenPipe ART: groups of trajectories, as exchanges with token ids.

Shapes: openpipe-art 0.5.23, ``TrajectoryGroup``, ``Trajectory`` and ``ChatCompletionsExchange`` in
``art/trajectories/__init__.py``.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import outermost_of
from rollout_trace.export._chat_exchange import chat_request, chat_response
from rollout_trace.export._common import episodes, exporting
from rollout_trace.export._extras import count_step_extras, whole_number
from rollout_trace.export._rows import count_unused, task_id
from rollout_trace.export._strict_json import strict_json
from rollout_trace.export._usable import calls_in_order, check_step_options, usable_steps
from rollout_trace.export._values import copied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._usable import StepOptions
    from rollout_trace.report import ExportReport, Strict

_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
"""Those that the types of openai allow."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def art(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[StepOptions],
) -> list[dict[str, Any]]:
    """ART's groups of trajectories, one dict for each group: ``art.TrajectoryGroup.model_validate(row)``.

    A trajectory for each run, sub-agents' calls included. Its ``exchanges.chat_completions`` are the calls that can be
    trained on, as the chat completions that vLLM would have answered, whatever the protocol was: with
    ``prompt_token_ids``, ``token_ids`` and logprobs, which ART takes instead of rendering the messages anew. Each
    choice of a call with ``n`` choices is an exchange of its own. ``reward`` is the run's, ``metrics`` has the
    trajectory's metrics and its rewards by name (``reward/NAME``), ``metadata`` the ids, ``initial_policy_version`` and
    ``final_policy_version`` the lowest and highest version where all are whole numbers.

    Groups are those of ``group_id``, else of the task, else a run alone. Runs that are not scored are left out and
    counted, as ART would take them for 0, and so are steps without logprobs. Calls whose finish reason chat does not
    have (``abort``) say ``stop``. Times that are not known are 1970.

    Args:
        trajectories: one, or any iterable; all are read first.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out.
        **options: ``include``, ``allow``, ``constrained`` and ``policy_versions`` of ``Trajectory.sequences()``.

    Raises:
        ExportError: ``strict``, and something would be left out.
        TypeError, ValueError: an option is unknown or has an unknown value.
    """
    check_step_options(options)
    groups: dict[str, dict[str, Any]] = {}
    with exporting("art", strict, report) as counts:
        # Groups are whole at the end alone, so none waits less long.
        for episode in episodes(trajectories, counts, max_waiting=sys.maxsize):
            found = list(usable_steps(episode, counts, options, logprobs=True))
            run = outermost_of(one for one, _ in found)
            made = _trajectory(run, found, counts)
            if made is not None:
                name = run.group_id or task_id(run) or run.episode_id or run.id
                group = groups.setdefault(name, {"trajectories": [], "metadata": {"group_id": name}})
                group["trajectories"].append(made)
    return list(groups.values())


def _trajectory(
    run: Trajectory, found: list[tuple[Trajectory, list[Step]]], report: ExportReport
) -> dict[str, Any] | None:
    where = f"trajectory {run.id}"
    for trajectory, steps in found:
        report.read_one()
        ids = [step.id for step in steps]
        count_unused(trajectory, ids, report, versions=False, named=trajectory is not run)
        report.drop("rewards of sub-agents", trajectory is not run and trajectory.reward is not None, where=where)
    calls = calls_in_order(found)
    if run.reward is None or not calls:
        report.drop("runs without a reward" if run.reward is None else "runs without a call to train on", where=where)
        return None
    versions = _versions([step for _, step in calls], report)
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
            "metadata": copied(run.metadata),
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


def _versions(steps: list[Step], report: ExportReport) -> list[int]:
    found = [step.policy_version for step in steps]
    numbers = [number for number in map(whole_number, found) if number is not None]
    if len(numbers) < len(found):
        others = sum(version is not None for version in found)
        report.drop("policy versions of runs where not all are integers", others, metadata=True)
        return []
    return numbers
