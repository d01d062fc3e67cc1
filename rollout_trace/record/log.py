"""The calls of one open trajectory in start order, decoded when its steps are read or their bytes exceed a limit."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable, MutableSequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rollout_trace import guard
from rollout_trace._threads import give_way, renew_after_fork
from rollout_trace.data.conversations import is_from_assistant
from rollout_trace.data.model import Step, amend, shared
from rollout_trace.data.tokens import Span
from rollout_trace.record.call import Call, end
from rollout_trace.record.call_steps import add_attempts, recorded_steps, running_step
from rollout_trace.record.decoder import decode, drain, held_bytes, pending
from rollout_trace.wire.protocols import record_of
from rollout_trace.wire.steps import Stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rollout_trace.file.journal import JournalFile
    from rollout_trace.record.journal import TrajectoryJournal
    from rollout_trace.wire.turn_index import Asked, Found, TurnIndex


_ended = attrgetter("ended")
_DIGITS = 6
"""Characters of a token id in an answer, with its comma."""


Restore: TypeAlias = "Callable[[dict[str, Call], Iterable[JournalFile]], Iterator[Call]]"
"""The calls, by id, each with its bytes again, one after the other."""


class StepLog:
    """The calls of one trajectory (or the orphans), their decoded steps, and the frames around them. Thread safe."""

    def __init__(self, *, keep: int | None = None) -> None:
        """``keep`` is the most calls to hold: older ones are dropped. Without it all are, and steps share storage."""
        self._lock = threading.RLock()
        # Never taken while `_lock` is held, which a call that begins takes: decoding may take a second.
        self.completing = threading.RLock()
        """Held while calls are decoded, and while the closed trajectory is completed."""
        self._calls: MutableSequence[Call] = [] if keep is None else deque(maxlen=keep)
        # No shared storage for a bounded log: it would keep the tokens of dropped calls for ever.
        self._stores = Stores() if keep is None else None
        self.frames: list[OpenFrame] = []
        """Frames opened by framework hooks for this trajectory (agents and model calls), in start order."""
        self.model_frames: list[ModelCallFrame] = []
        """The model calls among ``frames``."""
        self.is_closed = False
        """True once the trajectory's block has ended: no further call is added, running ones go on."""
        self.on_call_end: Callable[[], object] | None = None
        """Called, if set, whenever a call ends. The garbage collector may be the caller: it must take no lock."""
        self.journal: TrajectoryJournal | None = None
        """Where finished calls are kept until the trajectory's line is written; None without a journal."""
        self.policy_version: Callable[[], str | int | None] | None = None
        """Called, if set, when a call begins: the version of the weights that it samples from. Must not raise."""
        self.is_bounded = keep is not None
        """Whether old calls are dropped: those of the orphans."""
        self._turns: TurnIndex | None = None
        self._n_seen = 0
        """Number of calls that were looked at for ``_turns``."""
        self._asked: dict[Call, tuple[str, Asked]] = {}
        """Address and messages of calls that may be continued, until they are in ``_turns``."""
        self._not_indexed: dict[Call, None] = {}
        """Calls that were looked at, and are not in ``_turns``."""
        # Its own: a call that begins takes `_lock`, and must not wait for another one's long history.
        self._turns_lock = threading.RLock()
        self._largest_request = 0
        self._response_bytes = 0
        self._reported_bytes = 0
        self._reported: set[int] = set()
        """``id`` of what was counted of reported calls: messages that are reported again with each of them."""
        self.was_read = False
        """Whether its steps were looked at, and may have been changed."""
        self.restore: Restore | None = None
        """Reads calls in the journal again; None where no writer process decodes them out of it."""
        self._set_aside: dict[str, Call] = {}
        """Calls whose bytes are in the journal alone, by id."""
        self._files: dict[JournalFile, None] = {}
        """The files that have them, which can be read as long as they are referred to."""
        self.is_ours = True
        """False in a fork of the process that opened the log: what is recorded here would never be written."""
        renew_after_fork(self, StepLog.reset_after_fork)

    def add(self, call: Call) -> bool:
        """Adds a call that begins; False if the log is closed, or another process's (this one was forked)."""
        # Looked at without the lock first: a closed log holds it while all its calls are decoded.
        if not self.is_ours or self.is_closed:
            return False
        with self._lock:
            if self.is_closed:
                return False
            call.log = self
            if self.policy_version is not None:
                call.policy_version = self.policy_version()
            self._calls.append(call)
            return True

    def reset_after_fork(self) -> None:
        """Makes the log readable in a forked process, where it is not ours.

        At the fork another thread may have held the lock, in the middle of a change to the stores.
        """
        self.is_ours = False
        self._lock = threading.RLock()
        self.completing = threading.RLock()
        self._turns_lock = threading.RLock()
        if self._stores is not None:
            self._stores = Stores()

    @property
    def size(self) -> int:
        """Number of calls in the log."""
        return len(self._calls)

    @property
    def calls(self) -> list[Call]:
        """Returns the log's calls, in the order in which they began."""
        return list(self._calls)

    def last_step_id(self) -> str | None:
        """Id of the first step of the call that began last; of framework model calls only, if there are any."""
        with self._lock:
            # The calls lack those whose bytes are not seen; their frames have an id already.
            if self.model_frames:
                return self.model_frames[-1].step_id
            return f"{self._calls[-1].id}.0" if self._calls else None

    def call_ended(self, call: Call) -> None:
        """Called when a call of this log has ended, possibly by the garbage collector: takes no lock."""
        if self.journal is not None:
            self.journal.call_ended(call)
        if self.on_call_end is not None:
            self.on_call_end()

    def call_received(self, call: Call) -> None:
        """Called about once a second while the response arrives."""
        if self.journal is None:
            call.journal_due = math.inf
        else:
            self.journal.call_received(call)

    def call_amended(self, call: Call) -> None:
        """Called when a call fails after its end, such as an answer that the client cannot read."""
        if self.journal is not None:
            self.journal.call_amended(call)

    def decode(self, call: Call, *, wait: bool = True) -> bool:
        """Decodes a finished call, as the function ``decode`` of ``call`` does."""
        if not self.completing.acquire(blocking=wait):
            return False
        try:
            if call.id in self._set_aside:
                self.take_back()
            if call.steps is None:
                call.request_digest = digest_of(call)
                call.steps = recorded_steps(call, self._stores or Stores())
                self._count_bytes(call)
                call.drop_bytes()
        finally:
            self.completing.release()
        give_way()
        return True

    def set_aside(self, call: Call) -> bool:
        """Drops the bytes of a finished call that the journal has and a writer process decodes.

        They are read again where its steps are wanted. False, and nothing is done, where that is known to come.
        """
        journal = self.journal
        if self.restore is None or self.was_read or self.model_frames or journal is None:
            return False
        if not self.completing.acquire(blocking=False):
            return False
        try:
            if call.steps is not None or not journal.has_bytes_of([call]):
                return False
            call.request_digest = digest_of(call)
            self._set_aside[call.id] = call
            self._files.update(dict.fromkeys(journal.files))
            call.drop_bytes()
        finally:
            self.completing.release()
        return True

    def take_back(self) -> None:
        """Decodes the calls that were set aside."""
        with self.completing:
            calls, files = {**self._set_aside}, {**self._files}
            for call in self.restore(calls, files) if calls and self.restore is not None else ():
                # One by one, and each only with its bytes: this may be interrupted by Ctrl-C, and is then begun anew.
                self._set_aside.pop(call.id, None)
                self.decode(call)
            self._files = {}

    def _count_bytes(self, call: Call) -> None:
        request = len(call.request or b"")
        self._largest_request = max(self._largest_request, request)
        # Without the ids of the prompt, which steps share: a long agent's answers repeat them in every turn.
        prompt = shared(call.steps[0], "prompt_token_ids") if call.steps else None
        repeated = _DIGITS * (prompt.stop - prompt.start if isinstance(prompt, Span) else 0)
        self._response_bytes += max(0, call.size() - request - repeated)

    def size_in_memory(self) -> int:
        """Roughly, the bytes that its calls occupy: decoded steps share what a later prompt repeats."""
        undecoded = sum(call.size() for call in list(self._calls) if call.steps is None)
        return self._largest_request + self._response_bytes + undecoded + self._reported_bytes

    def count_reported(self, *values: object) -> None:
        """Counts what a framework reported of a call whose bytes were not seen: messages that came before, once."""
        self._reported_bytes += held_bytes(values, self._reported)

    def steps(self) -> list[Step]:
        """All steps so far in start order, running calls included."""
        self.was_read = True
        drain()
        with self._lock:
            begun = list(self._calls)
        # Not only around each: a call that ends meanwhile must not lose its bytes while its running step is made.
        with self.completing:
            calls = [(call, self._steps_of(call)) for call in begun]
            if any(call.settings.is_http for call in begun):
                join_retries(begun)
                calls = [(call, steps if call.steps is None else call.steps) for call, steps in calls]
        if self.model_frames:
            steps = join_frames_with_calls(self.model_frames, calls)
        else:
            steps = [step for _, of_call in calls for step in of_call]
        _supersede_retrievals(steps)
        for index, step in enumerate(steps):
            amend(step, index=index)
        return steps

    def continued(self, call: Call, server: str, messages: Sequence[Any]) -> tuple[Found, bool]:
        """Finds the step of an ended call that a request continues, by its messages.

        True where it is none, and the request continues a call that has not ended.
        """
        with self._turns_lock:
            turns = self._turns
            if turns is None:
                # Imported on use: only exact turns ask.
                from rollout_trace.wire.turn_index import TurnIndex

                turns = self._turns = TurnIndex()
            # Looked at once each, when they have ended: a long agent's are many.
            waiting, begun = self._not_indexed, self._calls[self._n_seen :]
            self._n_seen += len(begun)
            waiting.update(dict.fromkeys(begun))
            has_others = len(waiting) > 1 or call not in waiting
            if has_others:
                self._add_ended(call)
            found, asked = turns.find(call.protocol, messages)
            self._asked[call] = server, asked
            turn = None if found.changed is not None else found.turn
            known = 0 if turn is None else turn.n_messages
            return found, has_others and self._answers_running(call, messages, known)

    def prepare(self, call: Call) -> None:
        """Decodes a call whose trajectory has exact turns, and compares it, before the next one needs it."""
        decode(call)
        with self._turns_lock:
            self._not_indexed.pop(call, None)
            self._add_turns(call)

    def _add_ended(self, call: Call) -> None:
        """Adds the calls that have ended to the turns, before ``call`` is looked for among them."""
        for one in [*self._not_indexed]:
            # Its reader stopped at the last event, and has yet to close it: all is there.
            if one.ended is None and one is not call and one.has_last_event():
                end(one)
        for one in [*self._not_indexed]:
            if one.ended is not None and self._not_indexed.pop(one, True) is None:
                guard.run_all("exact_turn", partial(self._add_turns, one))

    def _add_turns(self, call: Call) -> None:
        # Looked at once: a trajectory that closes drops it.
        turns = self._turns
        if turns is not None:
            steps = self._steps_of(call) if call.steps is None else call.steps
            server, asked = self._asked.pop(call, (None, None))
            turns.add(steps, server, asked)

    def _answers_running(self, call: Call, messages: Sequence[Any], known: int) -> bool:
        """Whether messages begin with those of another call that has not ended, and an answer.

        ``known``: as many messages an ended call was asked that they continue. One that has begun to answer the same,
        or more, may be meant as well.
        """
        others = [one for one in self._not_indexed if one is not call and one in self._asked]
        running = [self._asked[one][1] for one in others if not known or one.has_finished()]
        return any(
            known <= len(one) < len(messages) and is_from_assistant(messages[len(one)]) and one.begins(messages)
            for one in running
        )

    def close(self) -> None:
        """Stops taking calls and ends the open frames. Running calls continue; nothing is decoded."""
        # Frames end first: an open frame yields no steps, and its outcome is put on the steps collected later.
        try:
            guard.run_all("frame", *(frame.abandon for frame in list(self.frames)))
        finally:
            with self._lock:
                self.is_closed = True

    @property
    def is_running(self) -> bool:
        """Whether a call has not ended, such as a stream that is still being read."""
        return None in map(_ended, list(self._calls))

    def abandon(self) -> None:
        """Ends the running calls: their steps hold what has arrived, and what comes later is not recorded."""
        for call in list(self._calls):
            if call.ended is None:
                end(call)

    def trim(self) -> None:
        """Frees what storing further steps would need. To be called with ``completing`` held, like ``clear``."""
        if self._stores is not None:
            self._stores.finish()

    def let_go(self) -> None:
        """Drops all, undecoded: nobody can read it any more."""
        self._set_aside, self._files = {}, {}
        for call in self._calls:
            pending.discard(call)
            call.drop_bytes()
        self.clear()

    def clear(self) -> None:
        """Drops the calls and frames of a closed log whose steps have been taken."""
        for call in self._calls:
            # The caller's stream references its call: kept for long, it would keep all steps alive. The empty list, not
            # None, marks the call as decoded.
            call.log, call.steps = None, []
        frames, self.frames, self.model_frames = self.frames, [], []
        self._turns, self._not_indexed, self._asked = None, {}, {}
        self._reported.clear()
        guard.run_all("frame", *(frame.forget for frame in frames))

    def _steps_of(self, call: Call) -> list[Step]:
        try:
            if call.ended is None:
                if not (call.settings.is_http and call.has_last_event()):
                    return [running_step(call)]
                # Its reader stopped at the last event, and has yet to close it, as litellm does: all is there.
                end(call)
            decode(call)
        except Exception as error:
            # A call that cannot be decoded must not cost the steps of the others.
            guard.failed("settle", call, error)
        return call.steps or []


def _supersede_retrievals(steps: list[Step]) -> None:
    """Leaves one step per background response: creating it and each retrieval of it are calls with one response id.

    The step that stays has the request of the first call and the completion; the others become ``superseded``.
    """
    kept: dict[str, Step] = {}
    for step in steps:
        if step.response_id is None or not record_of(step.protocol).is_retrievable:
            continue
        earlier = kept.setdefault(step.response_id, step)
        if earlier is step:
            continue
        if shared(step, "messages") is not None:
            # No retrieval: it sent messages of its own. Some servers send one id with every response.
            kept[step.response_id] = step
        elif step.status == "ok" and earlier.status != "ok":
            # The retrieval that brought the completion; its own request has neither messages nor sampling.
            prompt = {name: shared(earlier, name) for name in ("messages", "tools")}
            amend(step, model=earlier.model, sampling=earlier.sampling, **prompt)
            amend(earlier, status="superseded", token_issue=None)
            kept[step.response_id] = step
        else:
            # Never a running call: that has no response id yet.
            amend(step, status="superseded", token_issue=None)


class OpenFrame(Protocol):
    """Interface of the frames around a log's calls: ``scope.Frame``."""

    def abandon(self) -> None: ...
    def forget(self) -> None: ...


class ModelCallFrame(OpenFrame, Protocol):
    """Interface of a model call's frame, to match it with recorded calls: ``frames.ModelFrame``."""

    calls: list[Call]
    response_id: str | None
    began: float

    @property
    def step_id(self) -> str: ...
    def mark_all(self, seen: Sequence[list[Step]]) -> None: ...
    def steps(self) -> list[Step]: ...


def join_frames_with_calls(frames: Sequence[ModelCallFrame], calls: Sequence[tuple[Call, list[Step]]]) -> list[Step]:
    """Steps of all calls in start order, annotated with framework metadata.

    Frames without a recorded call are represented by their own steps, at the time the frame began.
    """
    by_call = {id(call): steps for call, steps in calls}
    by_response: dict[str, list[list[Step]]] = {}
    for _, steps in calls:
        # A set: the choices of one call (n=2) share its response id.
        for response_id in {step.response_id for step in steps if step.response_id is not None}:
            by_response.setdefault(response_id, []).append(steps)
    entries = [(call.began, steps) for call, steps in calls]

    def join(frame: ModelCallFrame) -> None:
        matched = [by_call[id(call)] for call in frame.calls if id(call) in by_call]
        same_id = [] if frame.response_id is None else by_response.get(frame.response_id, [])
        # An id beats the context: the calls of a batch may begin in another order than their frames. It must be unique,
        # though: some servers send the same id with every answer.
        if len(same_id) == 1 and same_id[0] not in matched:
            matched = same_id
        if matched:
            frame.mark_all(matched)
        else:
            entries.append((frame.began, frame.steps()))

    guard.run_all("frame", *(partial(join, frame) for frame in frames))
    entries.sort(key=lambda entry: entry[0])
    return [step for _, steps in entries for step in steps]


_MAY_BE_RETRIED = frozenset({408, 409, 425, 429})


def digest_of(call: Call) -> str | None:
    """The digest of the request of an HTTP library's call; None of other calls, and where the request is not kept."""
    if not call.settings.is_http or call.request is None:
        return call.request_digest
    return hashlib.blake2b(call.request, digest_size=16).hexdigest()


def join_retries(calls: Iterable[Call]) -> None:
    """Gives a call the attempts of an earlier one of the same request, which failed before it began.

    The earlier one has no steps any more. Twice does what once does.

    Args:
        calls: of one trajectory, in the order they began; those that have ended are decoded.
    """
    failed: dict[tuple[str | None, ...], list[Call]] = {}
    for call in calls:
        digest = digest_of(call)
        if digest is None:
            continue
        alike = failed.setdefault((call.protocol, call.endpoint, call.agent, digest), [])
        # The first that failed: where several are sent at once, each is repeated once.
        earlier = next((one for one in alike if one.ended is not None and one.ended <= call.began), None)
        if earlier is not None:
            alike.remove(earlier)
            # Not before its end: the journal would have the attempts of both in both.
            if call.ended is not None:
                call.attempts[:0] = earlier.attempts
                call.started, call.began = earlier.started, earlier.began
                add_attempts(call)
                earlier.steps = []
        if _has_failed(call):
            alike.append(call)


def _has_failed(call: Call) -> bool:
    if not call.steps or any(step.status != "error" for step in call.steps) or not call.attempts:
        return False
    status = call.attempts[-1].status
    return status is None or status in _MAY_BE_RETRIED or status >= 500
