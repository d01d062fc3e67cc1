"""What a failed plain ``assert`` shows of trajectories, steps and tool runs: where they differ first.

For pytest's hook ``pytest_assertrepr_compare``, which is asked about every failed comparison: nothing is imported here
before a value of this library is in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LINES = 14
"""Differences that are listed."""
_WIDTH = 88
"""Characters of a value that are shown."""
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
    """Explains a comparison that failed, for ``pytest_assertrepr_compare``.

    Args:
        op: the operator, as pytest gives it: ``==``, ``!=``, ``in``, ``not in``.
        left: what stands before it.
        right: what stands behind it.

    Returns:
        The lines, the first a summary; None where neither value is a trajectory, a step, a tool run or the like, nor a
        list of these, or the operator is another one.
    """
    if op not in ("==", "!=", "in", "not in") or not (_is_ours(left) or _is_ours(right)):
        return None
    lines = [f"{_short(left)} {op} {_short(right)}"]
    if op == "==":
        lines += _differences(left, right)
    elif op == "!=":
        lines.append("They are equal.")
    else:
        lines += _members(right)
    values = [left] if left is right else [left, right]
    pictures = [found for value in values if (found := _trajectories(value))]
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
    from .rollout import RecordedRollout

    if isinstance(left, RecordedRollout) or isinstance(right, RecordedRollout):
        return ["A rollout equals nothing but itself: compare rollout.trajectory, .steps, .messages or .text."]
    found = list(_walk("", left, right))
    shown = [line for line, is_of_one_run in found if not is_of_one_run]
    others = sorted({line.partition(":")[0].strip() for line, is_of_one_run in found if is_of_one_run})
    if not found:
        return ["No difference can be named: their classes have an == of their own, or values that equal nothing."]
    lines = shown[:_LINES]
    if len(shown) > _LINES:
        lines.append(f"... and {len(shown) - _LINES:,} more differences")
    if others:
        names = f"{', '.join(others[:6])}{', ...' if len(others) > 6 else ''}"
        lead = "They differ too in" if shown else "They differ only in"
        lines.append(f"{lead} what is of one run alone: {names}.")
    return lines


def _walk(name: str, a: Any, b: Any, *, of_one_run: bool = False) -> Iterator[tuple[str, bool]]:
    """Lines on what differs, each with whether it differs between any two runs."""
    if _equal(a, b):
        return
    if of_one_run:
        yield f"{name}: differs", True
        return
    fields = _fields(a) if type(a) is type(b) else None
    if fields is not None:
        for field in fields:
            yield from _walk(
                f"{name}.{field}" if name else field,
                getattr(a, field),
                getattr(b, field),
                of_one_run=field in _OF_ONE_RUN,
            )
    elif hasattr(a, "dtype") and hasattr(b, "dtype") and a.ndim == b.ndim == 1:
        yield f"{name}: {_arrays(a, b)}", False
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from _walk(f"{name}[{_value(key)}]", a.get(key, _NOTHING), b.get(key, _NOTHING))
    elif _is_list(a) and _is_list(b):
        yield from _walk_lists(name, a, b)
    else:
        yield f"{name or 'they differ'}: {_values(a, b)}", False


def _walk_lists(name: str, a: Any, b: Any) -> Iterator[tuple[str, bool]]:
    """The lengths, and the first item that differs by more than what is of one run alone."""
    if len(a) != len(b):
        yield f"{name or 'length'}: {len(a)} and {len(b)} items", False
    for at, (one, two) in enumerate(zip(a, b, strict=False)):
        found = list(_walk(f"{name}[{at}]", one, two))
        yield from found
        if any(not is_of_one_run for _, is_of_one_run in found):
            return
    at = min(len(a), len(b))
    if len(a) != len(b):
        sides = [_short(one[at]) if at < len(one) else "nothing" for one in (a, b)]
        yield f"{name}[{at}]: {' and '.join(sides)}", False


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _is_list(value: Any) -> bool:
    from collections.abc import Sequence

    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _equal(a: Any, b: Any) -> bool:
    from rollout_trace.data.tokens import same_array

    try:
        return a is b or same_array(a, b)
    except Exception:
        # A user's own values; two that cannot be compared are shown.
        return False


def _fields(value: Any) -> tuple[str, ...] | None:
    from dataclasses import fields, is_dataclass

    from rollout_trace.data.model import STEP_FIELDS, Step
    from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, Trajectory

    if isinstance(value, Trajectory):
        return TRAJECTORY_FIELDS
    if isinstance(value, Step):
        return STEP_FIELDS
    return tuple(one.name for one in fields(value)) if is_dataclass(value) and not isinstance(value, type) else None


def _arrays(a: Any, b: Any) -> str:
    from rollout_trace.view.difference import first_difference

    at = first_difference(a, b)
    return f"from position {at:,} on {_array(a, at)} and {_array(b, at)}"


def _array(value: Any, begin: int) -> str:
    items = value[begin : begin + 8].tolist()
    shown = ", ".join(f"{one:.6g}" if isinstance(one, float) else str(one) for one in items)
    return f"[{shown}{', ...' if len(value) > begin + 8 else ''}] of {len(value):,}"


def _values(a: Any, b: Any) -> str:
    if isinstance(a, str) and isinstance(b, str):
        at = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        # A few characters before the first that differs, to find it by.
        begin = max(0, at - _WIDTH // 3) if max(len(a), len(b)) > _WIDTH else 0
        lead = f"from character {begin:,} on " if begin else ""
        return f"{lead}{_value(a[begin:])} and {_value(b[begin:])}"
    return f"{_value(a)} and {_value(b)}"


def _value(value: Any) -> str:
    from rollout_trace.guard import printable

    if getattr(value, "ndim", None) == 1:
        return _array(value, 0)
    try:
        return printable(repr(value), _WIDTH)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"


def _members(right: Any) -> list[str]:
    if not _is_list(right):
        return []
    lines = [f"  [{at}] {_short(one)}" for at, one in enumerate(right[:_LINES])]
    return lines + ([f"  ... and {len(right) - _LINES:,} more"] if len(right) > _LINES else [])


def _short(value: Any) -> str:
    """A value in the summary: long ones by what they are."""
    from rollout_trace.data.model import ToolCall, ToolRun
    from rollout_trace.guard import printable
    from rollout_trace.view.numbers import of

    if type(value) in (list, tuple) and _is_ours(value):
        return f"<a {type(value).__name__} of {of(len(value), type(value[0]).__name__)}>"
    if isinstance(value, (ToolRun, ToolCall)):
        return printable(f"{type(value).__name__}({value.name!r}, {value.arguments!r})", 100)
    return _value(value)
