"""Reads the journals of ended processes and makes trajectories of their records, decoded like live calls."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rollout_trace import guard
from rollout_trace._field_docs import document_fields
from rollout_trace.data import costs, user_values
from rollout_trace.data.model import Cost, ErrorInfo, Step, amend
from rollout_trace.data.trajectory import Trajectory, new_trajectory
from rollout_trace.errors import WriteError
from rollout_trace.file import journal as form
from rollout_trace.file import locking
from rollout_trace.file.arrays import share_rows
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import from_parts
from rollout_trace.file.journal import NEW_SUFFIX, SUFFIX, Record
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.plain import dumps
from rollout_trace.file.records import SCHEMA
from rollout_trace.guard import printable
from rollout_trace.record import journal_records
from rollout_trace.record.call import Call
from rollout_trace.record.call_steps import link_tool_runs
from rollout_trace.record.journal_texts import texts_of
from rollout_trace.record.log import StepLog


@dataclass(slots=True, eq=False)
class Pieces:
    """The records of one trajectory, in the order in which they were written. Those of unknown kinds are not used."""

    id: str
    records: list[Record]
    calls: dict[str, list[Record]] = field(default_factory=dict)
    """The records of each call: its parts, its end, and what became known later."""
    damaged: list[tuple[Record, str]] = field(default_factory=list)
    """Those that could not be used, each with the reason."""

    def __post_init__(self) -> None:
        self.records.sort(key=lambda one: at if isinstance(at := one.head.get("at"), (int, float)) else 0.0)
        for record in self.of(form.CALL, form.PART, form.AMEND):
            self.calls.setdefault(str(record.head.get("call")), []).append(record)

    def report(self, record: Record, problem: str) -> None:
        """Notes that a record could not be used."""
        self.damaged.append((record, problem))

    def of(self, *kinds: int) -> list[Record]:
        """The records of these kinds."""
        return [one for one in self.records if one.kind in kinds]

    @property
    def final(self) -> Record | None:
        """What the final steps have beside what their bytes give."""
        return next(iter(self.of(form.FINAL)[-1:]), None)

    @property
    def is_written(self) -> bool:
        """True if the journal itself has it that the output holds the trajectory."""
        return bool(self.of(form.WRITTEN))


def trajectory_of(pieces: Pieces) -> Trajectory:
    """The trajectory. What cannot be used is left out, and is in ``pieces.damaged``."""
    final, heads = pieces.final, pieces.of(form.HEAD)
    trajectory = _fields(pieces, heads, final)
    steps = steps_of(pieces)
    order: dict[str, int] = {}
    if final is not None:
        # What the final steps had beside what their bytes give: rewards, a framework's data.
        by_id = {step.id: step for step in steps}
        for facts in final.head.get("amended") or ():
            amended = by_id.get(str(facts.get("id"))) if isinstance(facts, dict) else None
            try:
                if amended is not None:
                    values = {name: _AMENDED[name](value) for name, value in facts.items() if name in _AMENDED}
                    amend(amended, **values)
            except Exception as error:
                pieces.report(final, f"fields of step {facts['id']}: {guard.describe(error)}")
        order = {name: at for at, name in enumerate(final.head.get("order") or ())}
    if order or pieces.of(form.STEPS):
        steps.sort(key=lambda step: (order.get(step.id, len(order)), _seconds(step.started_at)))
    for at, step in enumerate(steps):
        amend(step, index=at, agent=step.agent if step.agent is not None else trajectory.name)
    trajectory.steps = steps
    if not any(one.head.get("is_closed") for one in heads):
        object.__setattr__(trajectory, "status", "aborted")
    guard.run_all("recover", lambda: costs.fill_provider_costs(steps), lambda: link_tool_runs(trajectory))
    return trajectory


def _seconds(time: datetime | None) -> float:
    return 0.0 if time is None else time.timestamp()


def _fields(pieces: Pieces, heads: list[Record], final: Record | None) -> Trajectory:
    # As the final record has them, where it was needed for that.
    runs = None if final is None else final.head.get("tool_runs")
    if not isinstance(runs, list):
        runs = [record.head.get("run") for record in pieces.of(form.TOOL_RUN)]
    encoded = [dumps(run) for run in runs]
    for record in reversed(heads):
        try:
            return _with_runs(bytes(record.blobs[0]), encoded)
        except (BadLine, IndexError) as error:
            pieces.report(record, f"fields of trajectory {pieces.id}: {error}")
    # No record of its fields is whole: the calls are worth having without them.
    found = _with_runs(dumps({"schema": SCHEMA, "id": pieces.id}), [])
    return new_trajectory({"id": pieces.id, "tool_runs": found.tool_runs})


def _with_runs(head: bytes, runs: list[bytes]) -> Trajectory:
    trajectory = decode(head.rstrip()[:-1] + b',"tool_runs":[' + b",".join(runs) + b"]}")
    trajectory.tool_runs.sort(key=lambda run: _seconds(run.started_at))
    return trajectory


def steps_of(pieces: Pieces, order: Sequence[str] = ()) -> list[Step]:
    """The steps of its calls. What cannot be used is in ``pieces.damaged``.

    ``order``: ids of the calls as they were placed, where that is known: threads may begin them in another order.
    """
    places = {name: at for at, name in enumerate(order)}
    log, calls = StepLog(), {}
    for name, records in pieces.calls.items():
        call = _call(records, pieces)
        if call is not None:
            calls[name] = call
    for call in sorted(calls.values(), key=lambda one: (places.get(one.id, len(places)), one.began)):
        log.add(call)
    steps: dict[str, Step] = {}
    for record, texts in texts_of(pieces.of(form.STEPS)):
        for step in _decoded(record, texts, pieces):
            steps.setdefault(step.id, step)
    # At once: the bytes of the calls that ran at a time are held.
    for call in filled(calls, pieces):
        log.decode(call)
    # Each record has the rows of its own steps.
    share_rows(steps.values())
    # A stream of which only the beginning is there, since its end could not be written; its steps could be, later.
    ended = {name for name, records in pieces.calls.items() if any(one.kind == form.CALL for one in records)}
    later = {step.call_id for step in steps.values()} - ended
    found = [step for step in log.steps() if step.call_id not in later]
    # The steps keep the segments of their ids, with what further prompts would be compared with.
    log.trim()
    return _joined(list(steps.values()), found)


def filled(calls: dict[str, Call], pieces: Pieces) -> Iterator[Call]:
    """Yields calls by id, each with its bytes. Finish with one before taking the next. Faults say what is missing."""
    latest = {name: _latest(pieces.calls[name]) for name in calls}
    parts: dict[str, list[_Texts]] = {name: [] for name in calls}
    for record, texts in texts_of(pieces.of(form.CALL, form.PART)):
        name = str(record.head.get("call"))
        # Not of an attempt that was followed by another.
        if name not in parts or record.head.get("number") != latest[name].head.get("number"):
            continue
        parts[name].append((record, texts))
        if record is latest[name]:
            _fill(calls[name], parts.pop(name), pieces)
            yield calls[name]


def _joined(reported: list[Step], decoded: list[Step]) -> list[Step]:
    """The steps of all calls. One that a framework reported is left out where the bytes of the same call are there."""
    calls = {step.call_id for step in decoded}
    # As live ones are joined: by the provider's id of the answer, where there is one, and one answer has it.
    answers = Counter(step.response_id for step in decoded if step.choice == 0 and step.response_id is not None)
    unseen = [step for step in reported if step.response_id is None or answers[step.response_id] != 1]
    return decoded + [step for step in unseen if step.call_id not in calls]


def _call(records: list[Record], pieces: Pieces) -> Call | None:
    """The call of these records, without its bytes; None where no record has its facts."""
    ends = [one for one in records if one.kind == form.CALL] or [one for one in records if one.kind == form.PART]
    for record in reversed(ends):
        try:
            call = journal_records.call_of(record.head)
            for later in records:
                if later.kind == form.AMEND:
                    call.attempts = journal_records.attempts_of(later.head)
                    journal_records.set_ends(call, later.head)
            if call.ended is None:
                # Its process was killed while the answer came: nothing is known after this record.
                call.ended = float(record.head["at"])
            return call
        except Exception as error:
            pieces.report(record, f"a call that cannot be read: {guard.describe(error)}")
    return None


def _latest(records: list[Record]) -> Record:
    """The record of a call's end; of a call in flight, the last of its parts."""
    return [one for one in records if one.kind in (form.CALL, form.PART)][-1]


_Texts = tuple[Record, list[bytes | None]]


def _fill(call: Call, parts: list[_Texts], pieces: Pieces) -> None:
    """Gives a call its bytes. What is missing of them withholds its tokens: they would not be the model's."""
    latest = parts[-1][0]
    request = next((texts[0] for record, texts in parts if texts and "difference" in record.head), None)
    if request is None and latest.head.get("has_request"):
        call.faults.append("journal: the request is damaged, or the earlier one that it builds on.")
        pieces.report(latest, f"the request of call {call.id} cannot be restored")
    call.request = request if latest.head.get("has_request") else None
    end: Any = 0
    faults: list[str] = []
    for record, texts in parts:
        if len(texts) < 2:
            continue
        start = record.head.get("from")
        if start == 0:
            # The response was written again from its start: drop what came before.
            call.chunks, faults = [], []
        elif start != end:
            faults.append("journal: bytes of the response are damaged.")
            pieces.report(record, f"bytes {end} to {start} of the response of call {call.id} are missing")
        if texts[1] is None:
            faults.append("journal: the response is damaged, or the earlier one that it builds on.")
            pieces.report(record, f"the response of call {call.id} cannot be restored")
        else:
            call.chunks.append(texts[1])
        end = record.head.get("to")
    call.faults += faults


def _decoded(record: Record, texts: list[bytes | None], pieces: Pieces) -> list[Step]:
    whole = [text for text in texts if text is not None]
    if len(whole) < len(texts):
        pieces.report(record, "steps that build on damaged ones")
        return []
    try:
        return decode(from_parts(whole)).steps
    except ValueError as error:  # A BadLine, or another number of parts.
        pieces.report(record, f"steps that cannot be read: {error}")
        return []


# Before two threads can be the first to read them: file/fields.py.
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


# Journals

_CUT = "ends inside a record"
_NAME = re.compile(rf"(?P<process>.+-\d+-[0-9a-f]+)-(?P<number>\d+){re.escape(SUFFIX)}({re.escape(NEW_SUFFIX)})?")
"""Of a journal: host, process and a random number; number of the file."""


@dataclass(eq=False)
class DeadJournal:
    """One journal of a dead process, open and locked."""

    path: Path
    records: list[Record]
    is_damaged: bool = False

    @property
    def pid(self) -> str:
        """Number of its process."""
        match = _NAME.fullmatch(self.path.name)
        return "" if match is None else match["process"].rsplit("-", 2)[1]


def dead_journals(folder: Path, report: RecoveryReport, stack: ExitStack, of: str = "") -> list[DeadJournal]:
    """Opens and reads the journals in a folder, save those to be left alone; the stack keeps them locked.

    ``of``: only those whose names begin so.
    """
    try:
        # By their whole names: a folder of this name may be the user's, with files that are not ours to change.
        found = [one for one in folder.iterdir() if _NAME.fullmatch(one.name) and one.name.startswith(of)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        report.unread.append(UnreadJournal(folder, guard.describe(error)))
        return []
    return [one for path in sorted(found, key=order) if (one := _open(path, report, stack)) is not None]


def order(path: Path) -> tuple[str, int]:
    """The place of a journal's file: those of one process come in the order in which it wrote them."""
    match = _NAME.fullmatch(path.name)
    return (path.name, 0) if match is None else (match["process"], int(match["number"]))


def _open(path: Path, report: RecoveryReport, stack: ExitStack) -> DeadJournal | None:
    try:
        file = stack.enter_context(path.open("rb", buffering=0))
        is_held = locking.lock_open(file.fileno())
        if is_held is False:
            report.live.append(path)
            return None
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return None
        data = stack.enter_context(mapped(file.fileno()))
    except FileNotFoundError:
        # Another recovery, or its own process, has deleted it since.
        return None
    except OSError as error:
        report.unread.append(UnreadJournal(path, f"cannot be read: {guard.describe(error)}"))
        return None
    if path.name.endswith(NEW_SUFFIX):
        # Killed before it wrote anything.
        return DeadJournal(path, [])
    return _read(path, data, report, is_held=is_held is True)


@contextmanager
def mapped(file: int) -> Iterator[Any]:
    """The bytes of an open file."""
    if os.fstat(file).st_size == 0:  # Cannot be mapped.
        yield b""
        return
    data = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    try:
        yield data
    finally:
        try:
            data.close()
        except BufferError:
            # A record is referred to still, in the traceback of an exception: it goes with the last of them.
            pass


def records_in(files: Iterable[int], ids: Collection[str], stack: ExitStack) -> list[Record]:
    """The records of some trajectories in open journals, which the stack keeps mapped."""
    found = (one for file in files for one in form.records(stack.enter_context(mapped(file))))
    return [one for one in found if isinstance(one, Record) and one.head.get("trajectory") in ids]


def _read(path: Path, data: Any, report: RecoveryReport, *, is_held: bool) -> DeadJournal | None:
    journal = DeadJournal(path, [])
    for one in form.records(data):
        if isinstance(one, form.Damage):
            report.damaged.append(DamagedPlace(path, *one))
            # One that was being written when its process was killed: nothing to keep.
            journal.is_damaged = journal.is_damaged or _CUT not in one.problem
        elif one.kind == form.FILE and (reason := _refusal(one.head, is_held=is_held)) is not None:
            if reason:
                report.unread.append(UnreadJournal(path, reason))
            else:
                report.live.append(path)
            return None
        else:
            journal.records.append(one)
    report.journals.append(path)
    return journal


def _refusal(head: dict[str, Any], *, is_held: bool) -> str | None:
    """Returns why a journal must not be read, by its first record: "" if its process may run; None if it may be."""
    version = head.get("format")
    if not isinstance(version, int) or version > form.VERSION:
        return (
            f"written by rollout_trace {head.get('library')} in version {version!r} of the journal's format; this one "
            f"reads versions up to {form.VERSION}. Recover it with a newer version of the library."
        )
    # A lock that we hold shows that its process is dead, unless it could not lock it.
    if (is_held and head.get("is_locked")) or not locking.may_live(head):
        return None
    if head.get("host") == locking.host():
        return ""
    return (
        f"written on the machine {head.get('host')!r} without a lock. Recover it there: only that machine can tell "
        "whether its process still runs"
    )


def pieces_of(journals: list[DeadJournal]) -> tuple[dict[str, Pieces], dict[int, DeadJournal]]:
    """The records of each trajectory, by its id in the journals; and the journal of each record."""
    records: dict[str, list[Record]] = {}
    places: dict[int, DeadJournal] = {}
    for journal in journals:
        for record in journal.records:
            places[id(record)] = journal
            name = record.head.get("trajectory")
            if isinstance(name, str):
                records.setdefault(name, []).append(record)
    return {name: Pieces(name, found) for name, found in records.items()}, places


# The report

_SHOWN = 20


class DamagedPlace(NamedTuple):
    """A place in a journal that could not be used."""

    path: Path
    offset: int
    """Offset in bytes from the beginning of the file."""
    length: int
    problem: str

    def __str__(self) -> str:
        return printable(f"{self.path}, byte {self.offset} ({self.length} bytes): {self.problem}")


class UnreadJournal(NamedTuple):
    """A journal that was not touched."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


@document_fields
@dataclass(slots=True)
class RecoveryReport:
    """What was found in the journals of an output. ``str(report)`` is a readable text."""

    output: Path
    """Path of the output whose journals were read."""
    journals: list[Path] = field(default_factory=list)
    """Journals of ended processes that were read."""
    live: list[Path] = field(default_factory=list)
    """Journals that were not touched because their process is running, or another recovery is reading them."""
    unread: list[UnreadJournal] = field(default_factory=list)
    """Journals that were not touched because they could not be read, or a newer version of this library wrote them."""
    damaged: list[DamagedPlace] = field(default_factory=list)
    """Places in the journals with incomplete records, or with records that could not be used."""
    recovered: list[str] = field(default_factory=list)
    """Ids of the trajectories that were recovered."""
    present: list[str] = field(default_factory=list)
    """Ids of recovered trajectories that the output already has, and that were left out."""
    is_write: bool = False
    """Whether the trajectories were to be appended to the output (``write=True``)."""
    written: list[str] = field(default_factory=list)
    """Ids of trajectories appended to the output; at an address, to a shard of the spool (see ``waiting``)."""
    waiting: dict[Path, int] = field(default_factory=dict)
    """For an address: shards in the spool that could not be uploaded, with the number of ``written`` ids in each."""
    not_written: list[str] = field(default_factory=list)
    """Why the output lacks something, one sentence each. Journals of trajectories that were not appended were kept."""
    kept: list[Path] = field(default_factory=list)
    """Journals with damaged places, which were renamed instead of deleted."""
    bytes_cut: int = 0
    """Bytes of partial lines, left by killed writers, that were removed from the end of the output or its shards."""
    spooled: list[Path] = field(default_factory=list)
    """For an address, without ``write``: shards of ended processes that wait to be uploaded."""
    uploaded: list[str] = field(default_factory=list)
    """For an address: names of the shards that were uploaded."""

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Notes a failure to read or write the output, and continues."""
        try:
            yield
        except (OSError, WriteError) as error:
            self.not_written.append(f"{what}: {guard.describe(error)}")

    @property
    def is_clean(self) -> bool:
        """Whether nothing was damaged or left unread, and everything could be written."""
        return not (self.damaged or self.unread or self.not_written)

    def __str__(self) -> str:
        lines = [f"{_count(len(self.recovered), 'trajectory', 'trajectories')} recovered from "
                 f"{_count(len(self.journals), 'journal', 'journals')} of {printable(str(self.output))}"]  # fmt: skip
        if self.present:
            lines.append(f"{len(self.present)} left out: the output has them already")
        if self.is_write:
            lines.append(f"{len(self.written) - sum(self.waiting.values())} appended to the output")
            lines += [
                f"{_count(count, 'trajectory is', 'trajectories are')} in {printable(str(path))}, which could not be "
                "uploaded; recovering again with write=True (--write) uploads it"
                for path, count in self.waiting.items()
                if count
            ]
        elif self.recovered:
            lines.append("nothing was written; write=True (--write) appends them and deletes the journals")
        if self.spooled:
            lines.append(f"{_count(len(self.spooled), 'shard', 'shards')} not uploaded; write=True (--write) does it")
        if self.uploaded:
            lines.append(f"{_count(len(self.uploaded), 'shard', 'shards')} uploaded")
        if self.bytes_cut:
            lines.append(f"{self.bytes_cut} bytes of a partial line were removed from the end of the output")
        for title, items in (
            ("not in the output", self.not_written),
            ("left alone, because their processes still run", self.live),
            ("left alone", self.unread),
            ("damaged", self.damaged),
            ("kept, because they have damaged places", self.kept),
        ):
            if items:
                lines.append(f"{title}: {len(items)}")
                lines += [f"  {printable(str(item))}" for item in items[:_SHOWN]]
                lines += [f"  and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
        return "\n".join(lines)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
