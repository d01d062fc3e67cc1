"""Rows under construction: which row a step extends, and the ``Sequence`` made of a finished row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace._cached import cached_property
from rollout_trace.data.tokens import Segment, Span, readonly
from rollout_trace.train.advantages import advantage_array
from rollout_trace.train.row_extras import row_extras
from rollout_trace.train.sequence import Sequence, common_value
from rollout_trace.train.shaping import temperature
from rollout_trace.train.step_extras import has_extras

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, TokenSource
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.train.drift import Break
    from rollout_trace.train.selection import SequenceOptions


class Row:
    """A sequence under construction. Its ids are those of ``segment`` up to ``end``."""

    def __init__(self, is_retokenized: bool) -> None:
        self.is_retokenized = is_retokenized
        """Whether its ids are retokenised text; such ids are never in one row with an engine's."""
        self.segment: Segment | None = None
        self.end = 0
        self.steps: list[tuple[Step, int, int]] = []
        self.opening_break: Break | None = None
        self.last_index = 0
        """Index of its last step among the used steps."""
        self.has_extras = False
        """Whether a step of the closed row, or of the prompt in which it ends, has an extra."""
        self.extras_left_out: dict[str, list[str]] = {}
        """Ids of steps whose extras are not in the closed row, by field and reason."""

    def add(self, step: Step, completion: Span) -> None:
        """Extends the row by a step's prompt and completion."""
        self.segment, self.end = completion.segment, completion.stop
        self.steps.append((step, completion.start, completion.stop))

    @cached_property
    def step_ids(self) -> tuple[str, ...]:
        """Ids of the steps in the row, in order."""
        return tuple(step.id for step, _, _ in self.steps)

    def length_within(self, options: SequenceOptions) -> int:
        """Number of tokens that the limits leave; 0 where no sampled token is among them, or the prompt is too long."""
        limits = self._limits(options)
        if not limits:
            return self.end
        prompt, limit = self.steps[0][1], min(limits.values())
        if options.get("truncate") == "turn":
            return max((end for _, _, end in self.steps if end <= limit), default=0)
        return min(self.end, limit) if prompt < limit else 0

    def limit_that_cuts(self, options: SequenceOptions) -> str:
        """The option that leaves the fewest tokens; of several the first of ``LIMITS``."""
        limits = self._limits(options)
        return min(limits, key=limits.__getitem__)

    def _limits(self, options: SequenceOptions) -> dict[str, int]:
        """The number of tokens that each limit leaves of the row."""
        prompt, longest, response = self.steps[0][1], options.get("max_length"), options.get("max_response_length")
        longest_prompt = options.get("max_prompt_length")
        limits = {
            "max_length": longest,
            "max_prompt_length": 0 if longest_prompt is not None and prompt > longest_prompt else None,
            "max_response_length": None if response is None else prompt + response,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}

    def close(self, length: int, reward: float | None) -> Sequence:
        """The first ``length`` tokens of the row as a ``Sequence``, with its share of the reward."""
        import numpy as np

        assert self.segment is not None
        # Uncut spans: an advantage per token must fit the whole completion, also where the row is cut inside it.
        whole = [(step, start, end) for step, start, end in self.steps if start < length]
        included = [(step, start, min(end, length)) for step, start, end in whole]
        # With the step whose prompt the row may end in: the items in that part of the prompt are in the row.
        read = self.steps[: len(whole) + 1]
        self.has_extras = any(has_extras(step) for step, _, _ in read)
        mask = np.zeros(length, np.int8)
        all_have_logprobs = all(step.logprobs is not None for step, _, _ in included)
        logprobs = np.zeros(length, np.float32) if all_have_logprobs else None
        for step, start, end in included:
            mask[start:end] = 1
            if logprobs is not None:
                logprobs[start:end] = step.logprobs[: end - start]  # type: ignore[index]
        return Sequence(
            token_ids=Span(self.segment, 0, length).get(),
            loss_mask=readonly(mask),
            logprobs=None if logprobs is None else readonly(logprobs),
            step_ids=tuple(step.id for step, _, _ in included),
            spans=tuple((start, end) for _, start, end in included),
            reward=reward,
            step_rewards=tuple(step.reward for step, _, _ in included),
            policy_versions=tuple(step.policy_version for step, _, _ in included),
            advantages=_advantages(whole, length),
            token_source=_weakest_source([step for step, _, _ in included]),
            truncated=length < self.end,
            temperatures=tuple(_number(temperature(step)) for step, _, _ in included),
            logprobs_mode=common_value([step.logprobs_mode for step, _, _ in included]),
            **(row_extras(whole, read, length, self.extras_left_out) if self.has_extras else {}),
        )


def _advantages(steps: list[tuple[Step, int, int]], length: int) -> FloatArray | None:
    import numpy as np

    values = np.zeros(length, np.float32)
    for step, start, end in steps:
        advantage = advantage_array(step, end - start)
        if advantage is None:
            return None
        values[start:end] = advantage[: length - start]
    array: FloatArray = readonly(values)
    return array


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:  # A whole number that no float holds.
        return None


def _weakest_source(steps: list[Step]) -> TokenSource | None:
    sources = {step.token_source for step in steps}
    if len(sources) == 1:
        return sources.pop()
    return "logprobs" if "logprobs" in sources else None


class Rows:
    """All rows of a trajectory, and the open ones by the segment in which they end."""

    def __init__(self, linear: bool) -> None:
        self.all: list[Row] = []
        self._linear = linear
        self._ending: dict[Segment, list[Row]] = {}

    def take(self, prompt: Span, is_retokenized: bool) -> Row:
        """Removes and returns the longest row that is a prefix of the prompt; a new row where none is.

        Of several prefixes the longest alone holds every completion that the prompt repeats. It is removed because the
        step changes where it ends: ``put`` files it under its new segment.
        """
        segment: Segment | None = prompt.segment
        stop = prompt.stop
        while segment is not None:
            ending = self._ending.get(segment, ())
            fitting = [row for row in ending if row.end <= stop and row.is_retokenized == is_retokenized]
            if fitting:
                row = max(fitting, key=lambda candidate: candidate.end)
                self._ending[segment].remove(row)
                return row
            # A segment may leave its base before the base ends: rows that end after that point are no prefix.
            stop = min(stop, segment.start)
            segment = segment.base
        self.all.append(Row(is_retokenized))
        return self.all[-1]

    def put(self, row: Row) -> None:
        """Stores a row again after a step was added to it."""
        assert row.segment is not None
        if self._linear:
            # Every other row is closed: only the latest may be extended.
            self._ending.clear()
        self._ending.setdefault(row.segment, []).append(row)
