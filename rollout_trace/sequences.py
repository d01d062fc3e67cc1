"""What a trainer takes: steps whose prompts extend each other, as one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace.tokens import common_prefix

if TYPE_CHECKING:
    from rollout_trace.model import Step
    from rollout_trace.tokens import FloatArray, IntArray
    from rollout_trace.trajectories import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequence:
    """One row. The arrays have one length."""

    token_ids: IntArray
    """int32 [length]."""
    loss_mask: Any
    """int8 [length]: 1 where the model sampled the token, 0 where it read it."""
    logprobs: FloatArray | None
    """float32 [length], 0.0 where the mask is 0; None when a step of the row has none."""
    step_ids: tuple[str, ...]
    """The steps whose completions are in the row, in order."""
    reward: float | None
    """The trajectory's."""


class _OpenSequence:
    def __init__(self) -> None:
        self.ids: list[IntArray] = []
        self.sampled: list[tuple[int, int, FloatArray | None]] = []
        self.step_ids: list[str] = []
        self.length = 0

    def matches(self, prompt: IntArray) -> bool:
        if self.length > len(prompt):
            return False
        at = 0
        for part in self.ids:
            if common_prefix(part, prompt[at : at + len(part)]) < len(part):
                return False
            at += len(part)
        return True

    def add(self, step: Step, prompt: IntArray, completion: IntArray) -> None:
        self.ids += [prompt[self.length :], completion]
        start = len(prompt)
        self.length = start + len(completion)
        self.sampled.append((start, self.length, step.logprobs))
        self.step_ids.append(step.id)

    def close(self, reward: float | None) -> Sequence:
        import numpy as np

        mask = np.zeros(self.length, np.int8)
        known = all(logprobs is not None for _, _, logprobs in self.sampled)
        row = np.zeros(self.length, np.float32) if known else None
        for start, end, logprobs in self.sampled:
            mask[start:end] = 1
            if row is not None and logprobs is not None:
                row[start:end] = logprobs
        return Sequence(
            token_ids=np.concatenate(self.ids),
            loss_mask=mask,
            logprobs=row,
            step_ids=tuple(self.step_ids),
            reward=reward,
        )


def sequences(trajectory: Trajectory) -> list[Sequence]:
    """The rows of a trajectory, in the order their first steps began.

    Left out are steps that are not trainable, not ``ok``, have a ``token_issue``, or lack prompt or completion ids.
    """
    opened: list[_OpenSequence] = []
    for step in trajectory.steps:
        prompt, completion = step.prompt_token_ids, step.completion_token_ids
        usable = step.trainable and step.status == "ok" and step.token_issue is None
        if not usable or prompt is None or completion is None or not len(completion):
            continue
        fitting = [row for row in opened if row.matches(prompt)]
        if fitting:
            row = max(fitting, key=lambda candidate: candidate.length)
        else:
            row = _OpenSequence()
            opened.append(row)
        row.add(step, prompt, completion)
    return [row.close(trajectory.reward) for row in opened]
