"""Why extras that ``rt.Engine`` asked for are not on a step: the form of the call, a refusal, or the server's flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.data.extras import ExtraIssue
from rollout_trace.data.model import Step, amend, shared
from rollout_trace.engines.profiles import AUTO
from rollout_trace.engines.wishes import EXTRA_OF, NO_TOP_K, Wish, lacks_top_k, value_at, wishes_for

if TYPE_CHECKING:
    from rollout_trace.engines.engine import Engine
    from rollout_trace.record.call import Call

_WITHHELD = frozenset({"redacted", "bytes_left_out", "recorder_failed"})
"""Codes of ``TokenIssue`` whose message is the reason for missing extras too: they were removed with the ids."""


def add_unmet(step: Step, call: Call, *, streamed: bool) -> None:
    """Adds an issue for each extra that was asked for, is not on the step, and has no issue yet."""
    wishes = call.settings.wishes
    if step.status == "error":
        _explain_empty_error(step, wishes)
    if wishes is None or step.status != "ok" or (step.token_issue and step.token_issue.code in _WITHHELD):
        return
    known = {issue.field for issue in step.extra_issues}
    issues = [
        issue
        for issue in _unmet(step, call, wishes, streamed=streamed)
        if issue.field not in known and _is_missing(step, issue.field)
    ]
    if issues:
        amend(step, extra_issues=(*step.extra_issues, *issues))


def _is_missing(step: Step, name: str) -> bool:
    # As stored: reading an array of shared rows would build it.
    return shared(step, name) is None


def _unmet(step: Step, call: Call, wishes: Engine, *, streamed: bool) -> list[ExtraIssue]:
    if call.profile is None or call.profile is AUTO:
        message = 'engine="auto" could not determine the engine, so nothing was asked for: name it.'
        options = [option for option in EXTRA_OF if getattr(wishes, option) not in (None, False)]
        return [ExtraIssue(field=EXTRA_OF[option], code="not_sent", message=message) for option in options]
    sampling = step.sampling if isinstance(step.sampling, Mapping) else {}
    return [
        _issue(wish, call, sampling)
        for wish in wishes_for(call.profile.name, wishes, call.protocol, streamed=streamed, has_tools=bool(step.tools))
        # Zero alternatives are logprobs alone.
        if not (wish.option == "top_logprobs" and wishes.top_logprobs == 0)
    ]


def _issue(wish: Wish, call: Call, sampling: Mapping[str, Any]) -> ExtraIssue:
    if wish.obstacle is not None:
        return ExtraIssue(field=wish.extra, code="not_in_this_form", message=f"{wish.obstacle}.")
    names = {*wish.asks, *(f"{name}={value}" for name, value in wish.asks.items())}
    refusals = [f"{name}: {refusal.message}" for name, refusal in call.refusals.items() if name in names]
    if wish.option == "top_logprobs" and "logprobs" in call.refusals:
        refusals.append(f"logprobs: {call.refusals['logprobs'].message}")
    if refusals:
        message = f"the server refuses to be asked for it ({'; '.join(refusals)}), so the call was made without."
        return ExtraIssue(field=wish.extra, code="refused", message=message)
    unasked = [name for name, value in wish.asks.items() if value_at(sampling, name) != value]
    if unasked:
        own = "nothing is added to the caller's own logprobs settings"
        message = f"not asked for: {own}. Set {', '.join(unasked)} there."
    else:
        message = f"asked for, and not in the answer: {wish.absent}."
    return ExtraIssue(field=wish.extra, code="not_sent", message=message)


def _explain_empty_error(step: Step, wishes: Engine | None) -> None:
    """Explains the error 500 without a message that vLLM answers where it cannot make a sampling mask."""
    error = step.error
    if step.engine != "vllm" or error is None or error.status != 500 or not _is_empty(error.message):
        return
    if not lacks_top_k(step.sampling if isinstance(step.sampling, Mapping) else {}):
        return
    guard.warn_once("vllm_empty_500", f"an HTTP 500 without a message may be this: {NO_TOP_K}.")
    if wishes is not None and wishes.sampling_mask:
        issue = ExtraIssue(field="sampling_mask", code="not_sent", message=f"{NO_TOP_K}.")
        amend(step, extra_issues=(*step.extra_issues, issue))


def _is_empty(message: str) -> bool:
    # Of an error object whose `message` is empty, the whole object is the message.
    return message in ("", "empty body") or "'message': ''" in message
