"""The rules that ids and logprobs must keep to be trusted. What breaks them is withheld, with a code and the counts."""

from __future__ import annotations

import math
from typing import Any

from rollout_trace.model import TokenIssue, Usage
from rollout_trace.wire.facts import ChoiceFacts

_INT32_MAX = 0x7FFFFFFF
_FLOAT32_MAX = 3.4028234663852886e38


def check(choices: list[ChoiceFacts], usage: Usage | None) -> None:
    """Withholds from each choice the ids and logprobs that break a rule, and sets its issue.

    One logprob per id, each finite and <= 0; and over all choices as many ids as the engine says it sampled.
    """
    expected = usage.output if usage is not None and all(choice.complete for choice in choices) else None
    found = [_length(choice) for choice in choices]
    total = sum(count for count in found if count is not None) if None not in found else None
    counts_agree = expected is None or total is None or total == expected
    for choice in choices:
        _check_ids(choice)
        if not counts_agree:
            _withhold(choice, "usage_differs", f"{total} tokens arrived, usage says {expected}.")
        _check_logprobs(choice, sure_of_ids=expected is not None and counts_agree)


def _length(choice: ChoiceFacts) -> int | None:
    for values in (choice.completion_token_ids, choice.logprobs):
        if values is not None:
            return len(values)
    return None


def _check_ids(choice: ChoiceFacts) -> None:
    for name in ("prompt_token_ids", "completion_token_ids"):
        ids = getattr(choice, name)
        bad = next((value for value in ids if not 0 <= value <= _INT32_MAX), None) if _out_of_range(ids) else None
        if bad is not None:
            _report(choice, "ids_out_of_range", f"{name} holds {bad}; ids go from 0 to {_INT32_MAX}.")
            setattr(choice, name, None)


def _out_of_range(ids: Any) -> bool:
    return bool(ids) and (min(ids) < 0 or max(ids) > _INT32_MAX)


def _check_logprobs(choice: ChoiceFacts, *, sure_of_ids: bool) -> None:
    if choice.logprobs is None:
        return
    fault = _logprobs_fault(choice.completion_token_ids, choice.logprobs)
    if fault is None and choice.uneven and choice.completion_token_ids is not None and not sure_of_ids:
        fault = ("lengths_differ", "ids and logprobs came in different chunks, and no usage says that all came.")
    if fault is None:
        return
    _report(choice, *fault)
    choice.logprobs = choice.top_logprobs = None
    if fault[0] == "lengths_differ" and not sure_of_ids:
        choice.completion_token_ids = None


def _logprobs_fault(ids: list[int] | None, logprobs: list[float]) -> tuple[str, str] | None:
    if ids is not None and len(ids) != len(logprobs):
        return "lengths_differ", f"{len(ids)} token ids but {len(logprobs)} logprobs."
    missing = logprobs.count(None)  # type: ignore[arg-type]
    if missing:
        return "logprobs_incomplete", f"{missing} of {len(logprobs)} logprobs are null or missing."
    # The usual case in one pass: no single value is worse than a sum that is in range.
    if not -_FLOAT32_MAX <= sum(logprobs) <= 0:
        bad = next((value for value in logprobs if not math.isfinite(value) or value < -_FLOAT32_MAX), None)
        if bad is not None:
            return "logprobs_not_finite", f"a logprob is {bad}."
    if logprobs and max(logprobs) > 0:
        return "logprobs_positive", f"a logprob is {max(logprobs)}; none can be above 0."
    return None


def _withhold(choice: ChoiceFacts, code: str, message: str) -> None:
    _report(choice, code, message)
    choice.completion_token_ids = choice.logprobs = choice.top_logprobs = None


def _report(choice: ChoiceFacts, code: str, message: str) -> None:
    # The first rule broken is the one nearest to the cause.
    if choice.issue is None:
        choice.issue = TokenIssue(code=code, message=message)
