"""ATIF documents beside their messages: the metrics of a step and of a run, and the facts in ``extra``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import shared
from rollout_trace.export._atif_parts import without_none
from rollout_trace.export._common import note_grammar
from rollout_trace.export._extras import count_step_extras
from rollout_trace.export._values import number, numbers
from rollout_trace.file.fields import facts_record
from rollout_trace.train.selection import logprobs_problem, n_sampled, reason_left_out
from rollout_trace.train.shaping import constrained

if TYPE_CHECKING:
    from collections.abc import Collection

    from rollout_trace.data.model import ErrorInfo, Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport


def metrics(step: Step, *, first: bool, allow: Collection[str], report: ExportReport) -> dict[str, Any] | None:
    """The metrics of a step. Usage counts all choices of a call together: only the first (``first``) has it."""
    usage = step.usage if first else None
    cost = step.cost
    in_usd = cost is not None and cost.currency == "USD"
    extra = {
        "reasoning_tokens": None if usage is None else usage.reasoning,
        "cache_write_tokens": None if usage is None else usage.cache_write,
        "cost": None if cost is None or in_usd else {"amount": cost.amount, "currency": cost.currency},
        "logprobs_mode": None if step.logprobs is None else step.logprobs_mode,
        "advantage": step.advantage,
    }
    fields = {
        "prompt_tokens": None if usage is None else usage.input,
        "completion_tokens": None if usage is None else usage.output,
        "cached_tokens": None if usage is None else usage.cache_read,
        "cost_usd": cost.amount if cost is not None and in_usd else None,
        **_tokens(step, allow, report),
        "extra": without_none(extra) or None,
    }
    return without_none(fields) or None


def _tokens(step: Step, allow: Collection[str], report: ExportReport) -> dict[str, Any]:
    """Ids and logprobs of a step that can be trained on; empty for others, as ATIF's readers train on all there are.

    Logprobs of a step without any ids cannot be trained on by mistake: they are there if they are sound.
    """
    if n_sampled(step) is None and shared(step, "prompt_token_ids") is None:
        logprobs = step.logprobs
        if logprobs is None or logprobs_problem(logprobs) is None:
            return {"logprobs": logprobs}
        report.drop("logprobs that are not finite numbers up to 0", where=f"step {step.id}")
        return {}
    reason = reason_left_out(step, {"allow": allow})
    if reason is not None:
        report.drop(f"token ids of steps left out: {reason}", where=f"step {step.id}")
        return {}
    note_grammar(constrained(step), n_sampled(step) or 0, report)
    count_step_extras(step, report)
    names = ("prompt_token_ids", "completion_token_ids", "logprobs")
    return {name: getattr(step, name) for name in names}


def model_of(step: Step) -> str | None:
    """The model that the response names, else that of the request."""
    return step.response_model or step.model


def usage_of(step: Step) -> dict[str, Any] | None:
    """Input and output tokens of the call; None where neither is known."""
    usage = step.usage
    return None if usage is None else without_none({"input": usage.input, "output": usage.output}) or None


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    names = ("type", "message", "code", "status")
    return None if error is None else without_none({name: getattr(error, name) for name in names})


def step_facts(step: Step) -> dict[str, Any]:
    """The facts of a step that ATIF has no field for."""
    issue = step.token_issue
    return without_none(
        {
            "step_id": step.id,
            "call_id": step.call_id,
            "choice": step.choice or None,
            "agent": step.agent,
            "status": None if step.status == "ok" else step.status,
            "error": _error(step.error),
            "finish_reason": step.finish_reason,
            "latency_seconds": step.latency,
            "trainable": None if step.trainable else False,
            "token_source": step.token_source,
            "token_issue": None if issue is None else {"code": issue.code, "message": issue.message},
            "reward": number(step.reward),
            "policy_version": step.policy_version,
            "policy_spans": None if step.policy_spans is None else [list(span) for span in step.policy_spans],
            "metadata": step.metadata or None,
            "recorded": facts_record(step),
        }
    )


def trajectory_facts(trajectory: Trajectory, failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a trajectory that ATIF has no field for; ``failed`` are its calls without an answer."""
    task = trajectory.task
    return without_none(
        {
            "task": None if task is None else without_none({"id": task.id, "data": task.data}),
            "group_id": trajectory.group_id,
            "rollout_index": trajectory.rollout_index,
            "parent_id": trajectory.parent_id,
            "status": trajectory.status,
            "stop_reason": trajectory.stop_reason,
            "error": _error(trajectory.error),
            "started_at": None if trajectory.started_at is None else trajectory.started_at.isoformat(),
            "ended_at": None if trajectory.ended_at is None else trajectory.ended_at.isoformat(),
            "environment": trajectory.environment,
            "metadata": trajectory.metadata or None,
            "failed_calls": failed or None,
        }
    )


def final_metrics(trajectory: Trajectory, steps: int, inner: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals of a trajectory; the cost, in USD, includes the documents inside it (``inner``), if all are known."""
    cost = trajectory.cost
    # A trajectory without steps cost nothing; one whose cost is not known leaves the total unknown.
    amounts = [cost.amount if cost is not None and cost.currency == "USD" else None if trajectory.steps else 0.0]
    amounts += [document["final_metrics"].get("total_cost_usd") for document in inner]
    known = [amount for amount in amounts if amount is not None]
    return without_none(
        {
            "total_prompt_tokens": trajectory.n_input_tokens,
            "total_completion_tokens": trajectory.n_output_tokens,
            "total_cached_tokens": trajectory.n_cache_read_tokens,
            # With sub-agents, as ATIF defines it. A sum without one of them would pass for the whole: then None.
            "total_cost_usd": sum(known) if len(known) == len(amounts) else None,
            "total_steps": steps,
            "extra": without_none(
                {
                    "reward": number(trajectory.reward),
                    "rewards": numbers(trajectory.rewards),
                    "metrics": trajectory.metrics,
                }
            )
            or None,
        }
    )
