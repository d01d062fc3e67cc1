"""``rt.recover``: the trajectories that dead processes left in the journals of an output."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rollout_trace import guard
from rollout_trace.data import episodes
from rollout_trace.data.episodes import Attempts
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief
from rollout_trace.errors import WriteError
from rollout_trace.file import journal as form
from rollout_trace.file import locking
from rollout_trace.file.addresses import file_system, is_address, to_local
from rollout_trace.file.annotate import attempts_in, leave_out
from rollout_trace.file.journal import NEW_SUFFIX, SUFFIX, folder_of
from rollout_trace.file.shards import check_address
from rollout_trace.file.shards_upload import spool_of
from rollout_trace.record.recovered import Pieces, trajectory_of
from rollout_trace.record.recovery_output import (
    DamagedPlace,
    FolderOutput,
    Output,
    RecoveryReport,
    SpooledOutput,
    UnreadJournal,
    output_at,
)

DAMAGED_SUFFIX = ".damaged"
_CUT = "ends inside a record"
_NAME = re.compile(rf"(?P<process>.+-\d+-[0-9a-f]+)-(?P<number>\d+){re.escape(SUFFIX)}({re.escape(NEW_SUFFIX)})?")
"""Of a journal: host, process and a random number; number of the file."""


class Recovered(list[Trajectory]):
    """The recovered trajectories, in the order in which they began."""

    def __init__(self, trajectories: Iterable[Trajectory], report: RecoveryReport) -> None:
        super().__init__(trajectories)
        self.report = report
        """What was found and done; ``str(report)`` is a text to read."""


def recover(
    path: str | os.PathLike[str], *, write: bool = False, spool: str | os.PathLike[str] | None = None
) -> Recovered:
    """The trajectories that dead processes did not get to write, from the journal beside an output.

    One that had not closed has the status ``aborted``, and the calls that had ended. A stream that was arriving is
    ``abandoned``, with what had come of it. Trajectories that the output has already are left out: recovering twice is
    the same as once. Journals of processes that run are left alone.

    Of a folder of shards, the journal is in it; the trajectories are written to a shard of their own. Of an address,
    journal and spool are on the machine where the processes ran; shards that these did not get to upload are uploaded.

    Args:
        path: the output: a file, a folder of shards, or an address. Or its journal, the folder ``<output>.journal``.
        write: appends the trajectories to the output and deletes the journals. At an address, uploads the shards that
            dead processes left.
        spool: of an address, as for ``rt.recording``.

    Returns:
        A list of the trajectories. Its ``report`` names what was read, left alone, damaged or not written.

    Raises:
        TypeError: ``path`` is not a path.
        ValueError: ``path`` is empty.
        OSError: the output exists and cannot be read: what it has already is not known. Or it is a folder of outputs.
        ImportError: the output is compressed with zstd and the package zstandard is not installed, or one is missing
            that opens the address.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f'expected the path of an output, such as "rollouts.jsonl", got {brief(path)}.')
    if not os.fspath(path):
        raise ValueError("expected the path of an output, such as \"rollouts.jsonl\", got ''.")
    output = _output(path, spool)
    report = RecoveryReport(output.place, is_write=write)
    with ExitStack() as stack:
        # Locked until the end: another recovery meanwhile leaves them alone, and then finds the output complete.
        journals = [one for file in _files(folder_of(output.place), report) if (one := _open(file, report, stack))]
        trajectories = _trajectories(journals, output, report)
        report.recovered = [one.id for one in trajectories]
        thrown = _thrown(trajectories, output)
        episodes.mark_recovered(trajectories, thrown)
        if write:
            _write(trajectories, journals, output, report)
            _delete(journals, report)
            _leave_out(thrown, output, report)
        for journal in journals:
            # They are views of the files, which could not be closed and unlocked.
            journal.records.clear()
    # When the journals are gone: a shard that is uploaded is not looked into by the next recovery.
    output.finish(report)
    return Recovered(trajectories, report)


def _output(path: str | os.PathLike[str], spool: str | os.PathLike[str] | None) -> Output:
    text = to_local(path)
    if is_address(text):
        address = check_address(text)
        # Before anything is changed: what is missing to open it is said now.
        file_system(address)
        return SpooledOutput(address, spool_of(address, spool))
    if spool is not None:
        raise ValueError(f"spool={brief(spool)} is for addresses, such as s3://bucket/rollouts: {text} is a path.")
    return output_at(os.path.abspath(text))


def kept_trajectories(paths: Iterable[Path], ids: Iterable[str]) -> Iterator[tuple[str, Trajectory]]:
    """Trajectories out of this process's own journal, one by one: what memory had no room for.

    To be called while the journal is open. Nothing in it is changed.

    Args:
        paths: the files that have records of them.
        ids: of the trajectories, which must be whole in those files.
    """
    wanted: dict[str, list[form.Record]] = {name: [] for name in ids}
    with ExitStack() as stack:
        for path in sorted(paths, key=_order):
            file = stack.enter_context(path.open("rb", buffering=0))
            for one in form.records(stack.enter_context(_mapped(file.fileno()))):
                if isinstance(one, form.Record) and one.head.get("trajectory") in wanted:
                    wanted[one.head["trajectory"]].append(one)
        for name in list(wanted):
            pieces = Pieces(name)
            for record in sorted(wanted.pop(name), key=_written_at):
                pieces.add(record)
            yield name, trajectory_of(pieces, lambda record, problem: None)


class _Journal:
    """One journal of a dead process, open and locked."""

    def __init__(self, path: Path, records: list[form.Record]) -> None:
        self.path = path
        self.records = records
        self.is_damaged = False


def _files(folder: Path, report: RecoveryReport) -> list[Path]:
    try:
        # By their whole names: a folder of this name may be the user's, with files that are not ours to change.
        found = [one for one in folder.iterdir() if _NAME.fullmatch(one.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        report.unread.append(UnreadJournal(folder, guard.describe(error)))
        return []
    return sorted(found, key=_order)


def _order(path: Path) -> tuple[str, int]:
    """The files of one process come in the order in which it wrote them."""
    match = _NAME.fullmatch(path.name)
    return (path.name, 0) if match is None else (match["process"], int(match["number"]))


def _open(path: Path, report: RecoveryReport, stack: ExitStack) -> _Journal | None:
    """Opens and reads a journal; None where it is to be left alone. The stack keeps it open and locked."""
    try:
        file = stack.enter_context(path.open("rb", buffering=0))
        is_held = locking.lock_open(file.fileno())
        if is_held is False:
            report.live.append(path)
            return None
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return None
        data = stack.enter_context(_mapped(file.fileno()))
    except FileNotFoundError:
        # Another recovery, or its own process, has deleted it since.
        return None
    except OSError as error:
        report.unread.append(UnreadJournal(path, f"cannot be read: {guard.describe(error)}"))
        return None
    if path.name.endswith(NEW_SUFFIX):
        # Killed before it wrote anything.
        return _Journal(path, [])
    return _read(path, data, report, is_held=is_held is True)


@contextmanager
def _mapped(file: int) -> Iterator[Any]:
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


def _read(path: Path, data: Any, report: RecoveryReport, *, is_held: bool) -> _Journal | None:
    journal = _Journal(path, [])
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
    """Why a journal is left alone, by its first record; "" if its process may run; None if it is to be read."""
    version = head.get("format")
    if not isinstance(version, int) or version > form.VERSION:
        return (
            f"written by rollout_trace {head.get('library')} in version {version!r} of the journal's format; this one "
            f"reads versions up to {form.VERSION}. Recover it with a version of the library that is as new."
        )
    # A lock that we hold shows that its process is dead, unless it could not lock it.
    if (is_held and head.get("is_locked")) or not locking.may_live(head):
        return None
    if head.get("host") == locking.host():
        return ""
    return (
        f"written on the machine {head.get('host')!r} without a lock: recover it there, where its process can be seen"
    )


def _trajectories(journals: list[_Journal], output: Output, report: RecoveryReport) -> list[Trajectory]:
    """The trajectories that the output lacks."""
    pieces, places = _pieces(journals)
    found: dict[str, Trajectory] = {}
    damaged: dict[str, list[tuple[form.Record, str]]] = {name: [] for name in pieces}
    for name, one in pieces.items():
        try:
            if not one.is_written:
                found[name] = trajectory_of(one, partial(_keep, damaged[name]))
        except Exception as error:
            # What the records hold is not what this library writes: the other trajectories are recovered.
            problem = f"trajectory {name} cannot be restored: {guard.describe(error)}"
            damaged[name].append((one.first, problem))
    if report.is_write and (found or isinstance(output, FolderOutput)):
        _cut(found, output, report)
    # After the locks were taken, and after the cut: a line that is found here is whole, and stays.
    present = _present(found, journals, output)
    report.present = [name for name, one in pieces.items() if one.is_written or name in present]
    for name in pieces:
        # Of a trajectory that is in the output, a recovery that was killed may have deleted some files already.
        for record, problem in damaged[name] if name not in present else ():
            _report_damage(report, places, record, problem)
    lacking = [one for name, one in found.items() if name not in present]
    return sorted(lacking, key=lambda one: 0.0 if one.started_at is None else one.started_at.timestamp())


def _thrown(recovered: list[Trajectory], output: Output) -> set[str]:
    """The episodes of attempts at rollouts that were thrown away, by what was recovered and what the output has."""
    known = Attempts()
    if any(episodes.episode_of(one) != one.id or episodes.rollout_of(one) is not None for one in recovered):
        known = attempts_in(output.place)
    for one in recovered:
        known.add(one)
    return known.thrown


def _leave_out(thrown: set[str], output: Output, report: RecoveryReport) -> None:
    """Notes that what other processes wrote in such attempts is not to be trained on either."""
    try:
        # Nothing can be noted at an address.
        if not isinstance(output, SpooledOutput):
            leave_out(output.place, thrown)
    except (OSError, WriteError) as error:
        report.not_written.append(f"notes that attempts were thrown away: {guard.describe(error)}")


def _keep(damaged: list[tuple[form.Record, str]], record: form.Record, problem: str) -> None:
    damaged.append((record, problem))


def _present(found: dict[str, Trajectory], journals: list[_Journal], output: Output) -> set[str]:
    """Those that the output has, by the ids of their records: users may set another one."""
    names = filter(None, (_NAME.fullmatch(one.path.name) for one in journals))
    pids = {match["process"].rsplit("-", 2)[1] for match in names}
    ids = output.ids({one.id for one in found.values()}, pids) if found else set()
    return {name for name, one in found.items() if one.id in ids}


def _cut(found: dict[str, Trajectory], output: Output, report: RecoveryReport) -> None:
    try:
        report.bytes_cut = output.cut({one.id for one in found.values()})
    except OSError as error:
        report.not_written.append(f"the end of the output could not be looked at: {guard.describe(error)}")


def _pieces(journals: list[_Journal]) -> tuple[dict[str, Pieces], dict[int, _Journal]]:
    records: dict[str, list[form.Record]] = {}
    places: dict[int, _Journal] = {}
    for journal in journals:
        for record in journal.records:
            places[id(record)] = journal
            name = record.head.get("trajectory")
            if isinstance(name, str):
                records.setdefault(name, []).append(record)
    pieces = {name: Pieces(name) for name in records}
    for name, found in records.items():
        for record in sorted(found, key=_written_at):
            pieces[name].add(record)
    return pieces, places


def _written_at(record: form.Record) -> float:
    at = record.head.get("at")
    return float(at) if isinstance(at, (int, float)) else 0.0


def _report_damage(report: RecoveryReport, places: dict[int, _Journal], record: form.Record, problem: str) -> None:
    journal = places[id(record)]
    journal.is_damaged = True
    length = sum(map(len, record.blobs))
    report.damaged.append(DamagedPlace(journal.path, record.offset, length, problem))


def _write(trajectories: list[Trajectory], journals: list[_Journal], output: Output, report: RecoveryReport) -> None:
    try:
        if trajectories:
            # Where the output has to be made, nobody may read it who may not read the journals.
            mode = min(journal.path.stat().st_mode & 0o777 for journal in journals)
            with output.open(mode) as writer:
                for trajectory in trajectories:
                    writer.write(trajectory)
                    report.written.append(trajectory.id)
    except (OSError, ValueError, WriteError) as error:
        left = len(trajectories) - len(report.written)
        report.not_written.append(f"{left} trajectories, the first for: {guard.describe(error)}")


def _delete(journals: list[_Journal], report: RecoveryReport) -> None:
    """Deletes the journals whose trajectories are all in the output now."""
    if report.not_written:
        return
    for journal in journals:
        try:
            if journal.is_damaged:
                kept = journal.path.with_name(journal.path.name + DAMAGED_SUFFIX)
                report.kept.append(journal.path.rename(kept))
            else:
                journal.path.unlink(missing_ok=True)
        except OSError as error:
            report.not_written.append(f"the journal {journal.path} could not be deleted: {guard.describe(error)}")
    try:
        folder_of(report.output).rmdir()
    except OSError:
        # Not empty: live journals, or damaged ones.
        pass
