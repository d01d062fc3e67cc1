"""What keeps the steps of trajectories from being trained on, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollout_trace.guard import printable
from rollout_trace.train.selection import n_sampled, reason_left_out
from rollout_trace.wire.profiles import can_request_ids, sends_no_ids

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.checks import Finding

_NOT_MEANT = frozenset({"error", "cancelled", "abandoned", "superseded", "cached", "running", "not_trainable"})
"""Reasons for which a step has nothing to be trained on."""


def step_names(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """What messages call each step, by its id: its index, as the conversation has it, and whose it is."""
    is_one = len(trajectories) == 1
    return {
        step.id: f"step {at}" if is_one else f"step {at} of {printable(trajectory.name, 60)}"
        for trajectory in trajectories
        for at, step in enumerate(trajectory.steps)
    }


def trainable_problems(trajectories: Sequence[Trajectory], *, logprobs: bool = True) -> list[str]:
    """Lines on the steps that cannot be trained on though their calls ended well, one for those with the same problem.

    Args:
        trajectories: those of a rollout.
        logprobs: whether ids without logprobs are a problem too.
    """
    names, found = step_names(trajectories), dict[str, list[str]]()
    for trajectory in trajectories:
        findings = trajectory.check()
        for step in trajectory.steps:
            what = _problem(step, [one for one in findings if one.step_id == step.id], logprobs)
            if what is not None:
                found.setdefault(what, []).append(names[step.id])
    if not names:
        return ["  no call to a model was recorded."]
    return [f"  {_listed(steps)}: {what}" for what, steps in found.items()]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")


def _problem(step: Step, findings: Sequence[Finding], logprobs: bool) -> str | None:
    reason = reason_left_out(step)
    if reason in _NOT_MEANT:
        return None
    fatal = next((one for one in findings if one.grade == "fatal" and one.code != reason), None)
    if reason is None and fatal is None:
        lacks_logprobs = logprobs and step.logprobs is None
        return f"logprobs_missing: it has ids without logprobs. {_remedy(step)}" if lacks_logprobs else None
    if reason is None and fatal is not None:
        return printable(f"{fatal.code}: {fatal.message}", 400)
    return f"{reason}: {_why(step, reason, findings)} {_remedy(step) if n_sampled(step) is None else ''}".rstrip()


def _why(step: Step, reason: str | None, findings: Sequence[Finding]) -> str:
    if step.token_issue is not None and step.token_issue.code == reason:
        return printable(step.token_issue.message, 400)
    found = next((one.message for one in findings if one.code == reason), "sequences() leaves it out.")
    return printable(found, 400)


def _remedy(step: Step) -> str:
    server = f" (engine {step.engine!r})" if step.engine is not None else ""
    if sends_no_ids(step.engine, step.protocol) or not can_request_ids(step.protocol):
        return (
            f"This server{server} sends no token ids: run the agent against one that does, such as vLLM or SGLang, "
            "or make ids from the text with trajectory.retokenize(tokenizer)."
        )
    if step.engine is None:
        return 'Name the server, which asks it for ids and logprobs: rt.instrument(engine="vllm").'
    return f"Ask the server{server} for token ids and logprobs; rt.probe(client) says what it sends."
