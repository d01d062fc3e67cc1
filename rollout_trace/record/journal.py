"""The journal of a recording: what its unfinished trajectories hold so far, on disk as soon as it is known.

Any thread may call it, and the garbage collector, which ends calls: there are no locks, and nothing is decoded here.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, wraps
from hashlib import blake2b
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec
from weakref import ref

import orjson

from rollout_trace import guard
from rollout_trace.credentials import cut_bytes
from rollout_trace.data.model import Step, ToolRun
from rollout_trace.data.redact import redacted_steps
from rollout_trace.data.trajectory import (
    TRAJECTORY_FIELDS,
    Trajectory,
    environment_so_far,
    knows_environment,
    new_trajectory,
)
from rollout_trace.file import journal as form
from rollout_trace.file.encode import in_parts
from rollout_trace.file.fields import tool_run_json, trajectory_json
from rollout_trace.file.journal import JournalFiles, Pin
from rollout_trace.file.plain import dumps
from rollout_trace.record import call as call_module
from rollout_trace.record import decoder, journal_records
from rollout_trace.record.call_steps import recorded_steps
from rollout_trace.record.journal_texts import ANSWER, Bases
from rollout_trace.wire.steps import Stores

if TYPE_CHECKING:
    from rollout_trace.record.call import Call
    from rollout_trace.record.redaction import Redactor

_HEAD_FIELDS = [name for name in TRAJECTORY_FIELDS if name not in ("steps", "tool_runs", "environment")]
_values_of = attrgetter(*_HEAD_FIELDS)
# What a record is told from another one by: kept whole, it would take as much memory as the trajectory.
_digest = partial(blake2b, digest_size=16)
_REWRITTEN = 1 << 20
"""Most bytes of a stream in flight that are written again where what was written has changed since."""


class Journal:
    """The journal beside the output of one recording.

    Args:
        output: path of the recording's file; the journal is the folder ``<output>.journal``.
        mode: permission bits of its files.
        redactor: the user's rules for what is not to be written. Keys of this process's clients never are.
    """

    def __init__(
        self, output: str | os.PathLike[str], *, mode: int | None = None, redactor: Redactor | None = None
    ) -> None:
        self.files = JournalFiles(output, mode)
        self.redactor = redactor if redactor is not None and redactor.has_rules else None
        """Where texts are changed by rules: only decoded and changed steps may be written then, no raw bytes."""
        self.is_closed = False
        self.waiting: deque[tuple[TrajectoryJournal, Call]] = deque()
        """Calls to decode and redact before they can be written: ``write_waiting`` does it."""
        self.wake: Callable[[], object] | None = None
        """Has the recording's thread call ``write_waiting``, if set. The garbage collector may be its caller."""

    @property
    def path(self) -> Path:
        """The folder with its files."""
        return self.files.folder

    def trajectory(self, trajectory: Trajectory) -> TrajectoryJournal:
        """The part of one trajectory. Writes nothing yet."""
        return TrajectoryJournal(self, trajectory)

    def decode_later(self, of: TrajectoryJournal, calls: list[Call]) -> None:
        """Queues calls for ``write_waiting``. Takes no lock, because the garbage collector may call it."""
        self.waiting.extend((of, call) for call in calls)
        decoder.deferred.append(self.write_waiting)
        if self.wake is not None:
            self.wake()

    def write_waiting(self) -> None:
        """Writes the calls that wait to be redacted. Decodes them: not for finalizers. Never raises."""
        while self.waiting:
            try:
                of, call = self.waiting.popleft()
            except IndexError:
                return
            of.redacted_call(call)

    def close(self) -> None:
        """Ends the journal: deletes what is not needed, and leaves the rest for ``recover``.

        Records of trajectories that have not been written stay: they hold what the output lacks.
        """
        guard.run_all("journal", self.write_waiting, self.files.close)
        self.is_closed = True


class _Progress(NamedTuple):
    """The part of a call in progress that the journal already has."""

    epoch: int
    number: int
    """Of the record with its request."""
    attempt: int
    chunks: int
    size: int
    """Bytes of those chunks."""
    last: bytes
    """The last of those chunks."""


P = ParamSpec("P")


def _safely(
    write: Callable[Concatenate[TrajectoryJournal, P], None],
) -> Callable[Concatenate[TrajectoryJournal, P], None]:
    """Makes a method do nothing after the trajectory's line is written, and in a fork; failures are only logged."""

    @wraps(write)
    def safe(self: TrajectoryJournal, /, *args: P.args, **kwargs: P.kwargs) -> None:
        # As `_is_ours`, without its call: this is on the path of every call.
        if self._is_done or self._journal.is_closed or self._generation != self._journal.files.generation:
            return
        try:
            write(self, *args, **kwargs)
        except Exception as error:
            # Not put on the call: its bytes and tokens are as good as before.
            guard.failed("journal", None, error)

    return safe


class TrajectoryJournal:
    """One trajectory's part of the journal. No method waits for a lock, or raises, except under pytest."""

    __slots__ = ("__weakref__", "_bases", "_calls", "_earlier", "_epoch", "_generation", "_has_keys", "_has_steps",
                 "_head", "_is_closed", "_is_done", "_is_whole", "_journal", "_missed", "_missed_runs", "_mutable",
                 "_numbers", "_pin", "_runs", "_stores", "_trajectory", "has_fields", "id")  # fmt: skip

    def __init__(self, journal: Journal, trajectory: Trajectory) -> None:
        self._journal = journal
        self._trajectory = ref(trajectory)
        self.id = trajectory.id
        """The trajectory's id in the journal: that of its opening."""
        self._generation = journal.files.generation
        self._pin = Pin()
        self._numbers = count()
        self._bases = Bases()
        self._epoch = journal.files.epoch
        self._head: bytes | None = None
        """Digest of its public fields as they were written last; None before its first record."""
        self._mutable: bytes = b""
        """The same of those that can be changed in place."""
        self._calls: set[str] = set()
        """Ids of the calls that are written."""
        self._missed: list[Call] = []
        """Calls that could not be written when they ended."""
        self._missed_runs: list[Any] = []
        """The same of tool runs, as they are to be written."""
        self._runs = 0
        """Number of tool runs that are written."""
        self._is_closed = False
        """Whether the fields that it closed with are written."""
        self.has_fields = False
        """Whether the journal has all fields that it closed with, but for steps and tool runs."""
        self._is_whole = False
        self._earlier: list[Step] = []
        """With redaction by rules, the steps before: they are decoded here, in storage of their own."""
        self._stores = Stores()
        self._is_done = False
        self._has_keys = False
        """Whether a request had a key of this process's clients."""
        self._has_steps = False
        """Whether some of its calls are written as steps, without their bytes."""

    @property
    def has_records(self) -> bool:
        """Whether anything of the trajectory was written, and may be there still."""
        return self._head is not None and not self._is_done

    @property
    def is_whole(self) -> bool:
        """Whether all of the completed trajectory is in the journal. Not to be asked once the journal is closed."""
        return self._is_whole and self._is_ours and self._journal.files.has(self._pin)

    def has_bytes_of(self, calls: Sequence[Call]) -> bool:
        """Whether the bytes of all these calls are in the journal, and no steps that do not come from them."""
        return (
            self._is_ours
            and not (self._has_steps or self._missed)
            and self._epoch == self._journal.files.epoch
            and all(call.id in self._calls for call in calls)
            and self._journal.files.has(self._pin)
        )

    @property
    def files(self) -> list[form.JournalFile]:
        """Returns the files that have records of the trajectory."""
        return list(self._pin.files)

    @property
    def paths(self) -> list[Path]:
        """Their paths."""
        return [file.path for file in self.files]

    @property
    def _is_ours(self) -> bool:
        # A fork of the process has neither its trajectories nor its files.
        journal = self._journal
        return not (self._is_done or journal.is_closed) and self._generation == journal.files.generation

    @_safely
    def call_received(self, call: Call) -> None:
        """Writes what arrived of a stream since the last time. Call it about once a second (``call.journal_due``)."""
        call.journal_due = time.perf_counter() + call_module.JOURNAL_SECONDS
        if not self._must_be_decoded(call, call.request):
            self._fields_in_place()
            chunks, progress = list(call.chunks), call.journal_progress
            call.journal_progress = self._exchange(form.PART, call, call.request, chunks, progress)

    @_safely
    def call_ended(self, call: Call) -> None:
        """Writes a call that has ended."""
        request, chunks, progress = call.request, call.chunks, call.journal_progress
        if self._must_be_decoded(call, request):
            # Decoding may take locks, and rules are the user's code: later, where both may run.
            self._journal.decode_later(self, [call])
            return
        if call.steps is not None:
            # Another thread has decoded it meanwhile, and dropped the bytes.
            self._redacted(call.steps)
        else:
            self._fields_in_place()
            self._exchange(form.CALL, call, request, chunks, progress)
        call.journal_progress = None
        self._note_missed(call)

    @_safely
    def call_amended(self, call: Call) -> None:
        """Writes how a call failed, where that became known after its end."""
        # With rules the call is written as steps, and the message of an exception may hold what they remove.
        if self._head is not None and self._journal.redactor is None:
            attempts = journal_records.head_of(call)["attempts"]
            self._write(form.AMEND, {"call": call.id, "attempts": attempts, **journal_records.ends_of(call)})

    @_safely
    def redacted_call(self, call: Call) -> None:
        """Writes the redacted steps of a call that has ended. Decodes it: not for finalizers."""
        # The bytes may be dropped at any time, but never before the steps are there.
        copy = journal_records.copy_of(call)
        steps = call.steps
        self._redacted(recorded_steps(copy, self._stores) if steps is None else steps)
        self._note_missed(call)

    @_safely
    def steps(self, steps: list[Step]) -> None:
        """Writes framework-reported steps, redacted if configured."""
        self._redacted(steps)

    @_safely
    def was_set(self, name: str, value: Any) -> None:
        """Writes the trajectory's fields, if one of them has changed."""
        if name not in ("steps", "tool_runs"):
            self._fields()

    @_safely
    def tool_run(self, run: ToolRun) -> None:
        """Writes a tool run that has ended."""
        self._fields_in_place()
        redactor = self._journal.redactor
        if redactor is not None:
            run = redactor.apply(Trajectory(id=self.id, tool_runs=[run])).tool_runs[0]
        runs, self._missed_runs = [*self._missed_runs, tool_run_json(run)], []
        for one in runs:
            if self._write(form.TOOL_RUN, {"run": orjson.Fragment(one)}):
                self._runs += 1
            else:
                self._missed_runs.append(one)

    @_safely
    def closed(self, trajectory: Trajectory) -> None:
        """Writes the fields that the trajectory closed with. Reads no steps, which would decode its calls."""
        is_whole = knows_environment(trajectory)
        # Also where it is the first record: an agent may fail before its first call.
        self._fields({"is_closed": True})
        self.has_fields = is_whole and self._is_closed

    @_safely
    def completed(self, trajectory: Trajectory) -> None:
        """Writes what the steps have beside what their calls' bytes give: rewards, a framework's data, its own steps.

        To be called when they are final, before the line is written; with redaction, with the redacted trajectory.
        """
        self._journal.write_waiting()
        for _ in range(2):
            self._forget_lost()
            self._is_whole = self._final(trajectory)
            if self._epoch == self._journal.files.epoch:
                break
            # Only now it was seen that files are lost: once more, whole.
        # What only further calls would need: the line may be written much later.
        self._earlier, self._stores = [], Stores()
        self._bases.clear()

    @_safely
    def written(self) -> None:
        """Deletes the files that only this trajectory needed, since its line is in the output."""
        self._is_done = True
        self._bases.clear()
        self._missed, self._missed_runs = [], []
        self._release()

    # Records

    def _note_missed(self, call: Call) -> None:
        """Keeps a call that could not be written until the next one is."""
        if call.id not in self._calls:
            self._missed.append(call)
        elif self._missed:
            # There is room again. By their steps: their bytes may have been dropped.
            missed, self._missed = self._missed, []
            self._journal.decode_later(self, missed)

    def _must_be_decoded(self, call: Call, request: bytes | None) -> bool:
        """Whether its bytes may hold what must not be written, where a search of the bytes would not find it."""
        # A model that was sent a key may repeat it, in the pieces of a stream, and later too: the server may keep the
        # conversation. A compressed error may name one.
        self._has_keys = self._has_keys or (request is not None and cut_bytes(request) is not request)
        return (
            self._journal.redactor is not None
            or self._has_keys
            or bool(call.attempts and (call.attempts[-1].status or 0) >= 400 and call.encoding is not None)
        )

    def _exchange(
        self, kind: int, call: Call, request: bytes | None, chunks: list[bytes], progress: object
    ) -> _Progress | None:
        """Writes a call, without what the journal has of it already; returns what it has now."""
        has = progress if isinstance(progress, _Progress) else None
        # Not built upon if the call has been sent again since, or the journal's files were lost.
        if has is not None and (has.attempt, has.epoch) != (len(call.attempts), self._epoch):
            has = None
        start = 0 if has is None else has.chunks
        # Heartbeats are removed from chunks that were written: then they are written anew.
        if start > len(chunks) or (start and has is not None and chunks[start - 1] is not has.last):
            start = 0
        if kind == form.PART and has is not None and not start and has.size > _REWRITTEN:
            return has
        head = journal_records.head_of(call)
        # Another thread may have decoded the call meanwhile, and dropped its bytes.
        head["has_request"] = request is not None
        # Without keys, or the call would be written as steps: `_must_be_decoded`.
        body = request or b""
        part = None if has is not None else self._bases.difference(body)
        number = next(self._numbers) if has is None else has.number
        new = b"".join(chunks[start:])
        before = has.size if start and has is not None else 0
        # In the bytes as they came: what is cut out of them changes their number.
        head["number"], head["from"], head["to"] = number, before, before + len(new)
        if part is not None:
            head["difference"] = part.reference
        answer = cut_bytes(new)
        repeats = self._bases.difference(answer, ANSWER)
        if repeats.is_base:
            head["answer"], head["repeats"] = next(self._numbers), repeats.reference
        if not self._write(kind, head, [b"" if part is None else part.middle, repeats.middle]):
            return has
        if part is not None:
            self._bases.add(number, body, part)
        if repeats.is_base:
            self._bases.add(head["answer"], answer, repeats, ANSWER)
        if kind == form.CALL:
            self._calls.add(call.id)
            return None
        last = chunks[-1] if chunks else b""
        return _Progress(self._epoch, number, len(call.attempts), len(chunks), before + len(new), last)

    def _redacted(self, steps: list[Step]) -> None:
        redactor = self._journal.redactor
        if redactor is None:
            changed = redacted_steps(steps, None)
        else:
            # Whether a prompt of ids alone repeats a text that was changed is seen by the steps before it.
            self._earlier += steps
            is_ids = any(step.messages is None for step in steps)
            changed = redactor.apply_steps(self._earlier if is_ids else steps)
        self._redacted_steps(changed[len(changed) - len(steps) :])

    def _redacted_steps(self, steps: list[Step]) -> None:
        if not steps:
            return
        self._has_steps = True
        self._fields_in_place()
        parts = in_parts(steps)
        differences = [self._bases.difference(part, kind) for kind, part in enumerate(parts, 1)]
        number = next(self._numbers)
        head = {"number": number, "differences": [one.reference for one in differences]}
        if self._write(form.STEPS, head, [one.middle for one in differences]):
            for kind, (part, one) in enumerate(zip(parts, differences, strict=True), 1):
                self._bases.add(number, part, one, kind)
            self._calls.update(step.call_id for step in steps)

    def _final(self, trajectory: Trajectory) -> bool:
        """Writes what the journal lacks of a completed trajectory; False where some of it could not be written."""
        steps, runs = trajectory.steps, trajectory.tool_runs
        self._redacted_steps([step for step in steps if step.call_id not in self._calls])
        # Its environment is complete only now; redacted, as it is given here.
        record = trajectory_json(trajectory)
        digest = _digest(record).digest()
        if (digest != self._head or not self._is_closed) and not self._write(
            form.HEAD, {"is_closed": True}, [cut_bytes(record)]
        ):
            return False
        self._head, self._is_closed = digest, True
        amended = [_amended(step, trajectory) for step in steps]
        final: dict[str, Any] = {"amended": list(filter(None, amended))}
        if self._runs != len(runs):
            final["tool_runs"] = [orjson.Fragment(tool_run_json(run)) for run in runs]
        is_written = self._write(form.FINAL, {**final, "order": [step.id for step in steps]})
        return is_written and all(step.call_id in self._calls for step in steps)

    def _release(self) -> None:
        self._journal.files.release(self._pin, form.pack(form.WRITTEN, dumps({"trajectory": self.id})))

    def _fields_in_place(self) -> None:
        """Like ``_fields``, if no field was set: looks only at values that can change in place."""
        trajectory = self._trajectory()
        if trajectory is None or (
            self._head is not None
            and self._epoch == self._journal.files.epoch
            and self._mutable == _in_place(trajectory)
        ):
            return
        self._fields()

    def _fields(self, more: dict[str, Any] | None = None) -> None:
        """Writes the trajectory's fields where they have not been, or have changed since; or with ``more``."""
        trajectory = self._trajectory()
        self._forget_lost()
        if trajectory is None:
            return
        mutable, record = _in_place(trajectory), self._record(trajectory)
        digest = _digest(record).digest()
        if (digest != self._head or more) and self._write(form.HEAD, more or {}, [cut_bytes(record)]):
            self._head, self._mutable, self._is_closed = digest, mutable, bool(more)

    def _forget_lost(self) -> None:
        """After files were lost: nothing refers to their contents any more, and ``completed`` writes them again."""
        if self._epoch != self._journal.files.epoch:
            self._epoch = self._journal.files.epoch
            self._journal.files.forget_deleted(self._pin)
            self._bases.clear()
            self._calls.clear()
            self._head, self._runs, self._is_closed = None, 0, False
            self._missed_runs = []

    def _record(self, trajectory: Trajectory) -> bytes:
        values = dict(zip(_HEAD_FIELDS, _values_of(trajectory), strict=True))
        # Not the field itself, which would be collected now, on the path of a call.
        copy = new_trajectory({**values, "environment": environment_so_far(trajectory)})
        redactor = self._journal.redactor
        return trajectory_json(copy if redactor is None else redactor.apply(copy))

    def _write(self, kind: int, head: dict[str, Any], blobs: list[bytes] | tuple[bytes, ...] = ()) -> bool:
        # By the time records are put in order: of two files that threads begin at once, either may be written to first.
        head["trajectory"], head["at"] = self.id, time.perf_counter()
        is_written = self._journal.files.append(form.pack(kind, cut_bytes(dumps(head)), blobs), self._pin)
        if self._is_done:
            # Finished by another thread meanwhile.
            self._release()
        return is_written


def _in_place(trajectory: Trajectory) -> bytes:
    metadata, rewards, metrics = trajectory.metadata, trajectory.rewards, trajectory.metrics
    return _digest(dumps((metadata, rewards, metrics))).digest() if metadata or rewards or metrics else b""


def _amended(step: Step, trajectory: Trajectory) -> dict[str, Any] | None:
    """Returns what a step has besides what its bytes give; None if that is nothing."""
    facts: dict[str, Any] = {
        name: value
        for name in ("reward", "advantage", "metadata", "cost", "policy_version", "error")
        if (value := getattr(step, name)) is not None
    }
    if not step.trainable:
        facts["trainable"] = False
    if step.status != "ok":
        facts["status"] = step.status
    if step.agent is not None and step.agent != trajectory.name:
        facts["agent"] = step.agent
    return {"id": step.id, **facts} if facts else None
