"""The rows that a trainer takes, and the report on what became of a trajectory's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rollout_trace._field_docs import document_fields
from rollout_trace.data.tokens import readonly

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode, TokenSource
    from rollout_trace.data.tokens import FloatArray, IntArray, MaskArray
    from rollout_trace.train.drift import Break, Drift

T = TypeVar("T")


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sequence:
    """One row. The arrays have one length, and are read-only: they may share memory with the steps."""

    token_ids: IntArray
    """int32 [length]."""
    loss_mask: MaskArray
    """int8 [length]: 1 where the model sampled the token, 0 where it read it."""
    logprobs: FloatArray | None
    """float32 [length], 0.0 where the mask is 0; None when a step of the row has none."""
    step_ids: tuple[str, ...]
    """The steps whose completions are in the row, in order."""
    spans: tuple[tuple[int, int], ...]
    """For each of the steps, where its completion begins and ends in the row: [begin, end)."""
    reward: float | None
    """The row's share of the trajectory's: all of it, unless asked for otherwise. None: not scored."""
    step_rewards: tuple[float | None, ...]
    """Each step's own."""
    policy_versions: tuple[str | int | None, ...]
    """Of the weights that sampled each step."""
    advantages: FloatArray | None
    """float32 [length], 0.0 where the mask is 0, from the steps' ``advantage``; None when one of them has none."""
    token_source: TokenSource | None
    """Where the ids come from: of rows of both kinds ``logprobs``, the weaker; None where it is not known of a step.

    Retokenised ids are never in one row with others.
    """
    truncated: bool = False
    """``max_length`` cut the row."""
    temperatures: tuple[float | None, ...] = ()
    """That each step's request asked for; None where it did not say."""
    logprobs_mode: LogprobsMode | None = None
    """Of what its logprobs are: ``raw``, ``processed``; None where it is not known of a step, or steps differ."""

    @property
    def temperature(self) -> float | None:
        """What all steps were sampled at; None where one does not say, or they differ."""
        return the_one(self.temperatures)

    def __repr__(self) -> str:
        sampled = sum(end - start for start, end in self.spans)
        parts = [f"{len(self.token_ids)} ids", f"{sampled} sampled", f"{len(self.step_ids)} steps"]
        parts += ["no logprobs"] if self.logprobs is None else []
        parts += ["truncated"] if self.truncated else []
        return f"Sequence({', '.join(parts)}, reward={self.reward!r})"

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that was sampled."""
        return self.spans[0][0]

    @property
    def token_rewards(self) -> FloatArray | None:
        """float32 [length]: each step's reward on the last token of its completion, otherwise 0.0.

        None where no step has a reward. A step without one adds nothing; ``step_rewards`` tells it from a zero.
        """
        import numpy as np

        if all(reward is None for reward in self.step_rewards):
            return None
        found = np.zeros(len(self.token_ids), np.float32)
        for (_, end), reward in zip(self.spans, self.step_rewards, strict=True):
            found[end - 1] += 0.0 if reward is None else reward
        array: FloatArray = readonly(found)
        return array


@document_fields
@dataclass(frozen=True, kw_only=True)
class SequenceReport:
    """What became of a trajectory's steps."""

    sequences: int
    steps_used: int
    left_out: dict[str, tuple[str, ...]]
    """Ids of the steps in no sequence, by reason: one that ``allow`` may name, ``excluded``, ``policy_version``,
    ``drift`` or ``max_length``."""
    tokens: int
    """Of all sequences."""
    trainable_tokens: int
    """Those with mask 1."""
    tokens_cut: int
    """Tokens that ``max_length`` cut off, those of sequences that are gone for it included."""
    truncated: int
    """Sequences that were cut."""
    breaks: tuple[Break, ...]
    """Where a step began a new sequence though the trajectory had steps before."""
    constrained: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of the steps in the sequences whose tokens a grammar decided, by what it was: ``required tool``, ... Ratios
    of their logprobs to those of a trainer's own forward pass are not 1."""

    @property
    def drift(self) -> tuple[Drift, ...]:
        """Those breaks whose prompts repeat an earlier completion in other ids."""
        return tuple(found for one in self.breaks if (found := one.drift) is not None)

    @property
    def forks(self) -> int:
        """Breaks that share their beginning with an earlier step, and are no drift: siblings, retries, branches."""
        return sum(one.is_fork for one in self.breaks)

    @property
    def roots(self) -> int:
        """Conversations that share nothing with each other."""
        return bool(self.steps_used) + sum(one.is_root for one in self.breaks)

    @property
    def merge_ratio(self) -> float | None:
        """Steps in a sequence on average; None without sequences."""
        return self.steps_used / self.sequences if self.sequences else None


class Sequences(list[Sequence]):
    """Sequences in the order in which their first steps began, with the report on all steps."""

    def __init__(self, rows: Iterable[Sequence], report: SequenceReport) -> None:
        super().__init__(rows)
        self.report = report


def the_one(values: Iterable[T | None]) -> T | None:
    """The value that all have; None where there are several, or none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
