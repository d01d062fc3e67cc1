"""Consistency checks on ids and logprobs, and on the extras that are aligned to them. What fails is withheld.

Arrays with an issue code and the counts; extras with a reason, while the ids stay. ``settle`` is called after
``check``: where that withheld the ids, the extras have no positions either.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace.data.extras import ExtraIssue, PolicySpan, SamplingMask, TopTokens, hold_sampled
from rollout_trace.data.model import Usage
from rollout_trace.data.tokens import FLOAT32_MAX, INT32_MAX, PromptIds, array_of
from rollout_trace.wire.extras import UnusableError
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.reading import set_issue, withhold

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.tokens import FloatArray, IntArray


def check(choices: list[ChoiceFacts], usage: Usage | None) -> None:
    """Withholds the ids and logprobs of each choice that break a rule, with an issue; the rest become arrays, in place.

    The rules: ids within int32; one logprob per id, each finite and <= 0; over all choices as many ids as the engine's
    usage counts. Texts of another number of tokens go without an issue: they are no ground truth.
    """
    expected = None if usage is None else usage.output
    if len(choices) == 1 and _is_whole(choices[0], expected):
        return
    total: int | None = 0
    for choice in choices:
        size = _length(choice)
        total = None if total is None or size is None else total + size
        # Usage counts all that was sampled: of an answer that broke off, tokens may be missing without a mistake.
        expected = expected if choice.complete else None
    counts_agree = expected is None or total is None or total == expected
    converted: dict[int, Any] = {}
    for choice in choices:
        if not choice.is_sound:
            _check_ids(choice, converted)
        if not counts_agree:
            withhold(choice, "usage_differs", f"{total} tokens arrived, usage says {expected}.")
        _check_logprobs(choice, sure_of_ids=expected is not None and counts_agree)
        if choice.token_texts is not None and choice.token_texts.count != _length(choice):
            choice.token_texts = None


def _is_whole(choice: ChoiceFacts, expected: int | None) -> bool:
    """Whether nothing of a choice can break a rule, as of most: then not every rule is looked at."""
    ids, logprobs, texts = choice.completion_token_ids, choice.logprobs, choice.token_texts
    return (
        choice.is_sound
        and not choice.uneven
        and ids is not None
        and logprobs is not None
        and len(ids) == len(logprobs)
        and expected in (None, len(ids))
        and (texts is None or texts.count == len(ids))
    )


def _length(choice: ChoiceFacts) -> int | None:
    values = choice.logprobs if choice.completion_token_ids is None else choice.completion_token_ids
    return None if values is None else len(values)


def _check_ids(choice: ChoiceFacts, converted: dict[int, Any]) -> None:
    for name in ("prompt_token_ids", "completion_token_ids"):
        ids = getattr(choice, name)
        if isinstance(ids, PromptIds) and name == "completion_token_ids":
            choice.completion_token_ids = ids.get()
        if ids is None or isinstance(ids, PromptIds):
            continue
        # The choices of one answer share the list of their prompt: converted once, they share the array too.
        if id(ids) not in converted:
            converted[id(ids)] = _id_array(ids)
        array = converted[id(ids)]
        if array is None:
            bad = next(value for value in ids if not 0 <= value <= INT32_MAX)
            set_issue(choice, "ids_out_of_range", f"{name} holds {bad}; ids go from 0 to {INT32_MAX}.")
        setattr(choice, name, array)


def _id_array(ids: list[int]) -> Any:
    """int32 [len(ids)], or None where an id is out of range."""
    try:
        # It refuses what is beyond int32.
        array = array_of(ids, "i")
    except struct.error:
        return None
    return array if not len(array) or array.min() >= 0 else None


def _check_logprobs(choice: ChoiceFacts, *, sure_of_ids: bool) -> None:
    if choice.logprobs is None:
        return
    ids = choice.completion_token_ids
    if ids is not None and len(ids) != len(choice.logprobs):
        set_issue(choice, "lengths_differ", f"{len(ids)} token ids but {len(choice.logprobs)} logprobs.")
    elif ids is not None and choice.uneven and not sure_of_ids:
        set_issue(choice, "lengths_differ", "ids and logprobs came in different chunks; no usage says that all came.")
    else:
        if not choice.is_sound:
            choice.logprobs = _logprob_array(choice, choice.logprobs)
        choice.top_logprobs = None if choice.logprobs is None else choice.top_logprobs
        return
    choice.logprobs = choice.top_logprobs = None
    # Unless the usage confirms the ids, either list may be the one with the gap.
    if not sure_of_ids:
        choice.completion_token_ids = None


def _logprob_array(choice: ChoiceFacts, values: list[Any]) -> Any:
    """float32 [len(values)], or None where a value cannot be a logprob. NaN where the engine is known to send none."""
    import numpy as np

    array = np.fromiter(values, np.float64, len(values))
    # Nearly always all are sound. A missing one is NaN here, of which every comparison is false.
    if not len(array) or (array.min() >= -FLOAT32_MAX and array.max() <= 0):
        return array.astype(np.float32)
    missing = values.count(None)
    if missing and choice.may_lack_logprobs:
        known = _logprob_array(choice, [value for value in values if value is not None])
        if known is None:
            return None
        filled = np.full(len(values), np.nan, np.float32)
        filled[[value is not None for value in values]] = known
        return filled
    if missing:
        set_issue(choice, "logprobs_incomplete", f"{missing} of {len(values)} logprobs are null or missing.")
        return None
    # Finite as float64, a value below float32's range would become -inf.
    finite = np.isfinite(array) & (array >= -FLOAT32_MAX)
    if not finite.all():
        set_issue(choice, "logprobs_not_finite", f"a logprob is {values[int(np.argmin(finite))]}.")
    else:
        set_issue(choice, "logprobs_positive", f"a logprob is {float(array.max())}; none can be above 0.")
    return None


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
        try:
            if not isinstance(value, ExtraIssue):
                check(value)
                setattr(choice, name, value)
                continue
        except UnusableError as error:
            value = ExtraIssue(field=name, code=error.code, message=str(error))
        choice.extra_issues = (*choice.extra_issues, value)
    spans = found.policy_spans
    if isinstance(spans, tuple) and spans and (choice.policy_spans or choice.policy_version is None):
        choice.policy_version = ",".join(dict.fromkeys(str(span.version) for span in spans))


def missing_ids(name: str, of: str) -> ExtraIssue:
    """The issue of an extra without the ids that give it positions. ``of``: ``prompt`` or ``completion``."""
    return ExtraIssue(field=name, code="ids_missing", message=_no_ids(of))


def _no_ids(of: str) -> str:
    return f"the token ids of the {of} are missing, or were withheld: without them it has no positions."


def _ids_of(choice: ChoiceFacts, of: Literal["prompt", "completion"]) -> Any:
    ids: IntArray | PromptIds | None = choice.prompt_token_ids if of == "prompt" else choice.completion_token_ids
    if ids is None:
        raise UnusableError(_no_ids(of), "ids_missing")
    return ids


def _check_prompt(choice: ChoiceFacts, what: str, count: int) -> None:
    size = len(_ids_of(choice, "prompt"))
    if count != size:
        raise UnusableError(f"{count} {what} for {size} prompt tokens.", "not_aligned")


def _check_top(choice: ChoiceFacts, top: TopTokens, *, has_sampled: bool) -> None:
    ids = _ids_of(choice, "completion")
    if len(top) != len(ids):
        raise UnusableError(f"{len(top)} rows of alternatives for {len(ids)} sampled tokens.", "not_aligned")
    if has_sampled:
        _check_sampled((top.ids == ids[:, None]).any(axis=1), ids, "the alternatives")


def _check_mask(choice: ChoiceFacts, mask: SamplingMask) -> None:
    ids = _ids_of(choice, "completion")
    if len(mask) != len(ids):
        raise UnusableError(f"{len(mask)} rows of the mask for {len(ids)} sampled tokens.", "not_aligned")
    _check_sampled(hold_sampled(mask, ids), ids, "the mask")


def _check_sampled(named: Any, ids: IntArray, what: str) -> None:
    if not named.all():
        position = int(named.argmin())
        message = f"the sampled token {int(ids[position])} is not in row {position} of {what}."
        raise UnusableError(message, "not_aligned")


def _check_experts(choice: ChoiceFacts, experts: ExpertArray, start: int) -> None:
    prompt, completion = len(_ids_of(choice, "prompt")), len(_ids_of(choice, "completion"))
    expected = prompt + completion - 1 - start
    if len(experts) != expected:
        tokens = f"{prompt} prompt and {completion} sampled tokens" + (f" without the first {start}" if start else "")
        raise UnusableError(f"{len(experts)} rows of experts; {tokens} have {expected}.", "not_aligned")


def _check_spans(choice: ChoiceFacts, spans: tuple[PolicySpan, ...]) -> None:
    size, at = len(_ids_of(choice, "completion")), 0
    for span in spans:
        if span.begin != at or span.end < span.begin:
            raise UnusableError(f"the span {span.begin} to {span.end} comes after position {at}.", "not_aligned")
        at = span.end
    if at != size:
        raise UnusableError(f"the spans end at {at}; {size} tokens were sampled.", "not_aligned")
