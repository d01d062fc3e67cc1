"""Steps of a call: its bytes decoded, and what only the call has (times, attempts, errors, engine); their tool runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace.data.costs import provider_cost
from rollout_trace.data.counts import COST_HEADER, amount_in
from rollout_trace.data.extras import EXTRAS, ExtraIssue
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import (
    Cost,
    ErrorInfo,
    Step,
    StepStatus,
    TokenIssue,
    amend,
    new_attempt,
    shared,
)
from rollout_trace.data.redact import changed_fields
from rollout_trace.record.call import UNPACKED
from rollout_trace.wire import request as wire_request
from rollout_trace.wire.body import unpack
from rollout_trace.wire.engine import EXTRA_OF, NO_TOP_K, Wish, lacks_top_k, value_at, wishes_for
from rollout_trace.wire.grammars import constrained
from rollout_trace.wire.profiles import AUTO, profile_of_step, sends_no_ids
from rollout_trace.wire.steps import Stores, exchange_of, requests_ids

if TYPE_CHECKING:
    from rollout_trace.data.model import Attempt, ToolCall, ToolRun
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.call import AttemptMark, Call
    from rollout_trace.wire.engine import Engine


def recorded_steps(call: Call, stores: Stores) -> list[Step]:
    """Returns the steps of a finished call, by choice. Never raises, except under pytest.

    At least one, save of a request that was taken for a call and whose answer is none.
    """
    try:
        steps, streamed, has_more = _decoded(call, stores)
        if call.settings.is_guess and _is_no_generation(steps, call):
            guard.count("not_model_calls")
            return []
        streamed = streamed or call.is_stream
        for step in steps:
            _add_call_fields(step, call, streamed=streamed, has_more=has_more or bool(call.left_out))
        header = call.attempts[-1].known.get(COST_HEADER) if steps and call.attempts else None
        amount = None if header is None else amount_in(header)
        # Headers come before a stream: there a zero says that the cost was not known yet.
        if amount is not None and (amount or not streamed) and provider_cost(steps[0]) is None:
            amend(steps[0], cost=Cost(amount=amount, source="provider"))
        if (missing := call.what_is_missing(has_more=has_more)) is not None:
            guard.warn_once("bytes_left_out", f"a call was too long to keep: {missing}")
        for step in steps:
            if missing is not None and (step.token_issue is None or step.token_issue.code != "recorder_failed"):
                _withhold_tokens(step, TokenIssue(code="bytes_left_out", message=missing))
            if call.settings.wishes is not None or step.status == "error":
                _add_missing_extras(step, call, streamed=streamed)
        if credentials.any_known():
            for step in steps:
                _cut_keys(step)
        return steps
    except Exception as error:
        guard.failed("decode", call, error)
        return [_undecodable_step(call)]


def _is_no_generation(steps: list[Step], call: Call) -> bool:
    """Whether an answer came whole and without an error, and is another kind of answer than its protocol's."""
    status = call.attempts[-1].status if call.attempts else None
    errors = [step.error for step in steps if step.status == "error"]
    return (
        call.eof
        and status is not None
        and status < 400
        and len(errors) == len(steps)
        and all(error is not None and error.type in ("InvalidJSON", "UnexpectedBody") for error in errors)
        and not _is_broken_json(call)
    )


def _is_broken_json(call: Call) -> bool:
    """Whether an answer begins as JSON and breaks off, or is JSON by its type and has none: a call's that failed."""
    try:
        body, _ = unpack(b"".join(call.chunks), call.encoding, call.limit)
        text = body.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
        json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError:
        return text[:1] in ("{", "[") or "json" in (call.attempts[-1].content_type or "").lower()
    except (ValueError, RecursionError):
        return True
    return False


def _decoded(call: Call, stores: Stores) -> tuple[list[Step], bool, bool]:
    """The steps, whether the answer is a stream, and whether its bytes unpack to more than was decoded."""
    mark = call.attempts[-1] if call.attempts else None
    status = mark.status if mark is not None and mark.status is not None else 200
    body, problem, has_more = b"".join(call.chunks), None, False
    try:
        body, has_more = unpack(body, call.encoding, UNPACKED * call.limit)
        # Of what is not whole, less is read: what it is decoded into takes several times its bytes.
        body = body[: call.limit] if has_more else body
    except ValueError as error:
        body, problem = b"", ErrorInfo(type="ContentEncoding", message=str(error))
    steps, streamed = exchange_of(
        call.id,
        call.protocol,
        call.request,
        body,
        content_type=mark.content_type if mark is not None else None,
        status=status,
        stores=stores,
        keep_bytes=call.settings.keep_bytes,
        whole=not (has_more or call.left_out),
        path_model=call.path_model,
    )
    if problem is not None:
        for step in steps:
            amend(step, status="error", error=problem)
    return steps, streamed, has_more


def add_attempts(call: Call) -> None:
    """Sets the times and attempts of a decoded call's steps, where it took over those of an earlier one."""
    for step in call.steps or ():
        amend(step, started_at=_utc(call.started), latency=_latency(call), attempts=tuple(map(_attempt, call.attempts)))
        _cut_keys(step)


_FROM_CALL = ("agent", "model", "attempts", "error", "token_issue", "extra_issues", "exact_turn")
_of_call = attrgetter(*_FROM_CALL)


def _cut_keys(step: Step) -> None:
    """Cuts keys of this process's clients out of what the call adds to a step: headers and messages of errors."""
    amend(step, **changed_fields(dict(zip(_FROM_CALL, _of_call(step), strict=True))))


def _latency(call: Call) -> float | None:
    return None if call.ended is None else round(call.ended - call.began, 9)


def _add_call_fields(step: Step, call: Call, *, streamed: bool, has_more: bool) -> None:
    """Adds what only the call has. ``has_more``: the answer is longer than what was decoded."""
    # Of a body that comes as a whole, the first byte says nothing about the first token.
    first_byte = call.first_byte if streamed else None
    engine = call.profile
    status, error = _outcome(step, call, streamed=streamed, has_more=has_more)
    amend(
        step,
        agent=call.agent,
        engine=None if engine is None or engine is AUTO else engine.name,
        started_at=_utc(call.started),
        latency=_latency(call),
        # Since the last attempt began, not the call: retries and their delays are not the model's time.
        time_to_first_token=None if first_byte is None else round(first_byte - call.attempts[-1].began, 9),
        attempts=tuple([_attempt(mark) for mark in call.attempts]),
        status=status,
        error=error,
    )
    # What the engine says of its weights goes before what their trainer says.
    if step.policy_version is None and call.policy_version is not None:
        step.policy_version = call.policy_version
    if (sent := call.exact_turn) is not None:
        # What was sent, as the call knows it, with what was served, as the answer says.
        served, refuse = step.exact_turn, call.on_ids_not_served
        # It holds the request.
        call.on_ids_not_served = None
        if served is not None and not served.is_exact and sent.n_ids is not None:
            if step.status == "ok" and refuse is not None:
                refuse(served.detail or "")
            sent = replace(sent, reason=served.reason, detail=served.detail)
        amend(step, exact_turn=sent)
    if shared(step, "logprobs") is not None:
        of_engine = profile_of_step(step.engine)
        # By the user, the grammars of the request, the answer, or the defaults of the engine.
        mode = call.settings.logprobs_mode
        if mode is None and of_engine.grammar_in_logprobs and constrained(step) is not None:
            mode = "constrained"
        amend(step, logprobs_mode=mode or step.logprobs_mode or of_engine.logprobs_mode)
    if step.token_issue is not None and step.token_issue.code == "ids_missing":
        # A more specific reason than the bytes show.
        message = None
        if sends_no_ids(step.engine, None):
            message = f"{step.engine} has no token ids."
        elif call.refusals and not requests_ids(step.sampling):
            refusals = "; ".join(f"{name}: {refusal.message}" for name, refusal in call.refusals.items())
            message = f"the server refuses to be asked for them ({refusals}), so the call was made without."
        if message is not None:
            amend(step, token_issue=TokenIssue(code="ids_missing", message=message))
    if call.faults:
        _withhold_tokens(step, _recorder_failed(call))


def _outcome(step: Step, call: Call, *, streamed: bool, has_more: bool) -> tuple[StepStatus, ErrorInfo | None]:
    """Status and error of a step: ok if the completion arrived whole, else what the caller saw.

    A whole completion stays ok if its caller got an exception afterwards, as of a connection that was lost behind the
    finish reason; the exception is kept in ``error``.
    """
    cause = call.failure or call.cut
    if step.status == "ok":
        return (
            "cached" if call.is_replayed else "ok",
            step.error if cause is None or cause.kind == "closed" else cause.info,
        )
    # The server's error response, before the SDK's exception about it.
    if step.error is not None and step.error.status is not None:
        return "error", step.error
    if call.eof and not call.attempts:
        # Nothing was sent: a middleware of the client answered in the server's place.
        return "cached", None
    if cause is None or cause.kind == "closed":
        if has_more and step.error is None and (call.eof or call.saw_done()):
            # Its caller got it whole; only the record of it is cut.
            return "ok", None
        if not (call.eof or streamed) and step.error is not None and step.error.type == "InvalidJSON":
            # An unstreamed body is no JSON because its reader closed it early: no fault of the server.
            return "abandoned", None
        return step.status, step.error
    return cause.kind, cause.info


def _recorder_failed(call: Call) -> TokenIssue:
    message = f"the recorder failed during this call ({call.faults[0]}): ids and logprobs cannot be trusted."
    return TokenIssue(code="recorder_failed", message=message)


def _withhold_tokens(step: Step, issue: TokenIssue) -> None:
    """Removes ids, logprobs and extras from a step that may lack bytes, because they cannot be trusted."""
    gone = ("prompt_token_ids", "completion_token_ids", "logprobs", "top_logprobs", "token_texts", *EXTRAS)
    # Reasons why an extra is not in the answer are read from the same bytes.
    amend(step, **dict.fromkeys(gone), token_source=None, token_issue=issue, extra_issues=())


def _undecodable_step(call: Call) -> Step:
    """A step that keeps the bytes of a call that could not be decoded."""
    step = Step(
        id=f"{call.id}.0",
        call_id=call.id,
        protocol=call.protocol,
        model=call.path_model,
        status="error",
        error=None if call.failure is None else call.failure.info,
        request_bytes=None if call.request is None else credentials.cut_bytes(call.request),
        response_bytes=credentials.cut_bytes(b"".join(call.chunks)),
    )
    _withhold_tokens(step, _recorder_failed(call))
    return step


def running_step(call: Call) -> Step:
    """A step with status ``running``: the request of a call that has not ended."""
    # Throwaway stores: the trajectory's own are written once, when the call has ended.
    request = wire_request.read(call.protocol, call.request, ListStore(), ListStore())
    model = call.path_model if request.model is None else request.model
    step = Step(id=f"{call.id}.0", call_id=call.id, protocol=call.protocol, model=model, status="running")
    amend(step, agent=call.agent, started_at=_utc(call.started), attempts=tuple(map(_attempt, call.attempts)))
    amend(step, messages=request.messages, tools=request.tools, sampling=request.sampling)
    _cut_keys(step)
    return step


def _attempt(mark: AttemptMark) -> Attempt:
    known = mark.known
    return new_attempt(
        started_at=_utc(mark.started),
        duration=None if mark.ended is None else round(mark.ended - mark.began, 9),
        status=mark.status,
        error=mark.error,
        # OpenAI's header, else Anthropic's.
        request_id=known.get("x-request-id") or known.get("request-id"),
        content_type=known.get("content-type"),
    )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


_WITHHELD = frozenset({"redacted", "bytes_left_out", "recorder_failed"})
"""Codes of ``TokenIssue`` whose message is the reason for missing extras too: they were removed with the ids."""


def _add_missing_extras(step: Step, call: Call, *, streamed: bool) -> None:
    """Adds an issue for each extra that was asked for, is not on the step, and has no issue yet."""
    wishes = call.settings.wishes
    if step.status == "error":
        _explain_empty_error(step, wishes)
    if wishes is None or step.status != "ok" or (step.token_issue and step.token_issue.code in _WITHHELD):
        return
    if call.profile is None or call.profile is AUTO:
        message = 'engine="auto" could not determine the engine, so nothing was asked for: name it.'
        options = [option for option in EXTRA_OF if getattr(wishes, option) not in (None, False)]
        found = [ExtraIssue(field=EXTRA_OF[option], code="not_sent", message=message) for option in options]
    else:
        sampling = step.sampling if isinstance(step.sampling, Mapping) else {}
        form = {"streamed": streamed, "has_tools": bool(step.tools)}
        found = [
            _issue(wish, call, sampling)
            for wish in wishes_for(call.profile.name, wishes, call.protocol, **form)
            # Zero alternatives are logprobs alone.
            if not (wish.option == "top_logprobs" and wishes.top_logprobs == 0)
        ]
    known = {issue.field for issue in step.extra_issues}
    # As stored: reading an array of shared rows would build it.
    issues = [issue for issue in found if issue.field not in known and shared(step, issue.field) is None]
    if issues:
        amend(step, extra_issues=(*step.extra_issues, *issues))


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
    if step.engine != "vllm" or error is None or error.status != 500:
        return
    # Of an error object whose `message` is empty, the whole object is the message.
    if error.message not in ("", "empty body") and "'message': ''" not in error.message:
        return
    if not lacks_top_k(step.sampling if isinstance(step.sampling, Mapping) else {}):
        return
    guard.warn_once("vllm_empty_500", f"an HTTP 500 without a message may have this cause: {NO_TOP_K}.")
    if wishes is not None and wishes.sampling_mask:
        issue = ExtraIssue(field="sampling_mask", code="not_sent", message=f"{NO_TOP_K}.")
        amend(step, extra_issues=(*step.extra_issues, issue))


# Tool runs


def link_tool_runs(trajectory: Trajectory) -> None:
    """Sets ``step_id`` on the tool runs that have a ``tool_call_id`` and no step yet."""
    requests: dict[str, list[tuple[Step, ToolCall]]] = {}
    for step in trajectory.steps:
        for call in step.completion.tool_calls if step.completion is not None else ():
            if isinstance(call.id, str):
                requests.setdefault(call.id, []).append((step, call))
    for run in trajectory.tool_runs:
        if run.step_id is None and isinstance(run.tool_call_id, str):
            # As the steps have it, out of which keys of this process's clients were cut.
            candidates = requests.get(credentials.cut(run.tool_call_id))
            if candidates is not None:
                run.step_id = _requesting_step(run, candidates).id


def _requesting_step(run: ToolRun, candidates: list[tuple[Step, ToolCall]]) -> Step:
    """The step that requested a run, among those with a tool call of its id.

    Servers may repeat ids in every turn (``call_0``), so the id alone does not decide. Each test keeps the candidates
    that pass it, or all if none does; the last of those left is returned.
    """
    tests: tuple[Callable[[Step, ToolCall], bool], ...] = (
        lambda step, call: call.name == run.name,
        lambda step, call: _same_arguments(run.arguments, call.arguments),
        lambda step, call: step.status not in ("superseded", "error"),
        lambda step, call: _is_before(step, 0.0, run),
        # From the first token on, not the end: a tool may run while the stream that requested it is still open.
        lambda step, call: _is_before(step, step.time_to_first_token or step.latency or 0.0, run),
    )
    for passes in tests if len(candidates) > 1 else ():
        candidates = [candidate for candidate in candidates if passes(*candidate)] or candidates
    return candidates[-1][0]


def _same_arguments(passed: Any, written: str | None) -> bool:
    """Whether a tool got the arguments that the model wrote, as text or decoded."""
    if written is None or isinstance(passed, str):
        return bool(passed == written)
    try:
        decoded: object = json.loads(written)
        return bool(decoded == passed)
    except ValueError:
        return False


def _is_before(step: Step, seconds: float, run: ToolRun) -> bool:
    """Whether the run began at least ``seconds`` after the step; False if a time is unknown."""
    if step.started_at is None or run.started_at is None:
        return False
    return step.started_at.timestamp() + seconds <= run.started_at.timestamp()
