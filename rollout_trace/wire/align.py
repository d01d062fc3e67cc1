"""Consistency checks on ids and logprobs. Arrays that fail are withheld, with an issue code and the counts."""

from __future__ import annotations

import struct
from typing import Any

from rollout_trace.data.model import Usage
from rollout_trace.data.tokens import FLOAT32_MAX, array_of
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.reading import set_issue, withhold

_INT32_MAX = 0x7FFFFFFF


def check(choices: list[ChoiceFacts], usage: Usage | None) -> None:
    """Withholds the ids and logprobs of each choice that break a rule, with an issue; the rest become arrays, in place.

    The rules: ids within int32; one logprob per id, each finite and <= 0; over all choices as many ids as the engine's
    usage counts. Texts of another number of tokens go without an issue: they are no ground truth.
    """
    # Usage counts all that was sampled: of an answer that broke off, tokens may be missing without a mistake.
    expected = usage.output if usage is not None and all(choice.complete for choice in choices) else None
    found = [_length(choice) for choice in choices]
    total = None if None in found else sum(found)  # type: ignore[arg-type]
    counts_agree = expected is None or total is None or total == expected
    converted: dict[int, Any] = {}
    for choice in choices:
        _check_ids(choice, converted)
        if not counts_agree:
            withhold(choice, "usage_differs", f"{total} tokens arrived, usage says {expected}.")
        _check_logprobs(choice, sure_of_ids=expected is not None and counts_agree)
        if choice.token_texts is not None and len(choice.token_texts) != _length(choice):
            choice.token_texts = None


def _length(choice: ChoiceFacts) -> int | None:
    for values in (choice.completion_token_ids, choice.logprobs):
        if values is not None:
            return len(values)
    return None


def _check_ids(choice: ChoiceFacts, converted: dict[int, Any]) -> None:
    for name in ("prompt_token_ids", "completion_token_ids"):
        ids = getattr(choice, name)
        if ids is None or (choice.is_sound and not isinstance(ids, list)):
            continue
        # The choices of one answer share the list of their prompt: converted once, they share the array too.
        if id(ids) not in converted:
            converted[id(ids)] = _id_array(ids)
        array = converted[id(ids)]
        if array is None:
            bad = next(value for value in ids if not 0 <= value <= _INT32_MAX)
            set_issue(choice, "ids_out_of_range", f"{name} holds {bad}; ids go from 0 to {_INT32_MAX}.")
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
        if isinstance(choice.logprobs, list) or not choice.is_sound:
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
