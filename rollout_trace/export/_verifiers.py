"""Episodes of verifiers 0.4 (``verifiers.v1``, the ``traces.jsonl`` of prime-rl): message graphs with token ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import episode_of, outermost_of
from rollout_trace.export._baselines import check_advantages, compare, row_advantages
from rollout_trace.export._common import episodes, exporting, token_rows
from rollout_trace.export._extras import count_extras, count_raw
from rollout_trace.export._files import write_jsonl
from rollout_trace.export._rows import count_unused, step_ids_of
from rollout_trace.export._strict_json import strict_json
from rollout_trace.export._verifiers_calls import call_of, error_of, seconds
from rollout_trace.export._verifiers_graph import Graph
from rollout_trace.file.fields import facts_record, run_record
from rollout_trace.report import ExportReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._baselines import Advantages, Compared, RowOptions
    from rollout_trace.report import Strict
    from rollout_trace.train.sequence import Sequence, Sequences

_FAILED = frozenset({"failed", "aborted", "running"})


COLUMNS = {"id": "string", "task": "json", "group": "json", "ok": "bool", "errors": "json", "traces": "json"}


def verifiers(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    advantages: Advantages | None = "steps",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> list[dict[str, Any]]:
    """One ``Episode`` for each run, in the form of ``verifiers.v1.WireEpisode``; each trajectory in it is a ``Trace``.

    The branches of a trace's graph are exactly the sequences: the concatenated ``token_ids``, ``mask`` and ``logprobs``
    of a branch's nodes are those of its sequence. Nodes of messages that were read have no ids: the new ids of a prompt
    are on the node of the answer, before the completion's, as verifiers itself does where it cannot assign tokens to
    messages. Branches share the messages they begin with, but no sampled node: an answer that a second branch continues
    is context there, and is trained on once.

    Sampled nodes have ``routed_experts`` [tokens of the node, layers, k], if every token of the branch but the last has
    them (the last row is repeated, as verifiers does), and ``sampling_mask`` (``ids``, ``counts``), in the form in
    which verifiers sends arrays between processes: ``{"__nd__": True, "dtype", "shape", "data": bytes}``. JSON has no
    form for that: ``write_verifiers`` leaves them out.

    ``Trace.reward`` is the trajectory's reward; its parts by name have weight 0. A trajectory without sequences has
    its text, in nodes without ids. What verifiers has no field for is in ``info["rollout_trace"]``.

    Args:
        trajectories: one, or any iterable of them.
        advantages: of the sampled nodes. ``steps``: those set on the steps; ``grpo`` or ``leave_one_out``: that of each
            run within its group (``rt.Group.advantages()``), for which all trajectories are read first; None: none.
        strict: raise ExportError instead of leaving something out.
        report: counts what was left out.
        **options: those of ``Trajectory.sequences()``, and ``drop_constant_groups``.

    Raises:
        ExportError: ``strict``, and something has no place in the format.
        ValueError: an option has an unknown value, or a step's ``advantage`` does not fit its completion.
    """
    with exporting("verifiers", strict, report) as counts:
        return list(_episodes(trajectories, advantages, counts, options, arrays=False))


def write_verifiers(
    path: str | os.PathLike[str],
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    advantages: Advantages | None = "steps",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> int:
    """Writes the episodes of ``verifiers``, one per line (``traces.jsonl``), and returns their number.

    Logprobs are written with all their digits, where verifiers itself rounds to four. Routed experts and sampling masks
    are left out, and counted: verifiers keeps them out of its files, and reads none from JSON.

    Raises:
        ExportError: ``strict``, and something has no place in the format.
        OSError: the file cannot be written.
        ValueError: the name does not end with ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``; or as for ``verifiers``.
    """
    with exporting("write_verifiers", strict, report) as counts:
        return write_jsonl(path, _episodes(trajectories, advantages, counts, options, arrays=True))


def _episodes(
    trajectories: Trajectory | Iterable[Trajectory],
    advantages: Advantages | None,
    report: ExportReport,
    options: RowOptions,
    *,
    arrays: bool,
) -> Iterator[dict[str, Any]]:
    check_advantages(advantages, ("grpo", "leave_one_out", "steps", None))
    compared = compare(trajectories, report, options, advantages)
    for group in episodes(compared.trajectories, report):
        outermost = outermost_of(group)
        traces = [
            _trace(
                trajectory,
                _advantages(trajectory, rows, advantages, compared, report),
                Graph(trajectory, report, uses_step_advantages=advantages == "steps", with_tensors=not arrays),
                report,
            )
            for trajectory, rows in token_rows(group, report, compared.options)
        ]
        episode = {
            "id": episode_of(outermost),
            "task": _task(outermost),
            "group": None if outermost.group_id is None else {"id": outermost.group_id},
            "ok": all(trace["ok"] for trace in traces),
            "errors": [],
            "traces": traces,
        }
        yield strict_json(episode, report, f"episode {episode['id']}", arrays=arrays)


def _advantages(
    trajectory: Trajectory, rows: Sequences, kind: Advantages | None, compared: Compared, report: ExportReport
) -> list[Sequence]:
    """The rows with the requested advantages."""
    if kind == "steps":
        return rows
    count_unused(trajectory, step_ids_of(rows), report, rewards=False, versions=False, named=False)
    arrays = [row_advantages(row, kind, compared.advantages.get(trajectory.id)) for row in rows]
    if kind is not None:
        report.drop(
            "rows without an advantage", sum(array is None for array in arrays), where=f"trajectory {trajectory.id}"
        )
    return [replace(row, advantages=array) for row, array in zip(rows, arrays, strict=True)]


def _trace(trajectory: Trajectory, rows: list[Sequence], graph: Graph, report: ExportReport) -> dict[str, Any]:
    report.read_one()
    for step in trajectory.steps:
        count_raw(step, report)
    graph.add(rows)
    count_extras(rows, report, *graph.tensors)
    # Sequences without logprobs are exported as text: there is nothing to train on in them.
    trainable = any(row.logprobs is not None for row in rows)
    is_done = trajectory.status != "running"
    began, ended = seconds(trajectory.started_at), seconds(trajectory.ended_at)
    model = next((step.model for step in trajectory.steps if step.model is not None), None)
    return {
        "version": 1,
        "id": trajectory.id,
        "task": _task(trajectory),
        "agent": {"config": {"model": model}, "name": trajectory.name, "trainable": trainable},
        "tools": graph.tools,
        "nodes": graph.nodes,
        "calls": [call_of(step, graph.node_of.get(step.id), first) for step, first in _calls(trajectory)],
        "rewards": _rewards(trajectory, report),
        "metrics": dict(trajectory.metrics or {}),
        "info": {"rollout_trace": _info(trajectory, graph)},
        "is_completed": is_done,
        "ok": trajectory.status not in _FAILED,
        "stop_condition": trajectory.stop_reason or (None if trajectory.status == "completed" else trajectory.status),
        "errors": [] if trajectory.error is None else [error_of(trajectory.error)],
        "timing": {"start": began, "agent": {"start": began, "end": ended}},
    }


def _calls(trajectory: Trajectory) -> Iterator[tuple[Any, bool]]:
    """Each step, and whether it is the first of its call, which has the usage."""
    seen: set[str] = set()
    for step in trajectory.steps:
        yield step, step.call_id not in seen
        seen.add(step.call_id)


def _task(trajectory: Trajectory) -> dict[str, Any]:
    task = trajectory.task
    if task is None:
        return {"type": "Task", "data": {}}
    # Nested, not merged: verifiers gives fields such as `prompt` and `image` types that a user's data need not have.
    return {"type": "Task", "key": task.id, "data": {"id": task.id, "data": task.data}}


def _rewards(trajectory: Trajectory, report: ExportReport) -> dict[str, Any]:
    # A trace's reward is the weighted sum: parts with a weight would count twice beside the whole.
    parts = {name: {"score": value, "weight": 0.0} for name, value in (trajectory.rewards or {}).items()}
    if "reward" in parts:
        report.drop('rewards by the name "reward", which the whole one has', where=f"trajectory {trajectory.id}")
    whole = trajectory.reward
    return {**parts, "reward": None if whole is None else {"score": whole, "weight": 1.0}}


def _info(trajectory: Trajectory, graph: Graph) -> dict[str, Any]:
    steps = [
        {
            "id": step.id,
            "call_id": step.call_id,
            "node": graph.node_of.get(step.id),
            "status": step.status,
            "trainable": step.trainable,
            "finish_reason": step.finish_reason,
            "policy_version": step.policy_version,
            "reward": step.reward,
            "token_source": step.token_source,
            "logprobs_mode": step.logprobs_mode,
            "policy_spans": None if step.policy_spans is None else [list(span) for span in step.policy_spans],
            "metadata": step.metadata,
            "recorded": facts_record(step),
        }
        for step in trajectory.steps
    ]
    names = ("parent_id", "parent_step_id", "group_id", "rollout_index", "status", "environment", "metadata")
    error = trajectory.error
    return {
        **{name: getattr(trajectory, name) for name in names},
        # Of an error verifiers has no code.
        "error": None if error is None else {**error_of(error), "code": error.code},
        "steps": steps,
        "tool_runs": [{"recorded": run_record(run)} for run in trajectory.tool_runs],
    }
