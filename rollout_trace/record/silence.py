"""Warnings about a trajectory that is scored or written although nothing was recorded in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace import guard

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


def warn_if_nothing_recorded(
    trajectory: Trajectory, happened: str, *, opened_at: str | None, opened_inside: int
) -> None:
    """Warns once for each place in the user's code where a trajectory without a recorded call was opened.

    Args:
        trajectory: a closed one.
        happened: what was done with it: ``was written to rollouts.jsonl``.
        opened_at: file and line where it was opened; None, and no warning, where it was not opened in this process.
        opened_inside: how many trajectories were opened inside it.
    """
    missing = None if opened_at is None else _missing(trajectory, opened_inside)
    if missing is not None:
        what, remedy = missing
        guard.warn_once(
            f"silent:{what}:{opened_at}",
            f"trajectory {trajectory.name!r}, opened at {opened_at}, {happened}, but {what}. {remedy}",
        )


def _missing(trajectory: Trajectory, opened_inside: int) -> tuple[str, str] | None:
    """What is missing from a closed trajectory, and what was probably forgotten; None where all is well."""
    if not trajectory.steps:
        died = trajectory.error is not None or trajectory.status == "aborted"
        inside = [child for child in trajectory._children if child.parent_id == trajectory.id]
        if died or len(inside) < opened_inside or any(child.steps for child in trajectory._children):
            # It ended before its first call, or others made the calls (or still make them).
            return None
        return (
            "no model call was recorded in it",
            "Wrap the client that the agent calls: rt.wrap_openai(client) or rt.wrap_anthropic(client). A framework "
            "needs its hook, and its model record(llm). A thread needs rt.propagate(function).",
        )
    codes = [None if step.token_issue is None else step.token_issue.code for step in trajectory.steps]
    if "not_on_wire" in codes and {"not_on_wire", "cached"}.issuperset(codes):
        return (
            "no model call of it was seen on the wire: its steps are what a framework's hook said, without token ids",
            "Give the framework's model to record(llm), or wrap the client that it uses: rt.wrap_openai(client) or "
            "rt.wrap_anthropic(client).",
        )
    return None
