"""Rows while they grow: which one a step goes on with, and how a finished one becomes a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace._lazy import cached_property
from rollout_trace.data.tokens import Segment, Span, readonly
from rollout_trace.train.advantages import advantage_of
from rollout_trace.train.sequence import Sequence, the_one
from rollout_trace.train.shaping import temperature

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, TokenSource
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.train.drift import Break
    from rollout_trace.train.selection import SequenceOptions


class Row:
    """A sequence that may still grow: it ends at ``end`` in ``segment``."""

    def __init__(self, is_retokenized: bool) -> None:
        self.is_retokenized = is_retokenized
        """Its ids are of text that was tokenised anew; they are never in one row with an engine's."""
        self.segment: Segment | None = None
        self.end = 0
        self.steps: list[tuple[Step, int, int]] = []
        self.began_at: Break | None = None
        self.last = 0
        """Place of its last step among those that are used."""

    def add(self, step: Step, completion: Span) -> None:
        """Goes on with a step's prompt and completion."""
        self.segment, self.end = completion.segment, completion.stop
        self.steps.append((step, completion.start, completion.stop))

    @cached_property
    def step_ids(self) -> tuple[str, ...]:
        """Of all steps."""
        return tuple(step.id for step, _, _ in self.steps)

    def fitting(self, options: SequenceOptions) -> int:
        """How many of its tokens ``max_length`` leaves; 0 where none of them was sampled."""
        limit = options.get("max_length")
        if limit is None:
            return self.end
        if options.get("truncate") == "turn":
            return max((end for _, _, end in self.steps if end <= limit), default=0)
        return min(self.end, limit) if self.steps[0][1] < limit else 0

    def close(self, length: int, reward: float | None) -> Sequence:
        """The first ``length`` tokens."""
        import numpy as np

        assert self.segment is not None
        whole = [(step, start, end) for step, start, end in self.steps if start < length]
        held = [(step, start, min(end, length)) for step, start, end in whole]
        mask = np.zeros(length, np.int8)
        known = all(step.logprobs is not None for step, _, _ in held)
        row = np.zeros(length, np.float32) if known else None
        for step, start, end in held:
            mask[start:end] = 1
            if row is not None:
                row[start:end] = step.logprobs[: end - start]  # type: ignore[index]
        return Sequence(
            token_ids=Span(self.segment, 0, length).get(),
            loss_mask=readonly(mask),
            logprobs=None if row is None else readonly(row),
            step_ids=tuple(step.id for step, _, _ in held),
            spans=tuple((start, end) for _, start, end in held),
            reward=reward,
            step_rewards=tuple(step.reward for step, _, _ in held),
            policy_versions=tuple(step.policy_version for step, _, _ in held),
            advantages=_advantages(whole, length),
            token_source=_source([step for step, _, _ in held]),
            truncated=length < self.end,
            temperatures=tuple(_number(temperature(step)) for step, _, _ in held),
            logprobs_mode=the_one([step.logprobs_mode for step, _, _ in held]),
        )


def _advantages(steps: list[tuple[Step, int, int]], length: int) -> FloatArray | None:
    import numpy as np

    found = np.zeros(length, np.float32)
    for step, start, end in steps:
        given = advantage_of(step, end - start)
        if given is None:
            return None
        found[start:end] = given[: length - start]
    array: FloatArray = readonly(found)
    return array


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _source(steps: list[Step]) -> TokenSource | None:
    sources = {step.token_source for step in steps}
    if len(sources) == 1:
        return sources.pop()
    return "logprobs" if "logprobs" in sources else None


class Rows:
    """The open sequences, by the segment in which they end."""

    def __init__(self, linear: bool) -> None:
        self.all: list[Row] = []
        self._linear = linear
        self._ending: dict[Segment, list[Row]] = {}

    def take(self, prompt: Span, is_retokenized: bool) -> Row:
        """The longest row that is a prefix of the prompt; a new one where none is."""
        segment: Segment | None = prompt.segment
        stop = prompt.stop
        while segment is not None:
            ending = self._ending.get(segment, ())
            fitting = [row for row in ending if row.end <= stop and row.is_retokenized == is_retokenized]
            if fitting:
                row = max(fitting, key=lambda candidate: candidate.end)
                self._ending[segment].remove(row)
                return row
            stop = min(stop, segment.start)
            segment = segment.base
        self.all.append(Row(is_retokenized))
        return self.all[-1]

    def put(self, row: Row) -> None:
        """Takes back a row that was added to."""
        assert row.segment is not None
        if self._linear:
            self._ending.clear()
        self._ending.setdefault(row.segment, []).append(row)
