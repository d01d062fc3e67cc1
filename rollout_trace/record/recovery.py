"""``rt.recover``: the trajectories that dead processes left in the journals of an output, which they complete.

The output is a file, a folder of shards, or an address with its spool on this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from rollout_trace import guard
from rollout_trace.data import episodes
from rollout_trace.data.episodes import Attempts
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief
from rollout_trace.errors import WriteError
from rollout_trace.file import journal as form
from rollout_trace.file import shards_upload
from rollout_trace.file.addresses import file_system, is_address, join, names_in, shown, to_local
from rollout_trace.file.annotate import attempts_in, leave_out
from rollout_trace.file.append import cut_partial_line
from rollout_trace.file.find import ids_in
from rollout_trace.file.journal import SUFFIX, folder_of
from rollout_trace.file.shards import Settings, ShardWriter, check_address, host_label, is_shard_name, lines_among
from rollout_trace.file.shards_upload import (
    Claim,
    claim,
    claim_new,
    remove_if_empty,
    send,
    spool_of,
    spooled,
    stale_claims,
    stem_of,
)
from rollout_trace.file.writer import JSONLWriter
from rollout_trace.record.recovered import (
    DamagedPlace,
    DeadJournal,
    Pieces,
    RecoveryReport,
    dead_journals,
    order,
    pieces_of,
    records_in,
    trajectory_of,
)

DAMAGED_SUFFIX = ".damaged"


class Recovered(list[Trajectory]):
    """The recovered trajectories, in the order in which they began."""

    def __init__(self, trajectories: Iterable[Trajectory], report: RecoveryReport) -> None:
        super().__init__(trajectories)
        self.report = report
        """What was found and done; ``str(report)`` is a readable text."""


def recover(
    path: str | os.PathLike[str], *, write: bool = False, spool: str | os.PathLike[str] | None = None
) -> Recovered:
    """Recovers trajectories that a killed process could not write, from the journal beside an output.

    A trajectory that had not closed has the status ``aborted`` and the calls that had ended. A stream in progress is
    ``abandoned``, with what had arrived. Trajectories already in the output are left out, so recovering twice is the
    same as once. Journals of running processes are not touched.

    For a folder of shards, the journal is in the folder, and the trajectories are written to a new shard. For an
    address, journal and spool are on the machine where the processes ran; shards that were not uploaded are uploaded
    now.

    Args:
        path: the output: a file, a folder of shards, or an address. Or its journal, the folder ``<output>.journal``.
        write: append the trajectories to the output and delete the journals. For an address, also upload the shards
            that ended processes left.
        spool: for an address, as for ``rt.recording``.

    Returns:
        A list of the trajectories. Its ``report`` lists what was read, not touched, damaged or not written.

    Raises:
        TypeError: ``path`` is not a path.
        ValueError: ``path`` is empty.
        OSError: the output exists but cannot be read, so that its contents are unknown; or it is a folder of outputs.
        ImportError: the output is compressed with zstd and the package zstandard is not installed, or the package that
            opens the address is missing.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f'expected the path of an output, such as "rollouts.jsonl", got {brief(path)}.')
    if not os.fspath(path):
        raise ValueError("expected the path of an output, such as \"rollouts.jsonl\", got ''.")
    return recover_output(_output(path, spool), write=write)


def recover_output(
    output: FileOutput, *, write: bool, of: str = "", change: Callable[[Trajectory], object] | None = None
) -> Recovered:
    """Recovers what the journals of an output have, as ``recover`` does.

    Args:
        output: the output.
        write: as for ``recover``.
        of: only of journals whose names begin so.
        change: is called with each trajectory before it is written.
    """
    report = RecoveryReport(output.place, is_write=write)
    with ExitStack() as stack:
        # Locked until the end: another recovery meanwhile leaves them alone, and then finds the output complete.
        journals = dead_journals(folder_of(output.place), report, stack, of)
        trajectories = _trajectories(journals, output, report)
        report.recovered = [one.id for one in trajectories]
        thrown = _thrown(trajectories, output)
        episodes.mark_recovered(trajectories, thrown)
        if change is not None:
            guard.run_all("recover", *(partial(change, one) for one in trajectories))
        if write:
            _write(trajectories, journals, output, report)
            _delete(journals, report)
            # What other processes wrote in such attempts is not to be trained on either; an address has no notes.
            with report.failing("notes that attempts were thrown away"):
                leave_out(output.place, () if isinstance(output, SpooledOutput) else thrown)
        for journal in journals:
            # They are views of the files, which could not be closed and unlocked.
            journal.records.clear()
    # When the journals are gone: a shard that is uploaded is not looked into by the next recovery.
    output.finish(report)
    return Recovered(trajectories, report)


def _output(path: str | os.PathLike[str], spool: str | os.PathLike[str] | None) -> FileOutput:
    """The output that a path names: its own, or that of its journal.

    Raises:
        IsADirectoryError: it is a folder of single outputs, or has taken the place of one.
    """
    text = to_local(path)
    if is_address(text):
        address = check_address(text)
        # Before anything is changed: what is missing to open it is said now.
        file_system(address)
        return SpooledOutput(address, spool_of(address, spool))
    if spool is not None:
        raise ValueError(f"spool={brief(spool)} is for addresses, such as s3://bucket/rollouts: {text} is a path.")
    text = os.path.abspath(text)
    if os.path.basename(text) == SUFFIX and os.path.isdir(text):
        text = os.path.dirname(text)
    elif os.path.basename(text) != SUFFIX:
        text = text.removesuffix(SUFFIX)
    place = Path(os.path.realpath(text))
    if not place.is_dir():
        return FileOutput(place)
    if (beside := Path(f"{place}{SUFFIX}")).is_dir():
        raise IsADirectoryError(f"{place} is a folder, and {beside} is the journal of a file. Give that file's name.")
    names = _names(place)
    if any(name.endswith(SUFFIX) and name != SUFFIX for name in names) and not folder_of(place).exists():
        raise IsADirectoryError(
            f"{place} is a folder: give the path of an output in it, or of a folder <output>{SUFFIX}."
        )
    return FolderOutput(place)


def _trajectories(journals: list[DeadJournal], output: FileOutput, report: RecoveryReport) -> list[Trajectory]:
    """The trajectories that the output lacks."""
    pieces, places = pieces_of(journals)
    found: dict[str, Trajectory] = {}
    for name, one in pieces.items():
        try:
            if not one.is_written:
                found[name] = trajectory_of(one)
        except Exception as error:
            # What the records hold is not what this library writes: the other trajectories are recovered.
            one.report(one.records[0], f"trajectory {name} cannot be restored: {guard.describe(error)}")
    # By the ids of their records: users may set another one.
    ids = {one.id for one in found.values()}
    if report.is_write and (found or isinstance(output, FolderOutput)):
        with report.failing("the end of the output could not be looked at"):
            report.bytes_cut = output.cut(ids)
    # After the locks were taken, and after the cut: a line that is found here is whole, and stays.
    ids = output.ids(ids, {one.pid for one in journals}) if found else set()
    lacking = {name: one for name, one in found.items() if one.id not in ids}
    report.present = [name for name, one in pieces.items() if one.is_written or (name in found and name not in lacking)]
    for name, one in pieces.items():
        # Of a trajectory that is in the output, a recovery that was killed may have deleted some files already.
        for record, problem in one.damaged if name in lacking or name not in found else ():
            journal = places[id(record)]
            journal.is_damaged = True
            length = sum(map(len, record.blobs))
            report.damaged.append(DamagedPlace(journal.path, record.offset, length, problem))
    return sorted(lacking.values(), key=lambda one: 0.0 if one.started_at is None else one.started_at.timestamp())


def _thrown(recovered: list[Trajectory], output: FileOutput) -> set[str]:
    """The episodes of attempts at rollouts that were thrown away, by what was recovered and what the output has."""
    known = Attempts()
    if any(episodes.episode_of(one) != one.id or episodes.rollout_of(one) is not None for one in recovered):
        known = attempts_in(output.place)
    for one in recovered:
        known.add(one)
    return known.thrown


def _write(
    trajectories: list[Trajectory], journals: list[DeadJournal], output: FileOutput, report: RecoveryReport
) -> None:
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


def _delete(journals: list[DeadJournal], report: RecoveryReport) -> None:
    """Deletes the journals whose trajectories are all in the output now."""
    if report.not_written:
        return
    for journal in journals:
        with report.failing(f"the journal {journal.path} could not be deleted"):
            if journal.is_damaged:
                kept = journal.path.with_name(journal.path.name + DAMAGED_SUFFIX)
                report.kept.append(journal.path.rename(kept))
            else:
                journal.path.unlink(missing_ok=True)
    # Not empty otherwise: live journals, or damaged ones.
    with suppress(OSError):
        folder_of(report.output).rmdir()


def kept_trajectories(paths: Iterable[Path], ids: Iterable[str]) -> Iterator[tuple[str, Trajectory]]:
    """Trajectories out of this process's own journal, one by one: what memory had no room for.

    To be called while the journal is open. Nothing in it is changed.

    Args:
        paths: the files that have records of them.
        ids: of the trajectories, which must be whole in those files.
    """
    wanted: dict[str, list[form.Record]] = {name: [] for name in ids}
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb", buffering=0)).fileno() for path in sorted(paths, key=order)]
        for one in records_in(files, wanted, stack):
            wanted[one.head["trajectory"]].append(one)
        for name in list(wanted):
            yield name, trajectory_of(Pieces(name, wanted.pop(name)))


# Outputs

_TRIES = 4
"""How often the first shard is tried that cannot be uploaded."""


class FileOutput:
    """One file as the output of a recovery. All methods raise OSError if it cannot be read or changed."""

    def __init__(self, place: Path, writer: JSONLWriter | ShardWriter | None = None) -> None:
        self.place = place
        """The file, the folder of shards, or the spool."""
        self._writer = writer
        """One that is open; None: it is opened."""

    def ids(self, wanted: Collection[str], pids: Collection[str]) -> set[str]:
        """Returns which of the wanted trajectories it has. ``pids``: ids of the processes that had them."""
        return ids_in(self.place, wanted)

    def cut(self, known: Collection[str]) -> int:
        """Removes partial lines that killed writers left, of trajectories that are known; returns their bytes."""
        return cut_partial_line(self.place, known.__contains__)

    def open(self, mode: int | None) -> JSONLWriter | ShardWriter:
        """Opens it to write, a context manager. ``mode``: of files that have to be made."""
        return self._writer or JSONLWriter(self.place, mode=mode)

    def finish(self, report: RecoveryReport) -> None:
        """Finishes the recovery when the journals are gone, whether or not anything was written."""


class FolderOutput(FileOutput):
    """A folder of shards."""

    def ids(self, wanted: Collection[str], pids: Collection[str]) -> set[str]:
        """Returns the trajectories that have a line in one of its files."""
        found: set[str] = set()
        for name in lines_among(_names(self.place)):
            found |= ids_in(self.place / name, set(wanted) - found)
        return found

    def cut(self, known: Collection[str]) -> int:
        """Removes the partial lines at the ends of shards, also of trajectories that no journal has.

        Of shards of other machines, only those that are known: of those it cannot be seen whether their process lives.
        """
        ours = f"part-{host_label()}-"
        total = 0
        for name in filter(is_shard_name, _names(self.place)):
            is_known = _any if name.startswith(ours) else known.__contains__
            total += cut_partial_line(self.place / name, is_known)
        return total

    def open(self, mode: int | None) -> JSONLWriter | ShardWriter:
        """Opens a new shard."""
        return self._writer or ShardWriter(self.place, Settings(), {"mode": mode})


class SpooledOutput(FolderOutput):
    """An address. Trajectories are written to its spool, and what no living process works on is uploaded."""

    def __init__(self, address: str, spool: Path) -> None:
        super().__init__(spool)
        self.address = address
        self._claim: Claim | None = None
        self._counts: dict[Path, int] = {}
        """Recovered trajectories by the shard that they were written to."""
        self._tries = _TRIES

    def ids(self, wanted: Collection[str], pids: Collection[str]) -> set[str]:
        """Returns the trajectories in the spool, or in what these processes of this machine have uploaded."""
        found = super().ids(wanted, pids)
        try:
            names = names_in(self.address) or []
        except FileNotFoundError:
            return found
        ours = f"part-{host_label()}-"
        for name in filter(is_shard_name, names):
            # A process is killed, perhaps, between the upload and the record of it in its journal.
            if name.startswith(ours) and stem_of(name).rpartition("-")[2] in pids and found != set(wanted):
                found |= ids_in(join(self.address, name), set(wanted) - found)
        return found

    def open(self, mode: int | None) -> ShardWriter:
        """Opens a new shard in the spool."""
        finished = self._counts.__setitem__
        return ShardWriter(self.place, Settings(), {"mode": mode}, stem=self._stem, finished=finished)

    def _stem(self) -> str:
        stem, self._claim = claim_new(self.place, self.address)
        return stem

    def finish(self, report: RecoveryReport) -> None:
        """Uploads the shards of dead processes, and those that were just written; without writing, counts them."""
        if self._claim is not None:
            self._claim.release()
        for stem, paths in spooled(self.place).items():
            held = claim(self.place, stem)
            if held is None:
                report.live += paths
                continue
            try:
                self._upload([path for path in paths if path.exists()], report)
            finally:
                held.release()
        if report.is_write:
            for left in stale_claims(self.place):
                left.release()
            remove_if_empty(self.place)

    def _upload(self, paths: Iterable[Path], report: RecoveryReport) -> None:
        for path in paths:
            if not report.is_write:
                report.spooled.append(path)
                continue
            try:
                report.bytes_cut += cut_partial_line(path, _any)
                if path.stat().st_size:
                    self._send(path)
                    report.uploaded.append(path.name)
                else:
                    path.unlink()
            except Exception as error:
                # The address was given its time: as a recording does at its end, each of the others is tried once.
                self._tries = 1
                report.waiting[path] = self._counts.get(path, 0)
                report.not_written.append(
                    f"{path} could not be uploaded to {shown(self.address)}, and is kept: {guard.describe(error)}"
                )

    def _send(self, path: Path) -> None:
        """Uploads a shard; where that fails it is tried again after a pause. Raises as ``send``."""
        for number in range(self._tries):
            try:
                return send(self.address, path)
            except FileExistsError:
                raise
            except Exception:
                if number + 1 == self._tries:
                    raise
                time.sleep(shards_upload.FIRST_RETRY * 2**number)


def _any(_: str) -> bool:
    return True


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
