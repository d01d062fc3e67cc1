"""Explains a failed ``assert ... == ...`` of trajectories, steps or tool runs: where they first differ.

For pytest's hook ``pytest_assertrepr_compare``, which is asked about every failed comparison: nothing is imported here
before a value of this library is in one.
"""

from __future__ import annotations

from typing import Any

_CONVERSATION = 18
"""Lines of a conversation."""
_OF_ONE_RUN = frozenset(
    {
        "id", "episode_id", "parent_id", "parent_step_id", "started_at", "ended_at", "environment", "call_id",
        "response_id", "latency", "time_to_first_token", "attempts", "step_id", "duration", "exchanges",
    }
)  # fmt: skip
"""Fields that differ between any two runs."""


def compare_repr(op: str, left: object, right: object) -> list[str] | None:
    """Explains a comparison with ``==`` that failed, for ``pytest_assertrepr_compare``: lines, the first a summary.

    None where neither value is of this library, nor a list of such, or the operator is another one.
    """
    if op != "==" or not (_is_ours(left) or _is_ours(right)):
        return None
    lines = [f"{_short(left)} == {_short(right)}", *_differences(left, right)]
    pictures = [found for value in (left, right) if (found := _trajectories(value))]
    shown = [_conversation(picture, _CONVERSATION // len(pictures)) for picture in pictures]
    if len(shown) == 2 and shown[0] == shown[1]:
        shown = shown[:1]
    for side, conversation in zip(("left: ", "right: ") if len(shown) == 2 else ("",), shown, strict=False):
        lines += ["", f"{side}{conversation[0]}", *conversation[1:]]
    return lines


def _is_ours(value: object) -> bool:
    """Whether a value is of a class of this library, or a list that begins with one."""
    if type(value) in (list, tuple) and value:
        return _is_ours(value[0])  # type: ignore[index]
    return any(base.__module__.partition(".")[0] == "rollout_trace" for base in type(value).__mro__)


def _trajectories(value: object) -> list[Any]:
    """The trajectories of a value; steps alone as a trajectory of these."""
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory

    from .rollout import RecordedRollout

    if isinstance(value, RecordedRollout):
        return value.trajectories
    found = value if isinstance(value, (list, tuple)) else [value]
    steps = [one for one in found if isinstance(one, Step)]
    return [one for one in found if isinstance(one, Trajectory)] or (
        [Trajectory(name="steps", steps=steps)] if steps else []
    )


def _conversation(trajectories: list[Any], most_lines: int) -> list[str]:
    from rollout_trace.guard import describe

    from .conversation_text import conversation_text

    try:
        return conversation_text(trajectories, most_lines=most_lines).split("\n")
    except Exception as error:
        # pytest would end the run with an internal error.
        return [f"(the conversation cannot be shown: {describe(error)})"]


def _differences(left: Any, right: Any) -> list[str]:
    from ._differences import changes, lines_of, named
    from .rollout import RecordedRollout

    if isinstance(left, RecordedRollout) or isinstance(right, RecordedRollout):
        return ["A rollout equals nothing but itself: compare rollout.trajectory, .steps, .messages or .text."]
    found = list(changes(_plain(left), _plain(right)))
    shown = [one for one in found if _OF_ONE_RUN.isdisjoint(one.path.split("."))]
    others = [one for one in found if not _OF_ONE_RUN.isdisjoint(one.path.split("."))]
    lines = lines_of(shown, 100, names=("left", "right"))
    if others:
        lead = "They differ too in" if shown else "They differ only in"
        lines.append(f"{lead} what is of one run alone: {named(others)}.")
    return lines or ["No difference can be named: their classes have an == of their own, or values that equal nothing."]


def _plain(value: Any) -> Any:
    """A value as JSON has it, with all its fields that are not None."""
    from dataclasses import fields, is_dataclass

    from rollout_trace.data.model import STEP_FIELDS, Step
    from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, Trajectory

    if isinstance(value, (str, int, float, type(None))):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    names: Any = TRAJECTORY_FIELDS if isinstance(value, Trajectory) else STEP_FIELDS if isinstance(value, Step) else ()
    if not names and is_dataclass(value):
        names = [one.name for one in fields(value)]
    if names:
        found = {name: getattr(value, name) for name in names}
        return {name: _plain(one) for name, one in found.items() if one is not None}
    try:
        return [_plain(one) for one in value]
    except TypeError:
        return _short(value)


def _short(value: Any) -> str:
    """A value in a line: lists of ours by what is in them."""
    from rollout_trace.guard import printable
    from rollout_trace.view.numbers import of

    if type(value) in (list, tuple) and _is_ours(value):
        return f"<a {type(value).__name__} of {of(len(value), type(value[0]).__name__)}>"
    try:
        return printable(repr(value), 100)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
