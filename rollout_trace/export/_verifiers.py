"""Episodes of verifiers 0.4 (``verifiers.v1``, the ``traces.jsonl`` of prime-rl): message graphs with token ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import episode_of, outermost_of
from rollout_trace.data.model import CUT_OFF, Usage
from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._extras import count_extras, count_raw
from rollout_trace.export._rows import check_row_options, compare, count_unused, episodes, row_advantages, token_rows
from rollout_trace.export._values import strict_json
from rollout_trace.export._verifiers_graph import Graph, seconds
from rollout_trace.file.fields import facts_record, run_record
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import ErrorInfo, Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import Advantages, Compared, RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence, Sequences

_FAILED = frozenset({"failed", "aborted", "running"})
COLUMNS = {"id": "string", "task": "json", "group": "json", "ok": "bool", "errors": "json", "traces": "json"}
_FINISHES = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    **dict.fromkeys(CUT_OFF, "length"),
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
}
_SAMPLING: dict[str, type | tuple[type, ...]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "reasoning_effort": str,
    "max_tokens": int,
}


@Exporter
def verifiers(
    trajectories: Trajectories,
    *,
    advantages: Advantages | None = "steps",
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports one ``Episode`` for each run (``verifiers.v1.WireEpisode``); each trajectory in it is a ``Trace``.

    The branches of a trace's graph are exactly the sequences: the concatenated ``token_ids``, ``mask`` and ``logprobs``
    of a branch's nodes are those of its sequence. Nodes of messages that the model read have no ids: the new ids of a
    prompt are on the answer's node, before the completion's ids, as in verifiers itself when it cannot assign tokens to
    messages. Branches share their first messages, but no sampled node: an answer that a second branch continues is
    context there, so that it is trained on once.

    Sampled nodes have ``routed_experts`` [tokens of the node, layers, k], if every token of the branch but the last has
    them (the last row is repeated, as verifiers does), and ``sampling_mask`` (``ids``, ``counts``), in the form in
    which verifiers sends arrays between processes: ``{"__nd__": True, "dtype", "shape", "data": bytes}``. JSON has no
    form for that: files leave them out, as verifiers' own files do, and they are counted.

    ``Trace.reward`` is the trajectory's reward; its named parts have weight 0. A trajectory without sequences is
    exported as text, in nodes without ids. Values without a field in verifiers are in ``info["rollout_trace"]``. In
    files, logprobs have all their digits; verifiers itself rounds to four.

    Args:
        advantages: advantages of the sampled nodes. ``steps``: those set on the steps; ``grpo`` or ``leave_one_out``:
            each run's within its group (``rt.Group.advantages()``), for which all trajectories are read first; None:
            none.
    """
    check_row_options(options, advantages, "grpo", "leave_one_out", "steps", None)
    return RowIterator(
        "verifiers",
        strict,
        report,
        lambda counts, raw: _episodes(trajectories, advantages, counts, options, raw),
        COLUMNS,
        checked=True,
    )


def _episodes(
    trajectories: Trajectories, advantages: Advantages | None, report: ExportReport, options: RowOptions, raw: bool
) -> Iterator[Row]:
    compared = compare(trajectories, report, options, advantages)
    for group in episodes(compared.trajectories, report):
        outermost = outermost_of(group)
        traces = [
            _trace(
                trajectory,
                _with_advantages(trajectory, rows, advantages, compared, report),
                Graph(trajectory, report, uses_step_advantages=advantages == "steps", with_tensors=not raw),
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
        yield strict_json(episode, report, f"episode {episode['id']}", arrays=raw)


def _with_advantages(
    trajectory: Trajectory, rows: Sequences, kind: Advantages | None, compared: Compared, report: ExportReport
) -> list[Sequence]:
    if kind == "steps":
        return rows
    ids = (step_id for row in rows for step_id in row.step_ids)
    count_unused(trajectory, ids, report, "step rewards", "policy versions", "rewards by name")
    arrays = [row_advantages(row, kind, compared.advantages.get(trajectory.id)) for row in rows]
    if kind is not None:
        missing = sum(array is None for array in arrays)
        report.drop("rows without an advantage", missing, where=f"trajectory {trajectory.id}")
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
        "calls": list(_calls(trajectory, graph)),
        "rewards": _rewards(trajectory, report),
        "metrics": dict(trajectory.metrics or {}),
        "info": {"rollout_trace": _info(trajectory, graph)},
        "is_completed": is_done,
        "ok": trajectory.status not in _FAILED,
        "stop_condition": trajectory.stop_reason or (None if trajectory.status == "completed" else trajectory.status),
        "errors": [] if trajectory.error is None else [_error(trajectory.error)],
        "timing": {"start": began, "agent": {"start": began, "end": ended}},
    }


def _calls(trajectory: Trajectory, graph: Graph) -> Iterator[dict[str, Any]]:
    """A ``ModelCall`` for each step. Usage counts all choices of a call together: only the first has it."""
    seen: set[str] = set()
    for step in trajectory.steps:
        usage = None if step.call_id in seen else step.usage
        seen.add(step.call_id)
        began = seconds(step.started_at)
        has_counts = usage is not None and usage.input is not None and usage.output is not None
        yield {
            "node": graph.node_of.get(step.id),
            "model": step.model,
            "sampling": _sampling(step),
            "endpoint": _endpoint(step),
            "finish_reason": _FINISHES.get(step.finish_reason or ""),
            "usage": _usage(step) if has_counts else None,
            "time": {"start": began, "end": began + (step.latency or 0.0) if began else 0.0},
            "error": None if step.error is None else _error(step.error),
        }


def _error(error: ErrorInfo) -> dict[str, Any]:
    return {"type": error.type, "message": error.message, "status_code": error.status}


def _endpoint(step: Step) -> str | None:
    """The path of a protocol without its version, as verifiers writes it; None without a decoder or a path."""
    protocol = record_of(step.protocol)
    return None if protocol.decoder is None or not protocol.paths else protocol.paths[0].removeprefix("/v1")


def _usage(step: Step) -> dict[str, Any]:
    usage, cost = step.usage or Usage(), step.cost
    return {
        # In verifiers, prompt tokens do not include those read from the cache.
        "prompt_tokens": (usage.input or 0) - (usage.cache_read or 0),
        "completion_tokens": usage.output,
        "cached_input_tokens": usage.cache_read,
        "reasoning_tokens": usage.reasoning,
        "cost": cost.amount if cost is not None and cost.currency == "USD" else None,
    }


def _sampling(step: Step) -> dict[str, Any]:
    """The request's sampling settings, without values of another type than verifiers' own."""
    settings = dict(step.sampling or {})
    if "max_completion_tokens" in settings:
        settings["max_tokens"] = settings.pop("max_completion_tokens")
    return {
        name: value
        for name, value in settings.items()
        if name not in _SAMPLING or value is None or isinstance(value, _SAMPLING[name])
    }


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
        "error": None if error is None else {**_error(error), "code": error.code},
        "steps": steps,
        "tool_runs": [{"recorded": run_record(run)} for run in trajectory.tool_runs],
    }
