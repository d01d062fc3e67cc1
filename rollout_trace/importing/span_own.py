"""What our own ``export.otel`` keeps on spans beside the conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Cost, ErrorInfo, Task, TokenIssue
from rollout_trace.importing.fields import is_finite
from rollout_trace.importing.span_values import Span, as_json
from rollout_trace.importing.steps import mode_of, status_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_COST = "rollout_trace.cost."


def is_own(span: Span) -> bool:
    """Whether the span is one of our export: that of a trajectory, or of a step."""
    return "rollout_trace.call_id" in span.attributes or "rollout_trace.trajectory.id" in span.attributes


def duration(span: Span) -> float | None:
    """Seconds; None where our export did not know them: it ends such a span where it begins."""
    return span.seconds or None


def error_beside(status: str, error: ErrorInfo | None) -> ErrorInfo | None:
    """The error; None for one that is the status alone, which our export gives a span that failed without one."""
    return None if error is not None and error.type == status and not error.message else error


def step_facts(span: Span, *, has_ids: bool) -> dict[str, Any]:
    """The fields of a step, by their names."""
    source, mode = span.text("rollout_trace.token_source"), span.text("rollout_trace.logprobs_mode")
    reward, choice = span.attributes.get("rollout_trace.reward"), span.attributes.get("rollout_trace.choice")
    status = status_of(span.text("rollout_trace.status"))
    facts: dict[str, Any] = {
        "call_id": span.text("rollout_trace.call_id"),
        "choice": choice if type(choice) is int and choice >= 0 else 0,
        "trainable": span.attributes.get("rollout_trace.trainable") is not False,
        "policy_version": span.text("rollout_trace.policy_version"),
        "reward": float(reward) if is_finite(reward) else None,
        "logprobs_mode": mode_of(mode),
        "status": status,
        "error": error_beside(status, span.error),
        "latency": duration(span),
        "cost": _cost(span),
    }
    return {**facts, "token_source": source} if has_ids and source in ("logprobs", "retokenized") else facts


def token_issue(span: Span) -> TokenIssue | None:
    """The issue that the step had; the export keeps its code alone."""
    code = span.text("rollout_trace.token_issue")
    return None if code is None else TokenIssue(code=code, message="as the step had it when it was exported.")


def finish_reason(status: str, reason: str | None) -> str | None:
    """The reason; None for the ``error`` that the export gives a step that failed without one."""
    return None if reason == "error" and status in ("error", "cancelled", "abandoned") else reason


def _cost(span: Span) -> Cost | None:
    for name, amount in span.attributes.items():
        if name.startswith(_COST) and is_finite(amount):
            return Cost(amount=float(amount), currency=name.removeprefix(_COST).upper(), source="unknown")
    return None


def add_trajectory_facts(trajectory: Trajectory, span: Span) -> None:
    """Restores the fields of a trajectory."""
    attributes = span.attributes
    reward, index = attributes.get("rollout_trace.reward"), attributes.get("rollout_trace.rollout_index")
    trajectory.reward = float(reward) if is_finite(reward) else None
    trajectory.group_id = span.text("rollout_trace.group_id")
    trajectory.rollout_index = index if type(index) is int and index >= 0 else None
    task, data = span.text("rollout_trace.task.id"), as_json(attributes.get("rollout_trace.task.data"))
    trajectory.task = None if task is None and data is None else Task(id=task, data=data)
    if not is_own(span):
        return
    trajectory.status = span.text("rollout_trace.status") or trajectory.status
    trajectory.stop_reason = span.text("rollout_trace.stop_reason")
    trajectory.error = error_beside(trajectory.status, span.error)
    if trajectory.parent_id is None:
        trajectory.parent_id = span.text("rollout_trace.parent_id")
        trajectory.episode_id = span.text("gen_ai.conversation.id") or trajectory.episode_id
    if not duration(span):
        trajectory.ended_at = None
    rewards = [facts for name, facts in span.events if name == "gen_ai.evaluation.result"]
    trajectory.rewards = _named(
        (one.get("gen_ai.evaluation.name"), one.get("gen_ai.evaluation.score.value"))
        for one in rewards
        if trajectory.reward is None or one.get("gen_ai.evaluation.name") != "reward"
    )
    metrics = "rollout_trace.metrics."
    trajectory.metrics = _named(
        (name.removeprefix(metrics), one) for name, one in attributes.items() if name.startswith(metrics)
    )
    environment, metadata = (as_json(attributes.get(f"rollout_trace.{name}")) for name in ("environment", "metadata"))
    trajectory.environment = environment if isinstance(environment, dict) else None
    if isinstance(metadata, dict):
        trajectory.metadata = {**metadata, **(trajectory.metadata or {})}


def _named(values: Any) -> dict[str, float] | None:
    return {name: float(one) for name, one in values if isinstance(name, str) and is_finite(one)} or None
