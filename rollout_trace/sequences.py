"""What a trainer takes: steps whose prompts extend each other, as one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace.model import shared
from rollout_trace.tokens import Segment, Span, TokenStore, readonly

if TYPE_CHECKING:
    from rollout_trace.model import Step
    from rollout_trace.tokens import FloatArray, IntArray
    from rollout_trace.trajectories import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequence:
    """One row. The arrays have one length, and are read-only: they may share memory with the steps."""

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


class _Row:
    """A sequence that may still grow: it ends at ``end`` in ``segment``."""

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self.end = 0
        self.sampled: list[tuple[int, int, FloatArray | None]] = []
        self.step_ids: list[str] = []

    def add(self, step: Step, completion: Span) -> None:
        self.segment, self.end = completion.segment, completion.stop
        self.sampled.append((completion.start, completion.stop, step.logprobs))
        self.step_ids.append(step.id)

    def close(self, reward: float | None) -> Sequence:
        import numpy as np

        assert self.segment is not None
        mask = np.zeros(self.end, np.int8)
        known = all(logprobs is not None for _, _, logprobs in self.sampled)
        row = np.zeros(self.end, np.float32) if known else None
        for start, end, logprobs in self.sampled:
            mask[start:end] = 1
            if row is not None and logprobs is not None:
                row[start:end] = logprobs
        return Sequence(
            token_ids=Span(self.segment, 0, self.end).get(),
            loss_mask=readonly(mask),
            logprobs=None if row is None else readonly(row),
            step_ids=tuple(self.step_ids),
            reward=reward,
        )


class _Rows:
    """The open sequences, by the segment in which they end."""

    def __init__(self) -> None:
        self.all: list[_Row] = []
        self._ending: dict[Segment, list[_Row]] = {}

    def take(self, prompt: Span) -> _Row:
        """The longest row that is a prefix of the prompt; a new one where none is."""
        segment: Segment | None = prompt.segment
        stop = prompt.stop
        while segment is not None:
            fitting = [row for row in self._ending.get(segment, ()) if row.end <= stop]
            if fitting:
                row = max(fitting, key=lambda candidate: candidate.end)
                self._ending[segment].remove(row)
                return row
            stop = min(stop, segment.start)
            segment = segment.base
        self.all.append(_Row())
        return self.all[-1]

    def put(self, row: _Row) -> None:
        """Takes back a row that was added to."""
        assert row.segment is not None
        self._ending.setdefault(row.segment, []).append(row)


def sequences(trajectory: Trajectory) -> list[Sequence]:
    """The rows of a trajectory, in the order their first steps began.

    Left out are steps that are not trainable, not ``ok``, have a ``token_issue``, or lack prompt or completion ids.
    """
    steps = [step for step in trajectory.steps if _is_usable(step)]
    rows = _Rows()
    for step, (prompt, completion) in zip(steps, _spans(steps), strict=True):
        row = rows.take(prompt)
        row.add(step, completion)
        rows.put(row)
    return [row.close(trajectory.reward) for row in rows.all]


def _is_usable(step: Step) -> bool:
    if not step.trainable or step.status != "ok" or step.token_issue is not None:
        return False
    completion = shared(step, "completion_token_ids")
    if shared(step, "prompt_token_ids") is None or completion is None:
        return False
    return bool(completion.stop > completion.start if isinstance(completion, Span) else len(completion))


def _spans(steps: list[Step]) -> list[tuple[Any, Any]]:
    """The ids of the steps as spans of one tree: their own where they have one, of a new one otherwise."""
    held = [(shared(step, "prompt_token_ids"), shared(step, "completion_token_ids")) for step in steps]
    trees = {span.segment.tree if isinstance(span, Span) else None for pair in held for span in pair}
    if len(trees) == 1 and all(tree is not None and tree.is_sound for tree in trees):
        return held
    store = TokenStore()
    return [store.add(step.prompt_token_ids, step.completion_token_ids) for step in steps]
