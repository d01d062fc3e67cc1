"""What a trainer takes: steps whose prompts extend each other, as one row of ids, mask and logprobs.

The rule is the field's own (SkyRL, Tinker, slime, TRL): a step joins the open sequence that is the longest exact prefix
of its prompt ids; new prompt ids get mask 0, the completion mask 1. Where none is a prefix, a new sequence begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import shared
from rollout_trace.data.tokens import Span, TokenStore
from rollout_trace.errors import DriftError
from rollout_trace.train.rows import Row, Rows
from rollout_trace.train.selection import SequenceOptions, check_options, is_of_versions, left_out
from rollout_trace.train.sequence import Sequence, SequenceReport, Sequences
from rollout_trace.train.shaping import constrained

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.earlier import Earlier, Placed


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
    rows = Rows(options.get("linear", False))
    placed: list[Placed] = []
    earlier: Earlier | None = None
    for step, (prompt, completion) in zip(steps, _spans(steps), strict=True):
        row = rows.take(prompt, step.token_source == "retokenized")
        if not row.steps and placed:
            from rollout_trace.train.drift import Break
            from rollout_trace.train.earlier import Earlier

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
