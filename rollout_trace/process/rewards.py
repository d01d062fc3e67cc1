"""``rollout-trace run --reward-from FILE``: the reward that the program leaves in a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rollout_trace.data import user_values
from rollout_trace.guard import describe, printable
from rollout_trace.record import program

FILE = "ROLLOUT_TRACE_REWARD_FROM"
BEFORE = "ROLLOUT_TRACE_REWARD_BEFORE"
"""When the file had been changed last before the program began, in nanoseconds; empty without a file."""

_KEYS = ("reward", "rewards", "metrics")
_state = {"is_given": False}


class Found(NamedTuple):
    """What the file holds; None where it has no such value."""

    reward: float | None
    rewards: dict[str, float] | None
    metrics: dict[str, float] | None


def read(path: str, before: str = "") -> Found:
    """Reads a file with a number, or with an object of ``reward``, ``rewards`` and ``metrics``.

    Raises:
        ValueError: it is not there, is no such JSON, or is as it was before the program began; with a sentence on that.
    """
    try:
        with open(path, "rb") as file:
            changed, data = str(os.fstat(file.fileno()).st_mtime_ns), file.read()
    except FileNotFoundError:
        raise ValueError("the program has not written it") from None
    except OSError as error:
        raise ValueError(describe(error)) from None
    if changed == before:
        raise ValueError("it was there before the program began, and the program did not change it")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        value = {"reward": value}
    unknown = [key for key in value if key not in _KEYS]
    if unknown or not value:
        what = f"the key {unknown[0]!r}" if unknown else "an empty object"
        raise ValueError(f"expected a number, or an object with {', '.join(_KEYS)}; it has {what}")
    try:
        parts = {name: _numbers(value.get(name), name) for name in ("rewards", "metrics")}
        reward = value.get("reward")
        return Found(None if reward is None else user_values.finite_number(reward, "the reward"), **parts)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _numbers(value: Any, name: str) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {user_values.brief(value)}; expected an object of numbers")
    return {key: user_values.finite_number(one, f"{name}[{key!r}]") for key, one in value.items()}


def give_to_open() -> None:
    """Sets what the file holds on the program's trajectory, if that is open."""
    trajectory, path = program.opened(), os.environ.get(FILE)
    if trajectory is None or path is None:
        return
    _state["is_given"] = True
    found = _read_or_warn(path)
    if found is None:
        return
    if found.reward is not None:
        trajectory.reward = found.reward
    if found.rewards is not None:
        trajectory.rewards = {**(trajectory.rewards or {}), **found.rewards}
    if found.metrics is not None:
        trajectory.metrics = {**(trajectory.metrics or {}), **found.metrics}


def give_to_written(roots: Sequence[tuple[str, str]]) -> None:
    """Notes what the file holds in the output, where the program has no trajectory of its own but one with no parent.

    Of several it is not known which one is meant.

    Args:
        roots: ids and files of the trajectories without a parent.
    """
    path = os.environ.get(FILE)
    if path is None or _state["is_given"]:
        return
    _state["is_given"] = True
    if len(roots) != 1:
        _warn(path, "one reward cannot be given to several trajectories: call rt.reward() in the program")
        return
    found = _read_or_warn(path)
    if found is None:
        return
    from rollout_trace.file.annotate import annotate

    trajectory, target = roots[0]
    annotate(target, trajectory, **{name: value for name, value in found._asdict().items() if value is not None})


def _read_or_warn(path: str) -> Found | None:
    try:
        return read(path, os.environ.get(BEFORE, ""))
    except ValueError as error:
        _warn(path, str(error))
        return None


def _warn(path: str, problem: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"rollout-trace: no reward from {printable(path)}: {printable(problem)}.\n")
