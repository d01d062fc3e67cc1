"""Rows for a trainer: steps whose prompts extend each other are merged into one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.

``on_drift="mask"`` (TRL's ``fork_threshold_tokens``) joins a prompt that leaves the last completion late in it too.
From there on the row has the prompt's ids, with mask 0: each sampled token has the ids before it that it was given.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import STORED, stored_ids
from rollout_trace.data.tokens import Segment, Span, TokenStore
from rollout_trace.errors import DriftError
from rollout_trace.train.extras import has_extras, row_extras
from rollout_trace.train.selection import (
    LIMITS,
    SequenceOptions,
    advantage_array,
    check_options,
    have_wanted_versions,
    reason_left_out,
)
from rollout_trace.train.sequence import Sequence, SequenceReport, Sequences, common_value
from rollout_trace.train.shaping import constrained, temperature

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.drift import Break, Earlier, Placed

_facts_of = attrgetter("id", "reward", "policy_version", "token_source", "logprobs_mode", STORED + "logprobs")


def sequences(trajectory: Trajectory, **options: Unpack[SequenceOptions]) -> Sequences:
    """The rows of a trajectory, in the order their first steps began: ``Trajectory.sequences()``."""
    check_options(options)
    left_out: dict[str, list[str]] = {}
    usable = []
    for step in trajectory.steps:
        reason = reason_left_out(step, options)
        if reason is None:
            usable.append(step)
        else:
            left_out.setdefault(reason, []).append(step.id)
    if not have_wanted_versions(usable, options):
        left_out["policy_version"] = [step.id for step in usable]
        usable = []
    built = _build(usable, options)
    how = options.get("on_drift", "split")
    all_rows = _joined_over_drift(built, options) if how == "mask" else built
    rows = _without_drift(all_rows, options, left_out) if how in ("raise", "drop") else all_rows
    tokens_cut = 0
    for row in rows:
        row.cut(options, left_out)
        tokens_cut += row.end - row.length
    # Rewards are shared among the rows that are left: a row that ``max_length`` removes must not take a part with it.
    kept = [row for row in rows if row.length]
    shares = _reward_shares(kept, trajectory.reward, options.get("reward", "copy"))
    closed = [row.close(share, trajectory.id) for row, share in zip(kept, shares, strict=True)]
    breaks = tuple([row.opening_break for row in all_rows if row.opening_break is not None])
    for row in built:
        # A break refers to the rows before it: a cycle is never freed in trainers that switch the collector off.
        row.opening_break = None
    return Sequences(closed, _report(closed, kept, usable, left_out, breaks=breaks, tokens_cut=tokens_cut))


def count_drift(trajectory: Trajectory) -> int:
    """The number of places that ``rt.drift()`` finds, without making the rows."""
    usable = [step for step in trajectory.steps if reason_left_out(step) is None]
    if len(usable) < 2:
        return 0
    breaks = [row.opening_break for row in _build(usable, SequenceOptions())]
    return sum(one is not None and one.drift is not None for one in breaks)


def _build(steps: list[Step], options: SequenceOptions) -> list[Row]:
    rows: list[Row] = []
    ending: dict[Segment, list[Row]] = {}
    placed: list[Placed] = []
    earlier: Earlier | None = None
    for step, (prompt, completion) in zip(steps, _spans_in_one_tree(steps), strict=True):
        row = _longest_prefix(ending, prompt, step.token_source == "retokenized")
        if row is None:
            row = Row(step.token_source == "retokenized")
            rows.append(row)
            if placed:
                # Imported at the first break: a trajectory that only appends does not need it.
                from rollout_trace.train.drift import Break, Earlier

                earlier = earlier or Earlier(placed)
                row.opening_break = Break(step, prompt, earlier, len(placed))
        row.segment, row.end = completion.segment, completion.stop
        row.steps.append((step, completion.start, completion.stop))
        row.last_index = len(placed)
        if options.get("linear"):
            # Every other row is closed: only the latest may be extended.
            ending.clear()
        ending.setdefault(completion.segment, []).append(row)
        placed.append((step, completion, row))
    return rows


def _longest_prefix(ending: dict[Segment, list[Row]], prompt: Span, is_retokenized: bool) -> Row | None:
    """Takes the longest row that is a prefix of a prompt out of the open rows, by the segment in which they end.

    Of several prefixes it alone holds every completion that the prompt repeats. The step changes where it ends.
    """
    segment: Segment | None = prompt.segment
    stop = prompt.stop
    while segment is not None:
        found: Row | None = None
        for row in ending.get(segment, ()):
            if row.end <= stop and row.is_retokenized == is_retokenized and (found is None or row.end > found.end):
                found = row
        if found is not None:
            ending[segment].remove(found)
            return found
        # A segment may leave its base before the base ends: rows that end after that point are no prefix.
        stop = min(stop, segment.start)
        segment = segment.base
    return None


def _joined_over_drift(rows: list[Row], options: SequenceOptions) -> list[Row]:
    """The rows, each that begins with small drift joined to the one that it drifted from: ``on_drift="mask"``.

    New ones: breaks are told by the rows as they were built. Rows are joined, and not steps: of two steps that go on
    from a completion, the one that extends it exactly comes first, be it the later one.
    """
    made: list[Row] = []
    row_of: dict[Row, Row] = {}
    for row in rows:
        found = None if row.opening_break is None else row.opening_break.closest()
        whole = Row(row.is_retokenized)
        whole.opening_break = row.opening_break
        if found is not None:
            (previous, completion, built), place = found
            last = row_of[built]
            if (
                last.steps[-1][0] is previous
                and last.is_retokenized == row.is_retokenized
                # Of each step something is left: without, the step and its reward would be in no row.
                and completion.start < place
                and completion.stop - place <= options["within"]
                and (last is made[-1] or not options.get("linear"))
            ):
                whole = last
                whole.leaves[len(whole.steps) - 1] = place
        if whole.segment is None:
            made.append(whole)
        whole.steps += row.steps
        whole.segment, whole.end, whole.last_index = row.segment, row.end, row.last_index
        row_of[row] = whole
    return made


def _without_drift(rows: list[Row], options: SequenceOptions, left_out: dict[str, list[str]]) -> list[Row]:
    drifts = [None if row.opening_break is None else row.opening_break.drift for row in rows]
    found = [drift for drift in drifts if drift is not None]
    if found and options["on_drift"] == "raise":
        raise DriftError(f"{found[0]} (1 of {len(found)} drifts; rt.drift() shows all.)")
    for row, drift in zip(rows, drifts, strict=True):
        if drift is not None:
            left_out.setdefault("drift", []).extend(step.id for step, _, _ in row.steps)
    return [row for row, drift in zip(rows, drifts, strict=True) if drift is None]


def _reward_shares(rows: list[Row], reward: float | None, how: str) -> list[float | None]:
    """Each row's share of the trajectory's reward; None for all where it is not scored."""
    if reward is None or how == "copy" or not rows:
        return [reward] * len(rows)
    if how == "split":
        return [reward / len(rows)] * len(rows)
    last = max(rows, key=lambda row: row.last_index)
    return [reward if row is last else 0.0 for row in rows]


def _report(
    closed: list[Sequence], rows: list[Row], usable: list[Step], left_out: dict[str, list[str]], **others: Any
) -> SequenceReport:
    """The report. ``rows``: those that were closed; ``others``: fields that do not follow from them."""
    sampled: dict[int, int] = {}
    """Number of sampled tokens by the id of the step's object."""
    tokens = steps_used = trainable = truncated = constrained_tokens = 0
    tokens_with: dict[str, int] = {}
    masked: dict[str, int] = {}
    extras_left_out: dict[str, dict[str, None]] = {}
    for row, one in zip(rows, closed, strict=True):
        tokens += row.length
        steps_used += len(one.spans)
        truncated += one.truncated
        for (step, _, _), (start, end) in zip(row.steps, one.spans, strict=False):
            sampled[id(step)] = end - start
            trainable += end - start
        for at, place in row.leaves.items():
            step, start, end = row.steps[at]
            if start < row.length:
                masked[step.id] = masked.get(step.id, 0) + end - place
        for name, count in one.extra_counts() if row.has_extras else ():
            tokens_with[name] = tokens_with.get(name, 0) + count
        for reason, ids in row.extras_left_out.items():
            extras_left_out.setdefault(reason, {}).update(dict.fromkeys(ids))
    by_grammar: dict[str, list[str]] = {}
    for step in usable:
        if id(step) in sampled and (grammar := constrained(step)) is not None:
            by_grammar.setdefault(grammar, []).append(step.id)
            constrained_tokens += sampled[id(step)]
    return SequenceReport(
        sequences=len(closed),
        steps_used=steps_used,
        left_out={reason: tuple(ids) for reason, ids in left_out.items()},
        tokens=tokens,
        trainable_tokens=trainable,
        truncated=truncated,
        masked=masked,
        constrained={grammar: tuple(ids) for grammar, ids in by_grammar.items()},
        constrained_tokens=constrained_tokens,
        tokens_with=tokens_with,
        extras_left_out={reason: tuple(ids) for reason, ids in extras_left_out.items()},
        **others,
    )


def _spans_in_one_tree(steps: list[Step]) -> list[tuple[Any, Any]]:
    """Prompt and completion of each step as spans of one tree: the steps' own if they share one, else a new one.

    Rows are matched by segment, so spans of different trees would never extend each other.
    """
    pairs = list(map(stored_ids, steps))
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
        self.end = self.length = 0
        """Number of tokens before and after ``cut``."""
        self.steps: list[tuple[Step, int, int]] = []
        """Each with begin and end of its completion, as it was sampled."""
        self.leaves: dict[int, int] = {}
        """Where the row leaves a completion for the ids of the next prompt, by the index of its step."""
        self.opening_break: Break | None = None
        self.last_index = 0
        """Index of its last step among the used steps."""
        self.has_extras = False
        """True: a step of the closed row, or of the prompt in which it ends, has an extra."""
        self.extras_left_out: dict[str, list[str]] = {}
        """Ids of steps whose extras are not in the closed row, by field and reason."""

    def cut(self, options: SequenceOptions, left_out: dict[str, list[str]]) -> None:
        """Sets ``length`` to what the limits leave; 0 where no sampled token is left, or the prompt is too long."""
        self.length, prompt = self.end, self.steps[0][1]
        if options.keys().isdisjoint(LIMITS):
            return
        limits: dict[str, Any] = {name: limit for name in LIMITS if (limit := options.get(name)) is not None}
        if not limits:
            return
        if "max_prompt_length" in limits:
            limits["max_prompt_length"] = 0 if prompt > limits["max_prompt_length"] else self.end
        if "max_response_length" in limits:
            limits["max_response_length"] += prompt
        name = min(limits, key=limits.__getitem__)
        limit = limits[name]
        if options.get("truncate") == "turn":
            ends = [self.leaves.get(at, end) for at, (_, _, end) in enumerate(self.steps)]
            self.length = max((end for end in ends if end <= limit), default=0)
        else:
            self.length = min(self.end, limit) if prompt < limit else 0
        # Also of rows that are kept: a cut may fall before their last steps.
        gone = [step.id for step, start, _ in self.steps if start >= self.length]
        if gone:
            left_out.setdefault(name, []).extend(gone)

    def close(self, reward: float | None, trajectory_id: str) -> Sequence:
        """The row up to its ``length`` as a ``Sequence`` of this trajectory, with its share of the reward."""
        import numpy as np

        assert self.segment is not None
        length = self.length
        whole = [
            (step, start, end, min(self.leaves.get(at, end), length))
            for at, (step, start, end) in enumerate(self.steps)
            if start < length
        ]
        # With the step whose prompt the row may end in: the items in that part of the prompt are in the row.
        read = self.steps[: len(whole) + 1]
        steps = [step for step, _, _ in read]
        self.has_extras = any(map(has_extras, steps))
        del steps[len(whole) :]
        spans = tuple([(start, stop) for _, start, _, stop in whole])
        mask = np.zeros(length, np.int8)
        for start, end in spans:
            mask[start:end] = 1
        mask.flags.writeable = False
        ids, rewards, versions, sources, modes, logprobs = zip(*map(_facts_of, steps), strict=True)
        # Of uncut spans: an advantage per token must fit the whole completion, also where the row is cut inside it.
        advantages = map(advantage_array, steps, [end - start for _, start, end, _ in whole])
        return Sequence(
            token_ids=self.segment.ids(0, length),
            loss_mask=mask,
            logprobs=_joined(logprobs, spans, length),
            trajectory_id=trajectory_id,
            step_ids=ids,
            spans=spans,
            reward=reward,
            step_rewards=rewards,
            policy_versions=versions,
            advantages=_joined(advantages, spans, length),
            # Of both kinds the weaker one.
            token_source=common_value(sources) or ("logprobs" if "logprobs" in sources else None),
            truncated=length < self.end,
            temperatures=tuple(map(_temperature, steps)),
            logprobs_mode=common_value(modes),
            **(row_extras(whole, read, length, self.extras_left_out) if self.has_extras else {}),
        )


def _joined(parts: Iterable[Any], spans: tuple[tuple[int, int], ...], length: int) -> Any:
    """float32 [length]: each step's numbers, as far as its span goes, and 0.0 elsewhere; None where a step has none."""
    import numpy as np

    values = np.zeros(length, np.float32)
    for part, (start, end) in zip(parts, spans, strict=True):
        if part is None:
            return None
        values[start:end] = part[: end - start]
    values.flags.writeable = False
    return values


def _temperature(step: Step) -> float | None:
    value = temperature(step)
    try:
        return None if value is None else float(value)
    except OverflowError:  # A whole number that no float holds.
        return None
