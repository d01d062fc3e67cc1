"""Rows for a trainer: steps whose prompts extend each other are merged into one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import shared
from rollout_trace.data.tokens import Span, TokenStore
from rollout_trace.errors import DriftError
from rollout_trace.train.rows import Row, Rows
from rollout_trace.train.selection import SequenceOptions, check_options, have_wanted_versions, reason_left_out
from rollout_trace.train.sequence import Sequence, SequenceReport, Sequences
from rollout_trace.train.shaping import constrained

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.drift import Earlier, Placed


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
