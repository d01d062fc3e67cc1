"""The steps of one trajectory while it is open: calls in the order they began, decoded when somebody looks."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import MutableSequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from rollout_trace import guard
from rollout_trace.data.model import Step, amend, shared
from rollout_trace.record.call import Call, drain, settle
from rollout_trace.record.call_steps import recorded_steps, running_step
from rollout_trace.record.join import joined
from rollout_trace.wire.protocols import record_of
from rollout_trace.wire.steps import Stores

if TYPE_CHECKING:
    from rollout_trace.record.join import ModelCallFrame, OpenFrame


class StepLog:
    """Calls and what they became. Thread safe."""

    def __init__(self, *, keep: int | None = None) -> None:
        """``keep`` bounds the calls held; without it every call is held, and steps share what their prompts share."""
        self._lock = threading.RLock()
        self._calls: MutableSequence[Call] = [] if keep is None else deque(maxlen=keep)
        self._stores = Stores() if keep is None else None
        self.frames: list[OpenFrame] = []
        """What frameworks reported of this trajectory, in the order it began: agents and model calls."""
        self.model_frames: list[ModelCallFrame] = []
        """Of these the model calls."""
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
            if self.model_frames:
                return self.model_frames[-1].step_id
            return f"{self._calls[-1].id}.0" if self._calls else None

    def settle(self, call: Call) -> None:
        """Decodes a finished call, once, and lets go of its bytes."""
        with self._lock:
            if call.steps is None:
                call.steps = recorded_steps(call, self._stores or Stores())
                call.chunks, call.request = [], None

    def steps(self) -> list[Step]:
        """The steps so far, those still running included."""
        drain()
        with self._lock:
            held = [(call, self._of(call)) for call in self._calls]
        found = joined(self.model_frames, held) if self.model_frames else [step for _, steps in held for step in steps]
        _join_retrievals(found)
        for index, step in enumerate(found):
            amend(step, index=index)
        return found

    def close(self) -> list[Step]:
        """Ends what still runs, decodes everything and gives the final steps."""
        # Before the calls: what a frame says of its end is looked at below.
        guard.run_all("frame", *(frame.abandon for frame in list(self.frames)))
        with self._lock:
            self._closed = True
            calls = list(self._calls)
        for call in calls:
            _end(call)
        steps = self.steps()
        for call in calls:
            # A stream that its caller keeps would keep the steps too.
            call.log, call.steps = None, []
        frames, self.frames, self.model_frames = self.frames, [], []
        guard.run_all("frame", *(frame.forget for frame in frames))
        if self._stores is not None:
            self._stores.tokens.finish()
        return steps

    def _of(self, call: Call) -> list[Step]:
        try:
            if call.ended is None:
                return [running_step(call)]
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
        if step.response_id is None or not record_of(step.protocol).is_retrievable:
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
