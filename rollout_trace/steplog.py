"""The steps of one trajectory while it is open: calls in the order they began, decoded when somebody looks."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import MutableSequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from weakref import WeakSet

from rollout_trace import guard
from rollout_trace.assemble import Stores, asks_for_ids, exchange_of
from rollout_trace.call import AttemptMark, Call, drain, settle
from rollout_trace.engines import AUTO, sends_no_ids
from rollout_trace.frames import ModelFrame
from rollout_trace.joining import joined
from rollout_trace.model import Attempt, ErrorInfo, Step, StepStatus, TokenIssue, amend, new_step, shared
from rollout_trace.shared_lists import ListStore
from rollout_trace.wire import request as wire_request
from rollout_trace.wire.body import decompress

if TYPE_CHECKING:
    from rollout_trace.frames import Frame


class StepLog:
    """Calls and what they became. Thread safe."""

    def __init__(self, *, keep: int | None = None) -> None:
        """``keep`` bounds the calls held; without it every call is held, and steps share what their prompts share."""
        self._lock = threading.RLock()
        self._calls: MutableSequence[Call] = [] if keep is None else deque(maxlen=keep)
        self._stores = Stores() if keep is None else None
        self.frames: list[Frame] = []
        """What frameworks said of agents and model calls of this trajectory, in the order they began."""
        self._closed = False
        self._pid = os.getpid()
        _logs.add(self)

    def admit(self, call: Call) -> bool:
        """Takes a call that begins; False where the log is closed, or another process's (this one was forked)."""
        if not self.is_ours:
            return False
        with self._lock:
            if self._closed:
                return False
            call.log = self
            self._calls.append(call)
            return True

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked from the one that opened the log: what it records would be lost."""
        return self._pid == os.getpid()

    def renew(self) -> None:
        """Makes the log readable in a forked process: another thread may have held its lock, while it stored a step."""
        self._lock = threading.RLock()
        if self._stores is not None:
            self._stores = Stores()

    @property
    def size(self) -> int:
        """Calls held."""
        return len(self._calls)

    def last_step_id(self) -> str | None:
        """Id of the first step of the call begun last; of those that frameworks told of, where there are any."""
        with self._lock:
            for frame in reversed(self.frames):
                if isinstance(frame, ModelFrame):
                    return frame.step_id
            return f"{self._calls[-1].id}.0" if self._calls else None

    def settle(self, call: Call) -> None:
        """Decodes a finished call, once, and lets go of its bytes."""
        with self._lock:
            if call.steps is None:
                call.steps = _recorded_steps(call, self._stores or Stores())
                call.chunks, call.request = [], None

    def steps(self) -> list[Step]:
        """The steps so far, those still running included."""
        drain()
        with self._lock:
            held = [(call, self._of(call)) for call in self._calls]
        found = joined(self.frames, held) if self.frames else [step for _, steps in held for step in steps]
        _join_retrievals(found)
        for index, step in enumerate(found):
            amend(step, index=index)
        return found

    def close(self) -> list[Step]:
        """Ends what still runs, decodes everything and gives the final steps."""
        # Before the calls: what a frame says of its end is looked at below.
        guard.each("frame", *(frame.abandon for frame in list(self.frames)))
        with self._lock:
            self._closed = True
            calls = list(self._calls)
        for call in calls:
            _end(call)
        steps = self.steps()
        for call in calls:
            # A stream that its caller keeps would keep the steps too.
            call.log, call.steps = None, []
        frames, self.frames = self.frames, []
        guard.each("frame", *(frame.forget for frame in frames))
        if self._stores is not None:
            self._stores.tokens.finish()
        return steps

    def _of(self, call: Call) -> list[Step]:
        try:
            if call.ended is None:
                return [_running_step(call)]
            settle(call)
        except Exception as error:
            # One call that nothing can be made of does not cost the others.
            guard.failed("settle", call, error)
        return call.steps or []


_logs: WeakSet[StepLog] = WeakSet()


def _after_fork() -> None:
    for log in list(_logs):
        log.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _join_retrievals(steps: list[Step]) -> None:
    """One response, asked for and looked at again and again, is one completion: the other steps are superseded."""
    first: dict[str, Step] = {}
    for step in steps:
        if step.protocol != "openai.responses" or step.response_id is None:
            continue
        known = first.setdefault(step.response_id, step)
        if known is step:
            continue
        if shared(step, "messages") is not None:
            # It has a request of its own: the server gives every response this id.
            first[step.response_id] = step
        elif step.status == "ok" and known.status != "ok":
            # It is the answer to the request of the first.
            asked = {name: shared(known, name) for name in ("messages", "tools")}
            amend(step, model=known.model, sampling=known.sampling, **asked)
            amend(known, status="superseded", token_issue=None)
            first[step.response_id] = step
        else:
            # One that still runs is none of these: it has no response id yet.
            amend(step, status="superseded", token_issue=None)


def _end(call: Call) -> None:
    try:
        call.end()
    except Exception as error:
        guard.failed("end", call, error)
        call.ended = call.ended or time.perf_counter()


def _recorded_steps(call: Call, stores: Stores) -> list[Step]:
    try:
        steps, streamed = _decoded(call, stores)
        for step in steps:
            _add_what_the_call_knows(step, call, streamed=streamed or call.is_stream)
        return steps
    except Exception as error:
        guard.failed("decode", call, error)
        return [_undecodable(call)]


def _decoded(call: Call, stores: Stores) -> tuple[list[Step], bool]:
    mark = call.attempts[-1] if call.attempts else None
    status = mark.status if mark is not None and mark.status is not None else 200
    body, problem = b"".join(call.chunks), None
    try:
        body = decompress(body, call.encoding)
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
    )
    if problem is not None:
        for step in steps:
            amend(step, status="error", error=problem)
    return steps, streamed


def _add_what_the_call_knows(step: Step, call: Call, *, streamed: bool) -> None:
    first_byte = call.first_byte if streamed else None
    engine = call.profile
    status, error = _outcome(step, call, streamed=streamed)
    amend(
        step,
        agent=call.agent,
        engine=None if engine is None or engine is AUTO else engine.name,
        started_at=_utc(call.started),
        latency=None if call.ended is None else round(call.ended - call.began, 9),
        time_to_first_token=None if first_byte is None else round(first_byte - call.attempts[-1].began, 9),
        attempts=tuple(_attempt(mark) for mark in call.attempts),
        status=status,
        error=error,
    )
    if step.logprobs is not None:
        known = None if engine is None else engine.logprobs_mode
        amend(step, logprobs_mode=call.settings.logprobs_mode or known)
    if step.token_issue is not None and step.token_issue.code == "ids_missing":
        _explain_missing(step, call)
    if call.faults:
        _distrust(step, call)


def _explain_missing(step: Step, call: Call) -> None:
    """Says why the ids are missing, where the call knows more of it than the bytes."""
    if sends_no_ids(step.engine, None):
        message = f"{step.engine} has no token ids."
    elif call.refusals and not asks_for_ids(step.sampling):
        said = "; ".join(f"{name}: {refusal.said}" for name, refusal in call.refusals.items())
        message = f"the server refuses to be asked for them ({said}), so the call was made without."
    else:
        return
    amend(step, token_issue=TokenIssue(code="ids_missing", message=message))


def _outcome(step: Step, call: Call, *, streamed: bool) -> tuple[StepStatus, ErrorInfo | None]:
    """A completion that arrived whole is ok, whatever came after it; a broken one is as its caller saw it."""
    if step.status == "ok":
        return "ok", step.error if call.failure is None else call.failure.info
    if step.error is not None and step.error.status is not None:
        return "error", step.error
    if call.eof and not call.attempts:
        # A middleware of the client's answered in the server's place.
        return "cached", None
    cause = call.failure or call.cut
    if cause is None or cause.kind == "closed":
        return ("abandoned", None) if _is_cut(step, call, streamed=streamed) else (step.status, step.error)
    return cause.kind, cause.info


def _is_cut(step: Step, call: Call, *, streamed: bool) -> bool:
    """An unstreamed body that its reader closed before the end: no JSON, but by no fault of the server's."""
    return not (call.eof or streamed) and step.error is not None and step.error.type == "InvalidJSON"


def _distrust(step: Step, call: Call) -> None:
    """A recorder that failed may have lost bytes: what it holds is no ground truth any more."""
    message = f"the recorder failed during this call ({call.faults[0]}): ids and logprobs cannot be trusted."
    issue = TokenIssue(code="recorder_failed", message=message)
    amend(step, prompt_token_ids=None, completion_token_ids=None, logprobs=None, top_logprobs=None)
    amend(step, token_source=None, token_issue=issue)


def _undecodable(call: Call) -> Step:
    step = Step(
        id=f"{call.id}.0",
        call_id=call.id,
        protocol=call.protocol,
        status="error",
        error=None if call.failure is None else call.failure.info,
        request_bytes=call.request,
        response_bytes=b"".join(call.chunks),
    )
    _distrust(step, call)
    return step


def _running_step(call: Call) -> Step:
    asked = wire_request.read(call.protocol, call.request, ListStore(), ListStore())
    return new_step(
        {
            "id": f"{call.id}.0",
            "call_id": call.id,
            "agent": call.agent,
            "protocol": call.protocol,
            "model": asked.model,
            "messages": asked.messages,
            "tools": asked.tools,
            "sampling": asked.sampling,
            "started_at": _utc(call.started),
            "attempts": tuple(_attempt(mark) for mark in call.attempts),
            "status": "running",
        }
    )


def _attempt(mark: AttemptMark) -> Attempt:
    return Attempt(
        started_at=_utc(mark.started),
        duration=None if mark.ended is None else mark.ended - mark.began,
        status=mark.status,
        error=mark.error,
        request_id=mark.request_id,
        content_type=mark.content_type,
    )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
