"""Warnings about trajectories that were scored or written without a recorded model call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.data.trajectory import Trajectory


def _never() -> bool:
    return False


is_instrumented: Callable[[], bool] = _never
"""Whether every client of the process is recorded already, so that wrapping one is no remedy. Set by ``process``."""

_UNSEEN = (
    "The process is instrumented: a client that speaks HTTP by itself, on sockets or in native code, is not recorded."
)

_CACHE = (
    " Where a cache answered, there was no call: dspy's and litellm's give all samples of a group the first answer. "
    "Turn it off: dspy.LM(..., cache=False), litellm.disable_cache()."
)


def warn_if_nothing_recorded(
    trajectory: Trajectory, event: str, *, opened_at: str | None, children_opened: int
) -> None:
    """Warns about a trajectory without recorded calls, once per line of user code that opens such trajectories.

    Args:
        trajectory: a closed one.
        event: what was done with it, as the warning puts it: ``was written to rollouts.jsonl``.
        opened_at: file and line where it was opened; None, and no warning, if it was not opened by user code.
        children_opened: number of trajectories opened inside it, closed or not.
    """
    missing = None if opened_at is None else _missing(trajectory, children_opened)
    if missing is not None:
        what, remedy = missing
        guard.warn_once(
            f"silent:{what}:{opened_at}",
            f"trajectory {trajectory.name!r}, opened at {opened_at}, {event}, but {what}. {remedy}",
        )


def _missing(trajectory: Trajectory, children_opened: int) -> tuple[str, str] | None:
    """What a closed trajectory lacks, and the likely remedy; None if nothing is wrong."""
    if not trajectory.steps:
        died = trajectory.error is not None or trajectory.status == "aborted"
        closed_children = [child for child in trajectory._children if child.parent_id == trajectory.id]
        if died or len(closed_children) < children_opened or any(child.steps for child in trajectory._children):
            # No mistake of the user's: it failed before its first call, or its children make the calls, maybe still.
            return None
        nothing = "no model call was recorded in it"
        scored = _CACHE if trajectory.reward is not None else ""
        if is_instrumented():
            thread = "A worker thread that takes its jobs from a queue needs rt.propagate(function)."
            return nothing, f"{_UNSEEN} {thread}{scored}"
        return (
            nothing,
            "Call rt.instrument(), which records every client of the process, or wrap the client that the agent calls: "
            "rt.wrap_openai(client). A framework needs its hook, and its model record(llm). A thread needs "
            f"rt.instrument() or rt.propagate(function).{scored}",
        )
    codes = [None if step.token_issue is None else step.token_issue.code for step in trajectory.steps]
    if "not_on_wire" in codes and {"not_on_wire", "cached"}.issuperset(codes):
        unseen = (
            "no model call of it was seen on the wire: its steps are what a framework's hook said, without token ids"
        )
        if is_instrumented():
            return unseen, _UNSEEN
        return (
            unseen,
            "Give the framework's model to record(llm), or wrap the client that it uses: rt.wrap_openai(client) or "
            "rt.wrap_anthropic(client).",
        )
    return None
