"""Makes trajectories of the records of a journal; calls are decoded by the same code as live ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout_trace import guard
from rollout_trace.data import costs, user_values
from rollout_trace.data.model import Cost, ErrorInfo, Step, amend
from rollout_trace.data.trajectory import Trajectory, new_trajectory
from rollout_trace.file import journal as form
from rollout_trace.file.arrays import share_rows
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import PARTS, from_parts
from rollout_trace.file.journal import Record
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.plain import Difference, dumps
from rollout_trace.file.records import SCHEMA
from rollout_trace.record import journal_calls
from rollout_trace.record.call import Call
from rollout_trace.record.log import StepLog
from rollout_trace.record.tool_links import link_tool_runs

Report = Callable[[Record, str], None]
"""Takes a record that could not be used, and the reason."""


@dataclass(slots=True, eq=False)
class Pieces:
    """The records of one trajectory, in the order in which they were written."""

    id: str
    heads: list[Record] = field(default_factory=list)
    calls: dict[str, list[Record]] = field(default_factory=dict)
    """The records of each call: its parts, its end, and what became known later."""
    steps: list[Record] = field(default_factory=list)
    runs: list[Record] = field(default_factory=list)
    final: Record | None = None
    """What the final steps have beside what their bytes give."""
    is_written: bool = False
    """True if the journal itself has it that the output holds the trajectory."""

    @property
    def first(self) -> Record:
        """One of its records, for messages."""
        calls = [one for records in self.calls.values() for one in records]
        return next(iter([*self.heads, *calls, *self.steps, *self.runs, *([self.final] if self.final else [])]))

    def add(self, record: Record) -> None:
        """Adds a record; ignores one of a kind that this version does not know."""
        if record.kind == form.HEAD:
            self.heads.append(record)
        elif record.kind in (form.CALL, form.PART, form.AMEND):
            self.calls.setdefault(str(record.head.get("call")), []).append(record)
        elif record.kind == form.STEPS:
            self.steps.append(record)
        elif record.kind == form.FINAL:
            self.final = record
        elif record.kind == form.TOOL_RUN:
            self.runs.append(record)
        elif record.kind == form.WRITTEN:
            self.is_written = True


def trajectory_of(pieces: Pieces, report: Report) -> Trajectory:
    """The trajectory. What cannot be used is left out and reported."""
    trajectory = _fields(pieces, report)
    steps = _steps(pieces, report)
    order: dict[str, int] = {}
    if pieces.final is not None:
        _set_amended(steps, pieces.final, report)
        order = {name: at for at, name in enumerate(pieces.final.head.get("order") or ())}
    if order or pieces.steps:
        steps.sort(key=lambda step: (order.get(step.id, len(order)), _start(step)))
    for at, step in enumerate(steps):
        amend(step, index=at, agent=step.agent if step.agent is not None else trajectory.name)
    trajectory.steps = steps
    if not any(one.head.get("is_closed") for one in pieces.heads):
        object.__setattr__(trajectory, "status", "aborted")
    guard.run_all("recover", lambda: costs.fill_provider_costs(steps), lambda: link_tool_runs(trajectory))
    return trajectory


def _start(step: Step) -> float:
    return 0.0 if step.started_at is None else step.started_at.timestamp()


def _fields(pieces: Pieces, report: Report) -> Trajectory:
    runs = [dumps(run) for run in _runs(pieces)]
    for record in reversed(pieces.heads):
        try:
            head = bytes(record.blobs[0])
            return _with_runs(head, runs)
        except (BadLine, IndexError) as error:
            report(record, f"fields of trajectory {pieces.id}: {error}")
    # No record of its fields is whole: the calls are worth having without them.
    found = _with_runs(dumps({"schema": SCHEMA, "id": pieces.id}), [])
    return new_trajectory({"id": pieces.id, "tool_runs": found.tool_runs})


def _runs(pieces: Pieces) -> list[Any]:
    """The tool runs: as the final record has them, where it was needed for that."""
    all_of_them = None if pieces.final is None else pieces.final.head.get("tool_runs")
    return all_of_them if isinstance(all_of_them, list) else [record.head.get("run") for record in pieces.runs]


def _with_runs(head: bytes, runs: list[bytes]) -> Trajectory:
    trajectory = decode(head.rstrip()[:-1] + b',"tool_runs":[' + b",".join(runs) + b"]}")
    trajectory.tool_runs.sort(key=lambda run: 0.0 if run.started_at is None else run.started_at.timestamp())
    return trajectory


def _steps(pieces: Pieces, report: Report) -> list[Step]:
    log, calls = StepLog(), {}
    for name, records in pieces.calls.items():
        call = _call(records, report)
        if call is not None:
            calls[name] = call
    for call in sorted(calls.values(), key=lambda one: one.began):
        log.admit(call)
    steps: dict[str, Step] = {}
    for record, texts in _texts(pieces, report):
        if record.kind == form.STEPS:
            for step in _decoded(record, texts, report):
                steps.setdefault(step.id, step)
            continue
        name = str(record.head.get("call"))
        # Not the request of an attempt that was followed by another.
        if name in calls and record.head.get("number") == _latest(pieces.calls[name]).head.get("number"):
            call = calls.pop(name)
            _fill(call, texts[0], pieces.calls[name], report)
            # At once: the bytes of one call are held at a time.
            log.settle(call)
    for call in calls.values():
        _fill(call, None, pieces.calls[call.id], report)
        log.settle(call)
    # Each record has the rows of its own steps.
    share_rows(steps.values())
    # A stream of which only the beginning is there, since its end could not be written; its steps could be, later.
    ended = {name for name, records in pieces.calls.items() if any(one.kind == form.CALL for one in records)}
    later = {step.call_id for step in steps.values()} - ended
    return _joined(list(steps.values()), [step for step in log.steps() if step.call_id not in later])


def _joined(reported: list[Step], decoded: list[Step]) -> list[Step]:
    """The steps of all calls. One that a framework reported is left out where the bytes of the same call are there."""
    calls = {step.call_id for step in decoded}
    # As live ones are joined: by the provider's id of the answer, where there is one, and one answer has it.
    answers = Counter(step.response_id for step in decoded if step.choice == 0 and step.response_id is not None)
    return decoded + [
        step
        for step in reported
        if step.call_id not in calls and (step.response_id is None or answers[step.response_id] != 1)
    ]


def _call(records: list[Record], report: Report) -> Call | None:
    """The call of these records, without its bytes; None where no record has its facts."""
    ends = [one for one in records if one.kind == form.CALL] or [one for one in records if one.kind == form.PART]
    for record in reversed(ends):
        try:
            call = journal_calls.call_of(record.head)
            for later in records:
                if later.kind == form.AMEND:
                    call.attempts = journal_calls.attempts_of(later.head)
                    journal_calls.set_ends(call, later.head)
            if call.ended is None:
                # Its process was killed while the answer came: nothing is known after this record.
                call.ended = float(record.head["at"])
            return call
        except Exception as error:
            report(record, f"a call that cannot be read: {guard.describe(error)}")
    return None


def _latest(records: list[Record]) -> Record:
    """The record of a call's end; of a call in flight, the last of its parts."""
    return [one for one in records if one.kind in (form.CALL, form.PART)][-1]


def _fill(call: Call, request: bytes | None, records: list[Record], report: Report) -> None:
    """Gives a call its bytes. What is missing of them withholds its tokens: they would not be the model's."""
    latest = _latest(records)
    if request is None and latest.head.get("has_request"):
        call.faults.append("journal: the request is damaged, or the one that it was written as a difference of.")
        report(latest, f"the request of call {call.id} cannot be restored")
    call.request = request if latest.head.get("has_request") else None
    number: Any = latest.head.get("number")
    end: Any = 0
    for record in records:
        if record.kind == form.AMEND or record.head.get("number") != number or len(record.blobs) < 2:
            continue
        start = record.head.get("from")
        if start == 0:
            # Also where it was written anew from its beginning.
            call.chunks = []
        elif start != end:
            call.faults.append("journal: bytes of the response are damaged.")
            report(record, f"bytes {end} to {start} of the response of call {call.id} are missing")
        call.chunks.append(bytes(record.blobs[1]))
        end = record.head.get("to")


def _texts(pieces: Pieces, report: Report) -> Iterator[tuple[Record, list[bytes | None]]]:
    """The records that others are differences of, with their texts, by number: each base comes before what needs it."""
    numbered: dict[int, Record] = {}
    for record in (*(one for records in pieces.calls.values() for one in records), *pieces.steps):
        number = record.head.get("number")
        if isinstance(number, int) and ("difference" in record.head or record.kind == form.STEPS):
            numbered.setdefault(number, record)
    # How often each text is still needed: it is dropped with the last record that needs it.
    needed = Counter((one[0], kind) for record in numbered.values() for kind, one in _references(record) if one)
    kept: dict[tuple[int, int], bytes] = {}
    for number in sorted(numbered):
        record = numbered[number]
        texts = []
        for (kind, reference), blob in zip(_references(record), record.blobs, strict=False):
            text = _text(reference, kind, bytes(blob), kept, needed)
            if text is not None and needed[number, kind]:
                kept[number, kind] = text
            texts.append(text)
        yield record, texts or [None]


def _references(record: Record) -> list[tuple[int, Any]]:
    if record.kind != form.STEPS:
        return [(0, record.head.get("difference"))]
    return list(enumerate(record.head.get("differences") or [None] * len(PARTS), 1))


def _text(
    reference: Any, kind: int, middle: bytes, kept: dict[tuple[int, int], bytes], needed: Counter[tuple[int, int]]
) -> bytes | None:
    """The whole text; None where its base is missing."""
    if not reference:
        return middle
    number, prefix, suffix = reference
    base = kept.get((number, kind))
    needed[number, kind] -= 1
    if not needed[number, kind]:
        kept.pop((number, kind), None)
    try:
        return None if base is None else Difference(prefix, suffix, middle).apply(base)
    except (ValueError, TypeError):
        return None


def _decoded(record: Record, texts: list[bytes | None], report: Report) -> list[Step]:
    whole = [text for text in texts if text is not None]
    if len(whole) != len(texts):
        report(record, "steps that were written as a difference of ones that are damaged")
        return []
    try:
        return decode(from_parts(whole)).steps
    except ValueError as error:  # A BadLine, or another number of parts.
        report(record, f"steps that cannot be read: {error}")
        return []


# Before two threads can be the first to read them: file/step_json.py.
msgspec.json.Decoder(tuple[Cost, ErrorInfo])
_AMENDED: dict[str, Callable[[Any], Any]] = {
    "reward": lambda value: user_values.finite_number(value, "reward"),
    "advantage": lambda value: user_values.advantage(value, "advantage"),
    "metadata": dict,
    "cost": lambda value: msgspec.convert(value, Cost),
    "policy_version": lambda value: value,
    "trainable": bool,
    "status": str,
    "error": lambda value: msgspec.convert(value, ErrorInfo),
    "agent": str,
}


def _set_amended(steps: list[Step], final: Record, report: Report) -> None:
    """Sets what the final steps had beside what their bytes give: rewards, a framework's data."""
    by_id = {step.id: step for step in steps}
    for facts in final.head.get("amended") or ():
        step = by_id.get(str(facts.get("id"))) if isinstance(facts, dict) else None
        if step is not None:
            try:
                amend(step, **{name: _AMENDED[name](value) for name, value in facts.items() if name in _AMENDED})
            except Exception as error:
                report(final, f"fields of step {step.id}: {guard.describe(error)}")
