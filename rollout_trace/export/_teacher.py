"""A teacher's scores of rows: its calls among the steps, matched with rows by token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.extras import TopTokens
from rollout_trace.data.tokens import common_prefix
from rollout_trace.train.step_extras import misfit

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.data.trajectory import Trajectory

TeacherOption: TypeAlias = "str | Callable[[Step], bool] | None"
Found: TypeAlias = "tuple[TopTokens | None, FloatArray | None, str | None]"
"""Likeliest tokens and own logprobs of a row's positions, and the teacher's model."""

WIRE_INFINITY = -9999.0
"""What vLLM sends for a logprob of minus infinity."""


def is_teacher(step: Step, teacher: TeacherOption) -> bool:
    """Whether a step is the teacher's: its request names that model, or the function returns True."""
    if teacher is None:
        return False
    return teacher(step) if callable(teacher) else teacher in (step.model, step.response_model)


class TeacherScores:
    """The prompts that a teacher scored, by their token ids and by trajectory."""

    def __init__(self, trajectories: Iterable[Trajectory], teacher: TeacherOption) -> None:
        self._name = teacher if isinstance(teacher, str) else None
        self._by_ids: dict[bytes, Step] = {}
        self._by_trajectory: dict[str, list[Step]] = {}
        for trajectory in trajectories:
            for step in trajectory.steps:
                if is_teacher(step, teacher) and step.prompt_token_ids is not None and _is_scored(step):
                    self._by_ids[step.prompt_token_ids.tobytes()] = step
                    self._by_trajectory.setdefault(trajectory.id, []).append(step)

    def of(self, ids: IntArray, trajectory_id: str) -> Found | None:
        """The scores of a row: those of a prompt of the same ids, else of the prompt in its trajectory that shares the
        most ids with its beginning; None where there is no such prompt.

        A score is of the ids up to its position: it holds for every row that begins with them.
        """
        step = self._by_ids.get(ids.tobytes())
        if step is not None:
            return self._cut(step, len(ids), len(ids))
        best, shared = None, 1
        for candidate in self._by_trajectory.get(trajectory_id, ()):
            assert candidate.prompt_token_ids is not None
            common = common_prefix(candidate.prompt_token_ids, ids)
            if common > shared:
                best, shared = candidate, common
        return None if best is None else self._cut(best, shared, len(ids))

    def _cut(self, step: Step, shared: int, length: int) -> Found:
        """The scores of the first ``shared`` positions, in arrays of ``length``."""
        top, own = step.prompt_top_tokens, step.prompt_logprobs
        name = self._name or step.model
        if top is not None:
            top = TopTokens(_resized(top.ids, shared, length, -1), _resized(top.logprobs, shared, length, float("nan")))
        return top, None if own is None else _resized(own, shared, length, float("nan")), name


def _is_scored(step: Step) -> bool:
    assert step.prompt_token_ids is not None
    count = len(step.prompt_token_ids)
    has_any = step.prompt_top_tokens is not None or step.prompt_logprobs is not None
    return has_any and not any(misfit(step, name, count, 0) for name in ("prompt_top_tokens", "prompt_logprobs"))


def _resized(rows: Any, shared: int, length: int, filler: float) -> Any:
    import numpy as np

    if shared == length == len(rows):
        return rows
    resized = np.full((length, *rows.shape[1:]), filler, rows.dtype)
    resized[:shared] = rows[:shared]
    return resized


def ranked(top: TopTokens | None, length: int, k: int | None, filler: float) -> tuple[Any, Any]:
    """Ids int32 and logprobs float32 [length, k], likeliest first; 0 and ``filler`` elsewhere."""
    import numpy as np

    if top is None:
        return np.zeros((length, k or 0), np.int32), np.full((length, k or 0), filler, np.float32)
    # vLLM's minus infinity: the token was excluded, and is no likely one.
    known = (top.ids >= 0) & (top.logprobs > WIRE_INFINITY)
    keys = np.where(known, top.logprobs, -np.inf)
    # Stable: of equal logprobs the engine's order stays.
    order = np.argsort(-keys, axis=1, kind="stable")
    known = np.take_along_axis(known, order, axis=1)
    ids = np.where(known, np.take_along_axis(top.ids, order, axis=1), 0)
    values = np.where(known, np.take_along_axis(top.logprobs, order, axis=1), np.float32(filler))
    width = int(known.sum(axis=1).max(initial=0)) if k is None else k
    ids, values = ids[:, :width], values[:, :width]
    short = width - ids.shape[1]
    if short > 0:
        ids = np.pad(ids, ((0, 0), (0, short)))
        values = np.pad(values, ((0, 0), (0, short)), constant_values=filler)
    return ids, values
