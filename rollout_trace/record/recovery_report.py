"""What ``rt.recover`` found, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rollout_trace._field_docs import document_fields
from rollout_trace.guard import printable

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
