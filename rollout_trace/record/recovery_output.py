"""The output that a recovery completes: a file, a folder of shards, or an address with its spool on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from rollout_trace import guard
from rollout_trace._field_docs import document_fields
from rollout_trace.file import shards_upload
from rollout_trace.file.addresses import join, names_in, shown
from rollout_trace.file.append import cut_partial_line
from rollout_trace.file.find import ids_in
from rollout_trace.file.journal import SUFFIX, folder_of
from rollout_trace.file.shards import Settings, ShardWriter, host_label, is_shard_name, lines_among
from rollout_trace.file.shards_upload import (
    Claim,
    claim,
    claim_new,
    remove_if_empty,
    send,
    spooled,
    stale_claims,
    stem_of,
)
from rollout_trace.file.writer import JSONLWriter
from rollout_trace.guard import printable

_TRIES = 4
"""How often the first shard is tried that cannot be uploaded."""


class Output(Protocol):
    """Where recovered trajectories go."""

    place: Path
    """The file, the folder of shards, or the spool."""

    def ids(self, wanted: Collection[str], pids: Collection[str]) -> set[str]:
        """Those of the trajectories that it has.

        Args:
            wanted: their ids.
            pids: of the processes that had them.

        Raises:
            OSError: it cannot be read.
        """

    def cut(self, known: Collection[str]) -> int:
        """Removes the partial lines that killed writers left; returns their bytes.

        Args:
            known: ids of trajectories that will be written.

        Raises:
            OSError: it cannot be read or changed.
        """

    def open(self, mode: int | None) -> JSONLWriter | ShardWriter:
        """Opens it to write, a context manager. ``mode``: of files that have to be made."""

    def finish(self, report: RecoveryReport) -> None:
        """Called at the end, with the journals gone; whether or not anything is to be written."""


class FileOutput:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.place = path

    def ids(self, wanted: Collection[str], pids: Collection[str]) -> set[str]:
        """Those that have a line in the file."""
        return ids_in(self.place, wanted)

    def cut(self, known: Collection[str]) -> int:
        """Removes the partial line at its end, of a trajectory that is known."""
        return cut_partial_line(self.place, known.__contains__)

    def open(self, mode: int | None) -> JSONLWriter:
        """Opens it to append."""
        return JSONLWriter(self.place, mode=mode)

    def finish(self, report: RecoveryReport) -> None:
        """There is nothing more to do."""


class FolderOutput:
    """A folder of shards."""

    def __init__(self, folder: Path) -> None:
        self.place = folder

    def ids(self, wanted: Collection[str], pids: Collection[str]) -> set[str]:
        """Those that have a line in one of its files."""
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

    def open(self, mode: int | None) -> ShardWriter:
        """Opens a new shard."""
        return ShardWriter(self.place, Settings(), {"mode": mode})

    def finish(self, report: RecoveryReport) -> None:
        """There is nothing more to do."""


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
        """Those that are in the spool, or in what these processes of this machine have uploaded."""
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


def output_at(text: str) -> FileOutput | FolderOutput:
    """The output that a local path names: its own, or that of its journal.

    Raises:
        IsADirectoryError: it is a folder of single outputs, or has taken the place of one.
    """
    if os.path.basename(text) == SUFFIX and os.path.isdir(text):
        text = os.path.dirname(text)
    elif os.path.basename(text) != SUFFIX:
        text = text.removesuffix(SUFFIX)
    place = Path(os.path.realpath(text))
    if not place.is_dir():
        return FileOutput(place)
    if (beside := Path(f"{place}{SUFFIX}")).is_dir():
        raise IsADirectoryError(f"{place} is a folder, and {beside} is the journal of a file: give the file this name.")
    names = _names(place)
    if any(name.endswith(SUFFIX) and name != SUFFIX for name in names) and not folder_of(place).exists():
        raise IsADirectoryError(
            f"{place} is a folder: give the path of an output in it, or of a folder <output>{SUFFIX}."
        )
    return FolderOutput(place)


def _any(_: str) -> bool:
    return True


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


_SHOWN = 20


class DamagedPlace(NamedTuple):
    """A place of a journal that could not be used."""

    path: Path
    offset: int
    """In bytes from the beginning of the file."""
    length: int
    problem: str

    def __str__(self) -> str:
        return printable(f"{self.path}, byte {self.offset} ({self.length} bytes): {self.problem}")


class UnreadJournal(NamedTuple):
    """A journal that was left alone."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


@document_fields
@dataclass(slots=True)
class RecoveryReport:
    """What was found in the journals of an output. ``str()`` of it is a text to read."""

    output: Path
    """Path of the output whose journals were read."""
    journals: list[Path] = field(default_factory=list)
    """Journals of dead processes that were read."""
    live: list[Path] = field(default_factory=list)
    """Journals whose process runs, or that another recovery is reading: they were left alone."""
    unread: list[UnreadJournal] = field(default_factory=list)
    """Journals that could not be read, or that a newer version of this library wrote: they were left alone."""
    damaged: list[DamagedPlace] = field(default_factory=list)
    """Places of the journals that hold no whole record, or records that could not be used."""
    recovered: list[str] = field(default_factory=list)
    """Ids of the trajectories that were recovered."""
    present: list[str] = field(default_factory=list)
    """Ids of those that the output has already: they were left out."""
    is_write: bool = False
    """True if the trajectories were to be appended to the output."""
    written: list[str] = field(default_factory=list)
    """Ids of those that were appended to the output; at an address, to a shard of the spool: see ``waiting``."""
    waiting: dict[Path, int] = field(default_factory=dict)
    """Of an address: shards in the spool that could not be uploaded, with how many of ``written`` each has."""
    not_written: list[str] = field(default_factory=list)
    """Why the output lacks something, a sentence each. The journals of what was not appended were kept."""
    kept: list[Path] = field(default_factory=list)
    """Journals with damaged places, which were renamed and not deleted."""
    bytes_cut: int = 0
    """Bytes of killed writers' partial lines that were removed from the end of the output, or of its shards."""
    spooled: list[Path] = field(default_factory=list)
    """Of an address: shards of dead processes that wait to be uploaded, where nothing was to be written."""
    uploaded: list[str] = field(default_factory=list)
    """Of an address: names of the shards that were uploaded."""

    @property
    def is_clean(self) -> bool:
        """True where nothing was damaged, left unread or could not be written."""
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
            ("left alone, their processes run", self.live),
            ("left alone", self.unread),
            ("damaged", self.damaged),
            ("kept, for they have damaged places", self.kept),
        ):
            if items:
                lines.append(f"{title}: {len(items)}")
                lines += [f"  {printable(str(item))}" for item in items[:_SHOWN]]
                lines += [f"  and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
        return "\n".join(lines)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
