"""A trajectory that is scored or written although nothing was recorded in it: its user is told, with the place."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rollout_trace import guard

if TYPE_CHECKING:
    from rollout_trace.trajectories import Trajectory

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of_caller() -> str | None:
    """File and line of the user's code that called this package; of a library's where no code of a user's did."""
    frame, found = sys._getframe(1), None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "rollout_trace":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            # An integration may be installed from its own folder.
            if not package.startswith("rollout_trace_") and not _is_library(frame.f_code.co_filename):
                return place
            found = found or place
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _is_library(file: str) -> bool:
    return file.startswith((_STANDARD_LIBRARY, "<frozen")) or any(part in file for part in _INSTALLED)


def warn_if_written(trajectory: Trajectory, target: object) -> None:
    """Warns of a closed trajectory that goes to a file, or was scored and goes nowhere, and holds no recorded call."""
    scored = _own_score(trajectory)
    if target is not None:
        _warn(trajectory, f"was written to {target}")
    elif scored is not None:
        _warn(trajectory, f"was scored {scored!r}")


def warn_if_scored(trajectory: Trajectory, value: object) -> None:
    """Warns of a trajectory that is scored when it has closed, and holds no recorded call."""
    if trajectory._log is None:
        _warn(trajectory, f"is scored {value!r} at {place_of_caller()}")


def _own_score(trajectory: Trajectory) -> object:
    if trajectory.reward is not None and None not in trajectory._given:
        return trajectory.reward
    return next((value for name, value in (trajectory.rewards or {}).items() if name not in trajectory._given), None)


def _warn(trajectory: Trajectory, happened: str) -> None:
    place = trajectory._opened_at
    missing = None if place is None else _missing(trajectory)
    if missing is not None:
        what, remedy = missing
        guard.warn_once(
            f"silent:{what}:{place}",
            f"trajectory {trajectory.name!r}, opened at {place}, {happened}, but {what}. {remedy}",
        )


def _missing(trajectory: Trajectory) -> tuple[str, str] | None:
    """What is missing from a closed trajectory, and what was probably forgotten; None where all is well."""
    if not trajectory.steps:
        died = trajectory.error is not None or trajectory.status == "aborted"
        inside = [child for child in trajectory._children if child.parent_id == trajectory.id]
        if died or len(inside) < trajectory._opened_inside or any(child.steps for child in trajectory._children):
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
