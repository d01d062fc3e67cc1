"""What a trainer takes: steps whose prompts extend each other, as one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace.advantages import advantage_of
from rollout_trace.errors import DriftError
from rollout_trace.field_docs import document_fields
from rollout_trace.lazily import cached_property
from rollout_trace.model import shared
from rollout_trace.selection import SequenceOptions, check_options, is_of_versions, left_out
from rollout_trace.shaping import constrained, temperature
from rollout_trace.tokens import Segment, Span, TokenStore, readonly

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.drifting import Break, Drift
    from rollout_trace.earlier import Earlier
    from rollout_trace.model import LogprobsMode, Step, TokenSource
    from rollout_trace.tokens import FloatArray, IntArray, MaskArray
    from rollout_trace.trajectories import Trajectory

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
        return _one(self.temperatures)

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
    """Ids of the steps in no sequence, by reason: those of ``rollout_trace.selection``, ``drift``, ``max_length``."""
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


class Row:
    """A sequence that may still grow: it ends at ``end`` in ``segment``."""

    def __init__(self, made: bool) -> None:
        self.made = made
        """Its ids are of text that was tokenised anew."""
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
            logprobs_mode=_one([step.logprobs_mode for step, _, _ in held]),
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


def _one(values: Iterable[T | None]) -> T | None:
    """The value that all have; None where there are several, or none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _source(steps: list[Step]) -> TokenSource | None:
    sources = {step.token_source for step in steps}
    if len(sources) == 1:
        return sources.pop()
    return "logprobs" if "logprobs" in sources else None


class _Rows:
    """The open sequences, by the segment in which they end."""

    def __init__(self, linear: bool) -> None:
        self.all: list[Row] = []
        self._linear = linear
        self._ending: dict[Segment, list[Row]] = {}

    def take(self, prompt: Span, made: bool) -> Row:
        """The longest row that is a prefix of the prompt; a new one where none is."""
        segment: Segment | None = prompt.segment
        stop = prompt.stop
        while segment is not None:
            ending = self._ending.get(segment, ())
            fitting = [row for row in ending if row.end <= stop and row.made == made]
            if fitting:
                row = max(fitting, key=lambda candidate: candidate.end)
                self._ending[segment].remove(row)
                return row
            stop = min(stop, segment.start)
            segment = segment.base
        self.all.append(Row(made))
        return self.all[-1]

    def put(self, row: Row) -> None:
        """Takes back a row that was added to."""
        assert row.segment is not None
        if self._linear:
            self._ending.clear()
        self._ending.setdefault(row.segment, []).append(row)


def sequences(trajectory: Trajectory, **options: Unpack[SequenceOptions]) -> Sequences:
    """The rows of a trajectory, in the order their first steps began. See ``SequenceOptions``.

    Left out, and named in the report, are steps that are not trainable, not ``ok``, have a ``token_issue``, or lack
    ids; a ``token_issue`` means that something about their tokens cannot be trusted.

    Raises:
        DriftError: there is drift, and ``on_drift="raise"``.
        TypeError: there is no such option, or ``allow`` is a text.
        ValueError: an option has no such value, or a step's ``advantage`` does not fit its completion.
    """
    check_options(options)
    reasons: dict[str, list[str]] = {}
    usable = []
    for step in trajectory.steps:
        reason = left_out(step, options)
        if reason is None:
            usable.append(step)
        else:
            reasons.setdefault(reason, []).append(step.id)
    if not is_of_versions(usable, options):
        reasons["policy_version"] = [step.id for step in usable]
        usable = []
    built = _build(usable, options)
    rows = _without_drift(built, options, reasons)
    lengths = [row.fitting(options) for row in rows]
    kept = [(row, length) for row, length in zip(rows, lengths, strict=True) if length]
    shares = _shares([row for row, _ in kept], trajectory.reward, options.get("reward", "copy"))
    found = [row.close(length, share) for (row, length), share in zip(kept, shares, strict=True)]
    for row, length in zip(rows, lengths, strict=True):
        gone = [step.id for step, start, _ in row.steps if start >= length]
        if gone:
            reasons.setdefault("max_length", []).extend(gone)
    cut = sum(row.end for row in rows) - sum(len(row.token_ids) for row in found)
    return Sequences(found, _report(found, built, usable, reasons, cut))


def _build(steps: list[Step], options: SequenceOptions) -> list[Row]:
    rows = _Rows(options.get("linear", False))
    placed: list[tuple[Step, Span, Row]] = []
    earlier: Earlier | None = None
    for step, (prompt, completion) in zip(steps, _spans(steps), strict=True):
        row = rows.take(prompt, step.token_source == "retokenized")
        if not row.steps and placed:
            from rollout_trace.drifting import Break
            from rollout_trace.earlier import Earlier

            earlier = earlier or Earlier(placed)
            row.began_at = Break(step, prompt, earlier, len(placed))
        row.add(step, completion)
        row.last = len(placed)
        rows.put(row)
        placed.append((step, completion, row))
    return rows.all


def _without_drift(rows: list[Row], options: SequenceOptions, reasons: dict[str, list[str]]) -> list[Row]:
    wanted = options.get("on_drift", "split")
    if wanted == "split":
        return rows
    drifted = {id(row): row.began_at.drift for row in rows if row.began_at is not None and row.began_at.drift}
    if drifted and wanted == "raise":
        raise DriftError(f"{next(iter(drifted.values()))} (1 of {len(drifted)} drifts; rt.drift() shows all.)")
    for row in rows:
        if id(row) in drifted:
            reasons.setdefault("drift", []).extend(row.step_ids)
    return [row for row in rows if id(row) not in drifted]


def _shares(rows: list[Row], reward: float | None, how: str) -> list[float | None]:
    """What each row gets of the trajectory's reward."""
    if reward is None or how == "copy" or not rows:
        return [reward] * len(rows)
    if how == "split":
        return [reward / len(rows)] * len(rows)
    last = max(rows, key=lambda row: row.last)
    return [reward if row is last else 0.0 for row in rows]


def _report(
    found: list[Sequence], rows: list[Row], usable: list[Step], reasons: dict[str, list[str]], cut: int
) -> SequenceReport:
    used = {step_id for row in found for step_id in row.step_ids}
    forced: dict[str, list[str]] = {}
    for step in usable:
        if step.id in used and (by := constrained(step)) is not None:
            forced.setdefault(by, []).append(step.id)
    return SequenceReport(
        sequences=len(found),
        steps_used=sum(len(row.step_ids) for row in found),
        left_out={reason: tuple(ids) for reason, ids in reasons.items()},
        tokens=sum(len(row.token_ids) for row in found),
        trainable_tokens=sum(end - start for row in found for start, end in row.spans),
        tokens_cut=cut,
        truncated=sum(row.truncated for row in found),
        breaks=tuple(row.began_at for row in rows if row.began_at is not None),
        constrained={by: tuple(ids) for by, ids in forced.items()},
    )


def _spans(steps: list[Step]) -> list[tuple[Any, Any]]:
    """The ids of the steps as spans of one tree: their own where they have one, of a new one otherwise."""
    held = [(shared(step, "prompt_token_ids"), shared(step, "completion_token_ids")) for step in steps]
    trees = {span.segment.tree if isinstance(span, Span) else None for pair in held for span in pair}
    if len(trees) == 1 and None not in trees:
        return held
    store = TokenStore()
    return [store.add(step.prompt_token_ids, step.completion_token_ids) for step in steps]
