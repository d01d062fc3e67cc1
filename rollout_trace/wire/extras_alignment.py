"""Aligns extras to the ids of their choice. One that does not fit is withheld with a reason; the ids stay.

Called after ``align.check``: where that withheld the ids, the extras have no positions either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace.data.extras import ExtraIssue, PolicySpan, SamplingMask, TopTokens
from rollout_trace.wire.extras import UnusableError
from rollout_trace.wire.facts import ChoiceFacts

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.tokens import FloatArray, IntArray


@dataclass(slots=True)
class FoundExtras:
    """The extras that came for one choice: a value, why it is unusable, or None where none came."""

    routed_experts: ExpertArray | ExtraIssue | None = None
    experts_start: int = 0
    """Tokens at the beginning of the prompt whose experts the engine was asked to leave out."""
    sampling_mask: SamplingMask | ExtraIssue | None = None
    top_tokens: TopTokens | ExtraIssue | None = None
    top_has_sampled: bool = False
    """Whether the engine lists the sampled token among the alternatives, also where it is not among the likeliest."""
    policy_spans: tuple[PolicySpan, ...] | ExtraIssue | None = None
    prompt_logprobs: FloatArray | ExtraIssue | None = None
    prompt_top_tokens: TopTokens | ExtraIssue | None = None


def settle(choice: ChoiceFacts, found: FoundExtras) -> None:
    """Sets the extras of a choice that fit its ids, and the issues of those that do not.

    The versions of ``policy_spans`` are its ``policy_version``; of spans that do not fit only where it has no other.
    """
    checks: tuple[tuple[str, Any], ...] = (
        ("prompt_logprobs", lambda value: _check_prompt(choice, "prompt logprobs", len(value))),
        ("prompt_top_tokens", lambda value: _check_prompt(choice, "rows of prompt logprobs", len(value))),
        ("top_tokens", lambda value: _check_top(choice, value, has_sampled=found.top_has_sampled)),
        ("sampling_mask", lambda value: _check_mask(choice, value)),
        ("routed_experts", lambda value: _check_experts(choice, value, found.experts_start)),
        ("policy_spans", lambda value: _check_spans(choice, value)),
    )
    for name, check in checks:
        value = getattr(found, name)
        if value is None:
            continue
        if not isinstance(value, ExtraIssue):
            value = _checked(name, value, check)
        if isinstance(value, ExtraIssue):
            choice.extra_issues = (*choice.extra_issues, value)
        else:
            setattr(choice, name, value)
    spans = found.policy_spans
    if isinstance(spans, tuple) and spans and (choice.policy_spans or choice.policy_version is None):
        choice.policy_version = ",".join(dict.fromkeys(str(span.version) for span in spans))


def _checked(name: str, value: Any, check: Any) -> Any:
    try:
        check(value)
    except UnusableError as error:
        return ExtraIssue(field=name, code=error.code, message=str(error))
    return value


def missing_ids(name: str, of: str) -> ExtraIssue:
    """The issue of an extra without the ids that give it positions. ``of``: ``prompt`` or ``completion``."""
    return ExtraIssue(field=name, code="ids_missing", message=_no_ids(of))


def _no_ids(of: str) -> str:
    return f"the token ids of the {of} are missing, or were withheld: without them it has no positions."


def _prompt_ids(choice: ChoiceFacts) -> IntArray:
    if choice.prompt_token_ids is None:
        raise UnusableError(_no_ids("prompt"), "ids_missing")
    ids: IntArray = choice.prompt_token_ids
    return ids


def _completion_ids(choice: ChoiceFacts) -> IntArray:
    if choice.completion_token_ids is None:
        raise UnusableError(_no_ids("completion"), "ids_missing")
    ids: IntArray = choice.completion_token_ids
    return ids


def _check_prompt(choice: ChoiceFacts, what: str, count: int) -> None:
    size = len(_prompt_ids(choice))
    if count != size:
        raise UnusableError(f"{count} {what} for {size} prompt tokens.", "not_aligned")


def _check_top(choice: ChoiceFacts, top: TopTokens, *, has_sampled: bool) -> None:
    ids = _completion_ids(choice)
    if len(top) != len(ids):
        raise UnusableError(f"{len(top)} rows of alternatives for {len(ids)} sampled tokens.", "not_aligned")
    if has_sampled:
        _check_sampled((top.ids == ids[:, None]).any(axis=1), ids, "the alternatives")


def _check_mask(choice: ChoiceFacts, mask: SamplingMask) -> None:
    import numpy as np

    ids = _completion_ids(choice)
    if len(mask) != len(ids):
        raise UnusableError(f"{len(mask)} rows of the mask for {len(ids)} sampled tokens.", "not_aligned")
    named = np.zeros(len(ids), np.bool_)
    named[np.repeat(np.arange(len(ids)), mask.counts)[mask.ids == np.repeat(ids, mask.counts)]] = True
    _check_sampled(named, ids, "the mask")


def _check_sampled(named: Any, ids: IntArray, what: str) -> None:
    if not named.all():
        position = int(named.argmin())
        message = f"the sampled token {int(ids[position])} is not in row {position} of {what}."
        raise UnusableError(message, "not_aligned")


def _check_experts(choice: ChoiceFacts, experts: ExpertArray, start: int) -> None:
    prompt, completion = len(_prompt_ids(choice)), len(_completion_ids(choice))
    expected = prompt + completion - 1 - start
    if len(experts) != expected:
        tokens = f"{prompt} prompt and {completion} sampled tokens" + (f" without the first {start}" if start else "")
        raise UnusableError(f"{len(experts)} rows of experts; {tokens} have {expected}.", "not_aligned")


def _check_spans(choice: ChoiceFacts, spans: tuple[PolicySpan, ...]) -> None:
    size, at = len(_completion_ids(choice)), 0
    for span in spans:
        if span.begin != at or span.end < span.begin:
            raise UnusableError(f"the span {span.begin} to {span.end} comes after position {at}.", "not_aligned")
        at = span.end
    if at != size:
        raise UnusableError(f"the spans end at {at}; {size} tokens were sampled.", "not_aligned")
