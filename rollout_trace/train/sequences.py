"""Rows for a trainer: steps whose prompts extend each other are merged into one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace._python import cached_property
from rollout_trace.data.model import shared
from rollout_trace.data.tokens import Segment, Span, TokenStore, readonly
from rollout_trace.errors import DriftError
from rollout_trace.train.row_extras import row_extras
from rollout_trace.train.selection import (
    SequenceOptions,
    advantage_array,
    check_options,
    have_wanted_versions,
    reason_left_out,
)
from rollout_trace.train.sequence import Sequence, SequenceReport, Sequences, common_value
from rollout_trace.train.shaping import constrained, temperature
from rollout_trace.train.step_extras import has_extras

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.model import Step, TokenSource
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.drift import Break, Earlier, Placed


def sequences(trajectory: Trajectory, **options: Unpack[SequenceOptions]) -> Sequences:
    """The rows of a trajectory, in the order their first steps began. See ``SequenceOptions``.

    Steps that are not trainable, not ``ok``, have a ``token_issue`` (their tokens cannot be trusted) or lack ids are
    left out; ``report.left_out`` has their ids by reason.

    Raises:
        DriftError: there is drift, and ``on_drift="raise"``.
        TypeError: an option is unknown, or ``allow`` is a string.
        ValueError: an option has an unknown value, or a step's ``advantage`` does not fit its completion.
    """
    check_options(options)
    reasons: dict[str, list[str]] = {}
    usable = []
    for step in trajectory.steps:
        reason = reason_left_out(step, options)
        if reason is None:
            usable.append(step)
        else:
            reasons.setdefault(reason, []).append(step.id)
    if not have_wanted_versions(usable, options):
        reasons["policy_version"] = [step.id for step in usable]
        usable = []
    all_rows = _build(usable, options)
    rows = _without_drift(all_rows, options, reasons)
    lengths = [row.length_within(options) for row in rows]
    # Rewards are shared among the rows that are left: a row that ``max_length`` removes must not take a part with it.
    kept = [(row, length) for row, length in zip(rows, lengths, strict=True) if length]
    shares = _reward_shares([row for row, _ in kept], trajectory.reward, options.get("reward", "copy"))
    closed = [row.close(length, share) for (row, length), share in zip(kept, shares, strict=True)]
    for row, length in zip(rows, lengths, strict=True):
        # Also of rows that are kept: a cut may fall before their last steps.
        gone = [step.id for step, start, _ in row.steps if start >= length]
        if gone:
            reasons.setdefault(row.limit_that_cuts(options), []).extend(gone)
    tokens_cut = sum(row.end for row in rows) - sum(len(row.token_ids) for row in closed)
    report = _report(closed, all_rows, usable, reasons, tokens_cut)
    for row in all_rows:
        # A break refers to the rows before it: a cycle is never freed in trainers that switch the collector off.
        row.opening_break = None
    having = [(row, sequence) for (row, _), sequence in zip(kept, closed, strict=True) if row.has_extras]
    if having:
        report = replace(
            report,
            tokens_with=_tokens_with([sequence for _, sequence in having]),
            extras_left_out=_joined(row.extras_left_out for row, _ in having),
        )
    return Sequences(closed, report)


def count_drift(trajectory: Trajectory) -> int:
    """The number of places that ``rt.drift()`` finds, without making the rows."""
    usable = [step for step in trajectory.steps if reason_left_out(step) is None]
    if len(usable) < 2:
        return 0
    breaks = [row.opening_break for row in _build(usable, SequenceOptions())]
    return sum(one is not None and one.drift is not None for one in breaks)


def _build(steps: list[Step], options: SequenceOptions) -> list[Row]:
    rows = Rows(options.get("linear", False))
    placed: list[Placed] = []
    earlier: Earlier | None = None
    for step, (prompt, completion) in zip(steps, _spans_in_one_tree(steps), strict=True):
        row = rows.take(prompt, step.token_source == "retokenized")
        if not row.steps and placed:
            # Imported at the first break: a trajectory that only appends does not need it.
            from rollout_trace.train.drift import Break, Earlier

            earlier = earlier or Earlier(placed)
            row.opening_break = Break(step, prompt, earlier, len(placed))
        row.add(step, completion)
        row.last_index = len(placed)
        rows.put(row)
        placed.append((step, completion, row))
    return rows.all


def _without_drift(rows: list[Row], options: SequenceOptions, reasons: dict[str, list[str]]) -> list[Row]:
    on_drift = options.get("on_drift", "split")
    if on_drift == "split":
        return rows
    drifted = {
        id(row): row.opening_break.drift for row in rows if row.opening_break is not None and row.opening_break.drift
    }
    if drifted and on_drift == "raise":
        raise DriftError(f"{next(iter(drifted.values()))} (1 of {len(drifted)} drifts; rt.drift() shows all.)")
    for row in rows:
        if id(row) in drifted:
            reasons.setdefault("drift", []).extend(row.step_ids)
    return [row for row in rows if id(row) not in drifted]


def _reward_shares(rows: list[Row], reward: float | None, how: str) -> list[float | None]:
    """Each row's share of the trajectory's reward; None for all where it is not scored."""
    if reward is None or how == "copy" or not rows:
        return [reward] * len(rows)
    if how == "split":
        return [reward / len(rows)] * len(rows)
    last = max(rows, key=lambda row: row.last_index)
    return [reward if row is last else 0.0 for row in rows]


def _report(
    closed: list[Sequence],
    rows: list[Row],
    usable: list[Step],
    reasons: dict[str, list[str]],
    tokens_cut: int,
) -> SequenceReport:
    used = {step_id for row in closed for step_id in row.step_ids}
    constrained_ids: dict[str, list[str]] = {}
    for step in usable:
        if step.id in used and (grammar := constrained(step)) is not None:
            constrained_ids.setdefault(grammar, []).append(step.id)
    return SequenceReport(
        sequences=len(closed),
        steps_used=sum(len(row.step_ids) for row in closed),
        left_out={reason: tuple(ids) for reason, ids in reasons.items()},
        tokens=sum(len(row.token_ids) for row in closed),
        trainable_tokens=sum(end - start for row in closed for start, end in row.spans),
        tokens_cut=tokens_cut,
        truncated=sum(row.truncated for row in closed),
        breaks=tuple(row.opening_break for row in rows if row.opening_break is not None),
        constrained={grammar: tuple(ids) for grammar, ids in constrained_ids.items()},
        constrained_tokens=_n_tokens(closed, constrained_ids) if constrained_ids else 0,
    )


def _n_tokens(rows: list[Sequence], ids: dict[str, list[str]]) -> int:
    """Number of sampled tokens of these steps in the rows."""
    wanted = {step_id for some in ids.values() for step_id in some}
    spans = [(step_id, span) for row in rows for step_id, span in zip(row.step_ids, row.spans, strict=True)]
    return sum(end - start for step_id, (start, end) in spans if step_id in wanted)


def _tokens_with(rows: list[Sequence]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        for name, count in row.extra_counts():
            counts[name] = counts.get(name, 0) + count
    return counts


def _joined(parts: Iterable[dict[str, list[str]]]) -> dict[str, tuple[str, ...]]:
    """The ids of steps by reason, each once."""
    joined: dict[str, dict[str, None]] = {}
    for part in parts:
        for reason, ids in part.items():
            joined.setdefault(reason, {}).update(dict.fromkeys(ids))
    return {reason: tuple(ids) for reason, ids in joined.items()}


def _spans_in_one_tree(steps: list[Step]) -> list[tuple[Any, Any]]:
    """Prompt and completion of each step as spans of one tree: the steps' own if they share one, else a new one.

    Rows are matched by segment, so spans of different trees would never extend each other.
    """
    pairs = [(shared(step, "prompt_token_ids"), shared(step, "completion_token_ids")) for step in steps]
    trees = {span.segment.tree if isinstance(span, Span) else None for pair in pairs for span in pair}
    if len(trees) == 1 and None not in trees:
        return pairs
    store = TokenStore()
    return [store.add(step.prompt_token_ids, step.completion_token_ids) for step in steps]


class Row:
    """A sequence under construction. Its ids are those of ``segment`` up to ``end``."""

    def __init__(self, is_retokenized: bool) -> None:
        self.is_retokenized = is_retokenized
        """True: its ids are retokenised text; such ids are never in one row with an engine's."""
        self.segment: Segment | None = None
        self.end = 0
        self.steps: list[tuple[Step, int, int]] = []
        self.opening_break: Break | None = None
        self.last_index = 0
        """Index of its last step among the used steps."""
        self.has_extras = False
        """True: a step of the closed row, or of the prompt in which it ends, has an extra."""
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
