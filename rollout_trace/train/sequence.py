"""The rows that a trainer reads, and the report on which steps of a trajectory are in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rollout_trace._field_docs import document_fields
from rollout_trace._lazy import registered
from rollout_trace.data.tokens import readonly

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray, PolicySpan, SamplingMask, TopTokens
    from rollout_trace.data.model import LogprobsMode, TokenSource
    from rollout_trace.data.tokens import FloatArray, IntArray, MaskArray
    from rollout_trace.train.drift import Break, Drift

T = TypeVar("T")


class Placeholder(NamedTuple):
    """Positions of a row that stand for one image, video or audio clip, whose embeddings replace those of the ids."""

    modality: str
    """``image``, ``video`` or ``audio``, as named by the engine."""
    offset: int
    """The first position."""
    length: int
    """Number of positions; fewer than the item has if ``max_length`` cut the row inside it."""
    hash: str | None
    """The item's hash in the request (``features.mm_hashes``); None if the request has none."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sequence:
    """A training sequence (row). Its arrays have one length and are read-only: they may share memory with steps."""

    token_ids: IntArray
    """int32 [length]: ids of all tokens of the row."""
    loss_mask: MaskArray
    """int8 [length]: 1 where the model sampled the token, 0 where it read it."""
    logprobs: FloatArray | None
    """float32 [length]: 0.0 where the mask is 0; None if a step of the row has none."""
    trajectory_id: str | None = None
    """Id of the trajectory."""
    step_ids: tuple[str, ...]
    """Ids of the steps whose completions are in the row, in order."""
    spans: tuple[tuple[int, int], ...]
    """For each step, the positions of its completion in the row: [begin, end). If ``on_drift="mask"`` masked the
    completion's end, the span stops before it."""
    reward: float | None
    """The row's share of the trajectory's reward: all of it, unless the option ``reward`` says otherwise. None: not
    scored."""
    step_rewards: tuple[float | None, ...]
    """Each step's own ``reward``; None for steps without one."""
    policy_versions: tuple[str | int | None, ...]
    """For each step, the version of the weights that sampled it."""
    advantages: FloatArray | None
    """float32 [length], from the steps' ``advantage``: 0.0 where the mask is 0; None if a step has none."""
    token_source: TokenSource | None
    """Source of the ids; ``logprobs``, the weaker one, if the row has both kinds. None if a step has no source.

    Retokenised ids are never in the same row as others.
    """
    truncated: bool = False
    """Whether ``max_length`` or ``max_response_length`` cut the row."""
    temperatures: tuple[float | None, ...] = ()
    """For each step, the ``temperature`` of its request; None if the request has none."""
    logprobs_mode: LogprobsMode | None = None
    """Distribution of the logprobs: ``raw``, ``processed`` or ``constrained``; None if a step has no mode, or steps
    differ."""
    prompt_logprobs: FloatArray | None = None
    """float32 [length]: logprob of the token at each position given the tokens before it, at temperature 1, as scored
    when it was part of a prompt. Sampled tokens have one if a later step's prompt repeats them. NaN where none was
    scored, which includes position 0. None if no step of the row has any."""
    prompt_top_tokens: TopTokens | None = None
    """The likeliest tokens at each position, as scored when it was part of a prompt: ids int32 and logprobs float32
    [length, k], k the widest of the row's steps; -1 and NaN elsewhere. None if no step of the row has any."""
    top_tokens: TopTokens | None = None
    """The likeliest tokens when each position was sampled: ids int32 and logprobs float32 [length, k]; -1 and NaN where
    the mask is 0, and where a step has none. None where no step of the row has any."""
    sampling_mask: SamplingMask | None = None
    """The ids that could be sampled at each of the ``length`` positions; count 0 where the mask is 0. None if a step of
    the row has none."""
    routed_experts: ExpertArray | None = None
    """uint8, uint16 or int32 [length, layers, k]: experts that each layer chose for the token at each position; zeros
    where ``routed_experts_mask`` is 0. None if no step of the row has any, or steps differ in layers, k or dtype."""
    routed_experts_mask: MaskArray | None = None
    """int8 [length]: 1 where the engine gave the experts. A row's last token never has them, since it was sampled but
    not run through the model."""
    policy_spans: tuple[PolicySpan, ...] | None = None
    """Positions of the row sampled by one version of the weights each, in order: the steps' ``policy_spans``, otherwise
    their ``policy_version`` over the whole completion. None if no step of the row has a version."""
    placeholders: tuple[Placeholder, ...] = ()
    """Images and other items in the row, by position."""

    def extra_counts(self) -> Iterator[tuple[str, int]]:
        """The row's extras, each with the number of tokens that have it."""
        import numpy as np

        if self.prompt_logprobs is not None:
            yield "prompt_logprobs", int(np.count_nonzero(self.prompt_logprobs == self.prompt_logprobs))
        for name in ("prompt_top_tokens", "top_tokens"):
            top: TopTokens | None = getattr(self, name)
            if top is not None:
                yield name, int(np.count_nonzero((top.ids >= 0).any(axis=1)))
        if self.sampling_mask is not None:
            yield "sampling_mask", int(np.count_nonzero(self.sampling_mask.counts))
        if self.routed_experts_mask is not None:
            yield "routed_experts", int(np.count_nonzero(self.routed_experts_mask))
        if self.policy_spans is not None:
            yield "policy_spans", sum(end - begin for begin, end, _ in self.policy_spans)
        if self.placeholders:
            yield "placeholders", sum(one.length for one in self.placeholders)

    @property
    def versions(self) -> tuple[str | int, ...]:
        """The versions of the weights that sampled the row, without repetition, in the order of their first tokens."""
        return tuple(dict.fromkeys(span.version for span in self.policy_spans or ()))

    @property
    def token_versions(self) -> IntArray | None:
        """int32 [length]: for each token, the index in ``versions`` of the weights that sampled it.

        -1 where the mask is 0 or the version is unknown. None if no step of the row has a version.
        """
        import numpy as np

        if self.policy_spans is None:
            return None
        indices = {version: at for at, version in enumerate(self.versions)}
        values = np.full(len(self.token_ids), -1, np.int32)
        for begin, end, version in self.policy_spans:
            values[begin:end] = indices[version]
        array: IntArray = readonly(values)
        return array

    @property
    def temperature(self) -> float | None:
        """The temperature of all steps; None if a step has none, or they differ."""
        return common_value(self.temperatures)

    def __repr__(self) -> str:
        sampled = sum(end - start for start, end in self.spans)
        parts = [f"{len(self.token_ids)} ids", f"{sampled} sampled", f"{len(self.step_ids)} steps"]
        parts += ["no logprobs"] if self.logprobs is None else []
        parts += ["truncated"] if self.truncated else []
        return f"Sequence({', '.join(parts)}, reward={self.reward!r})"

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first sampled one."""
        return self.spans[0][0]

    @property
    def token_rewards(self) -> FloatArray | None:
        """float32 [length]: each step's reward on the last token of its completion, otherwise 0.0.

        None if no step has a reward. A step without one counts as 0.0 here and is None in ``step_rewards``.
        """
        import numpy as np

        if all(reward is None for reward in self.step_rewards):
            return None
        rewards = np.zeros(len(self.token_ids), np.float32)
        for (_, end), reward in zip(self.spans, self.step_rewards, strict=True):
            rewards[end - 1] += 0.0 if reward is None else reward
        array: FloatArray = readonly(rewards)
        return array


@document_fields
@dataclass(frozen=True, kw_only=True)
class SequenceReport:
    """Counts for a trajectory: steps used and left out, tokens, truncated rows, breaks between sequences."""

    sequences: int
    """Number of sequences."""
    steps_used: int
    """Number of steps that are in a sequence."""
    left_out: dict[str, tuple[str, ...]]
    """Ids of the steps in no sequence, by reason: one that ``allow`` can name, ``excluded``, ``policy_version``,
    ``drift``, ``max_length``, ``max_prompt_length`` or ``max_response_length``. ``constrained_sampling`` is a reason
    only with ``constrained="drop"``."""
    tokens: int
    """Number of tokens in all sequences."""
    trainable_tokens: int
    """Number of tokens with mask 1."""
    tokens_cut: int
    """Number of tokens cut off by ``max_length`` and the other limits, including those of removed sequences."""
    truncated: int
    """Number of sequences that ``max_length`` cut."""
    breaks: tuple[Break, ...]
    """Steps after the first that began a new sequence instead of extending one."""
    masked: dict[str, int] = field(default_factory=dict)
    """Number of sampled tokens that ``on_drift="mask"`` replaced with ids of the next prompt (mask 0), by the id of the
    step that sampled them."""
    constrained: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of the sequences' steps that were sampled under a grammar, by kind of grammar: ``required tool``, ... Their
    logprobs differ from those of a trainer's own forward pass."""
    constrained_tokens: int = 0
    """Number of these steps' tokens with mask 1."""
    tokens_with: dict[str, int] = field(default_factory=dict)
    """Number of tokens in all sequences that have an extra, by the field of ``Sequence``: ``routed_experts``,
    ``sampling_mask``, ... Fields that no token has are absent."""
    extras_left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of steps whose extras are missing in their sequence, by field and reason: ``routed_experts: shapes differ``,
    ``sampling_mask: missing in another step``, ``top_tokens: not aligned``."""

    @property
    def drift(self) -> tuple[Drift, ...]:
        """The breaks at which a prompt repeats an earlier completion in other ids."""
        return tuple(drift for one in self.breaks if (drift := one.drift) is not None)

    @property
    def forks(self) -> int:
        """Number of breaks without drift that share a beginning with an earlier step: siblings, retries, branches."""
        return sum(one.is_fork for one in self.breaks)

    @property
    def roots(self) -> int:
        """Number of conversations that share no beginning with each other."""
        return bool(self.steps_used) + sum(one.is_root for one in self.breaks)

    @property
    def merge_ratio(self) -> float | None:
        """Mean number of steps in a sequence; None without sequences."""
        return self.steps_used / self.sequences if self.sequences else None


class Sequences(list[Sequence]):
    """A list of sequences, in the order in which their first steps began. ``report`` covers all steps."""

    def __init__(self, rows: Iterable[Sequence], report: SequenceReport) -> None:
        super().__init__(rows)
        self.report = report
        """Counts of what is in the rows, and what was left out."""

    def _repr_html_(self) -> str:
        """The picture of the rows in a notebook."""
        html: str = registered("sequences_html")(self)
        return html


def common_value(values: Iterable[T | None]) -> T | None:
    """The value that all have in common; None where they differ, or there are none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
