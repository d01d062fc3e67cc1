"""The target of a recording, and what could not be written to it yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rollout_trace import guard
from rollout_trace._pace import give_way
from rollout_trace.errors import WriteError
from rollout_trace.record.handover import Family, Member

if TYPE_CHECKING:
    from rollout_trace.data.costs import PriceTable
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.shards_upload import Unsent
    from rollout_trace.record.journal import Journal
    from rollout_trace.record.log import TrajectoryJournal
    from rollout_trace.record.redaction import Redactor

KEEP_LIMIT = 256 * 1024 * 1024
"""Most bytes of trajectories kept in memory while their file cannot be written; the journal has those beyond it."""
JOURNALED_LIMIT = 16 * 1024 * 1024
"""Most bytes of those that the journal has whole: many objects would make each of Python's garbage collections long."""
FIRST_RETRY, _LONGEST_RETRY = 0.5, 30.0
"""Seconds until what could not be written is tried again; doubled after each attempt that fails."""


on_written: list[Callable[[Trajectory, str], object]] = []
"""Called with each trajectory that a recording has written, and the name of its target."""


class Writer(Protocol):
    """The target of a recording: ``JSONLWriter``, or any object with this method."""

    def write(self, trajectory: Trajectory) -> None:
        """Writes one closed trajectory."""


class _Kept(NamedTuple):
    member: Member
    trajectory: Trajectory
    error: BaseException


class _Dropped(NamedTuple):
    journal: TrajectoryJournal | None
    """The journal, if that has the trajectory whole."""
    size: int


class Sink:
    """Writes the families of one recording; keeps what its file system refuses, and tries it again.

    All methods run on the recording's thread.
    """

    def __init__(
        self,
        writer: Writer,
        name: str,
        *,
        close: Callable[[], object],
        redactor: Redactor,
        prices: PriceTable | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Opens nothing.

        Args:
            writer: where trajectories are written.
            name: of the target, for messages.
            close: called at the end, when nothing more will be written.
            redactor: removes what must not be written.
            prices: sets the cost of calls that have none.
            journal: keeps what has not been written; None without one.
        """
        self._writer = writer
        self._name = name
        # What a JSONLWriter has and a writer of the user's own has not: its OSErrors may pass.
        self._is_file = hasattr(writer, "same_options")
        self._close_target = close
        self._prices = prices
        self._redactor = redactor
        self._journal = journal
        self.reset()

    def reset(self) -> None:
        """Forgets what is kept and lost. For a forked process: it is the original process's."""
        self.lost: list[tuple[Trajectory, BaseException]] = []
        """Trajectories that were not written, each with the exception."""
        self.dropped: dict[str, _Dropped] = {}
        """Further ones by id, which memory had no room for."""
        self.unredacted: list[str] = []
        """Ids of further ones, which could not be redacted."""
        self._restored: list[tuple[Trajectory, BaseException]] = []
        """Dropped ones that were read from the journal again, since they could not be written."""
        self._in_journal = 0
        """Number of those lost and dropped that the journal has whole."""
        self._has_failed = False
        self.written_later = 0
        """Number of trajectories that were written after a first attempt had failed."""
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._lost_bytes = 0
        self._delay = FIRST_RETRY
        self._retry_at = 0.0

    @property
    def is_failing(self) -> bool:
        """Whether the latest write failed."""
        return self._has_failed

    @property
    def retry_in(self) -> float | None:
        """Seconds until the next attempt to write what is kept; None if nothing is."""
        return max(0.0, self._retry_at - time.monotonic()) if self._kept else None

    def write(self, family: Family) -> None:
        """Completes and writes a family, trajectory by trajectory."""
        for member in family.members:
            # Each on its own: what fails for one is not the others' loss.
            guard.run_all("close", member.complete, partial(self._add_costs, member.trajectory))
            give_way()
            self._write(member)

    def _add_costs(self, trajectory: Trajectory) -> None:
        if self._prices is not None:
            self._prices.apply(trajectory)

    def _write(self, member: Member) -> None:
        trajectory = member.trajectory
        try:
            trajectory = self._as_written(member)
        except BaseException as error:
            # Kept nowhere: what could not be redacted must not get into a file.
            self.unredacted.append(trajectory.id)
            guard.failed("redact", None, error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        give_way()
        self.retry()
        if self._kept:
            # After those before it, and without waiting for the same lock or disk again.
            self._keep(_Kept(member, trajectory, self._kept[-1].error))
            return
        _, refusal = self._attempt(trajectory, _journal_of(member), member)
        if refusal is not None:
            self._keep(_Kept(member, trajectory, refusal))

    def _attempt(
        self, trajectory: Trajectory, journal: TrajectoryJournal | None, member: Member | None = None
    ) -> tuple[bool, OSError | None]:
        """Whether a trajectory was written; if not, the file system's error where it may be tried again, else None."""
        try:
            self._writer.write(trajectory)
        except OSError as error:
            if isinstance(error, WriteError) and error.is_in_file:
                # Whole in the file, though maybe not on the disk: to write it again would double it.
                guard.warn(str(error))
            elif self._is_file:
                return False, error
            else:
                self._lose(trajectory, error, member)
                return False, None
        except BaseException as error:
            # Of a writer of the user's own, or of a trajectory that cannot be encoded. There is nobody to interrupt.
            self._lose(trajectory, error, member)
            return False, None
        self._has_failed = False
        guard.count("trajectories_written")
        guard.run_all("summary", *(partial(tell, trajectory, self._name) for tell in list(on_written)))
        if journal is not None:
            journal.written()
        if not self._is_file and member is not None and member.state is not None:
            # As a JSONLWriter does itself.
            guard.run_all("silence", partial(member.state.was_written, member.trajectory, self._name))
        return True, None

    def _as_written(self, member: Member) -> Trajectory:
        """The trajectory as it is to be written: with the values of its close, and redacted."""
        if not (self._is_file or self._redactor.has_rules):
            return member.trajectory
        trajectory = self._redactor.apply(member.as_closed())
        if (journal := _journal_of(member)) is not None:
            journal.completed(trajectory)
        return trajectory

    def _lose(self, trajectory: Trajectory, error: BaseException, member: Member | None) -> None:
        size = 0 if member is None else member.size
        if member is not None and self._lost_bytes + size > KEEP_LIMIT:
            # Not to be tried again out of the journal: it is not the file that refuses it.
            self.dropped[trajectory.id] = _Dropped(None, size)
            self._in_journal += _journal_with(member) is not None
            kept = "memory has no room for it."
        else:
            self.lost.append((trajectory, error))
            self._lost_bytes += size
            guard.count("trajectories_lost")
            kept = "it is kept in the `lost` of the recording."
        message = f"{self._failure(trajectory, error)} The agent goes on; {kept}"
        guard.failed("write", None, error if isinstance(error, Exception) else RuntimeError(repr(error)), message)

    def _keep(self, kept: _Kept) -> None:
        self._has_failed = True
        if not self._kept:
            self._delay = FIRST_RETRY
            self._retry_at = time.monotonic() + self._delay
            guard.warn(
                f"{self._failure(kept.trajectory, kept.error)} It is kept in memory, as those that follow are, and "
                "tried again; the agent goes on."
            )
        journal = _journal_with(kept.member)
        if self._kept_bytes + kept.member.size > (KEEP_LIMIT if journal is None else min(JOURNALED_LIMIT, KEEP_LIMIT)):
            self.dropped[kept.trajectory.id] = _Dropped(journal, kept.member.size)
            self._in_journal += journal is not None
            return
        self._kept.append(kept)
        self._kept_bytes += kept.member.size

    def _failure(self, trajectory: Trajectory, error: BaseException) -> str:
        # A JSONLWriter's message has the id already, and the state of the file.
        if trajectory.id in (message := str(error)):
            return message
        named = f"trajectory {trajectory.id} ({trajectory.name})"
        return f"{named} was not written to {self._name}: {guard.describe(error)}."

    def retry(self) -> None:
        """Writes what is kept, oldest first, until one fails again. Does nothing before it is time."""
        if self._kept and not self.retry_in:
            self._write_kept()
            if not self._kept:
                guard.run_all("write", self._write_dropped)

    def drain(self) -> None:
        """Writes the calls to the journal that had to be redacted first."""
        if self._journal is not None:
            self._journal.drain()

    def finish(self) -> None:
        """Writes what is kept, for the last time, and closes the target. What fails again is lost."""
        guard.run_all("write", self._write_kept, self._restore, self._count_journaled, self._close_target)
        lost = [*((kept.trajectory, kept.error) for kept in self._kept), *self._restored]
        self.lost += lost
        self._kept.clear()
        guard.count("trajectories_lost", len(lost) + len(self.dropped) + len(self.unredacted))
        if self.written_later or lost or self.dropped or self.unredacted:
            guard.warn(self._account(len(lost)))

    @property
    def has_lost(self) -> bool:
        """Whether a trajectory was not written, or a shard not uploaded; final once ``finish`` has run."""
        return bool(self.lost or self.dropped or self.unredacted or self._unsent)

    @property
    def _unsent(self) -> list[Unsent]:
        """Complete shards that could not be uploaded."""
        found: list[Unsent] = getattr(self._writer, "unsent", [])
        return found

    def _restore(self) -> None:
        """Writes what memory had no room for, or takes it back, to be lost with the rest."""
        refusal = self._write_dropped() if not self._kept else self._kept[-1].error
        size = self._kept_bytes
        for name, trajectory in self._from_journal() if refusal is not None else ():
            size += self.dropped[name].size
            if size > KEEP_LIMIT:
                return
            del self.dropped[name]
            self._restored.append((trajectory, refusal or WriteError()))

    def _write_dropped(self) -> OSError | None:
        """Writes what memory had no room for, out of the journal; returns the file system's error at the first."""
        for name, trajectory in self._from_journal():
            is_written, refusal = self._attempt(trajectory, self.dropped[name].journal)
            if refusal is not None:
                return refusal
            del self.dropped[name]
            self._in_journal -= is_written
            self.written_later += is_written
        return None

    def _from_journal(self) -> Iterator[tuple[str, Trajectory]]:
        """Those of the dropped that the journal has whole, by id, one by one."""
        journals = {one.journal.id: (name, one.journal) for name, one in self.dropped.items() if one.journal}
        if not journals:
            return
        # Imported on use: almost no recording needs it.
        from rollout_trace.record.recovery import kept_trajectories

        paths = {path for _, journal in journals.values() for path in journal.paths}
        for key, trajectory in kept_trajectories(paths, journals):
            yield journals[key][0], trajectory

    def _count_journaled(self) -> None:
        # Before the journal is closed, which lets go of its files.
        self._in_journal += sum(_journal_with(kept.member) is not None for kept in self._kept)

    def _write_kept(self) -> None:
        while self._kept:
            kept = self._kept.popleft()
            is_written, refusal = self._attempt(kept.trajectory, _journal_of(kept.member), kept.member)
            if refusal is not None:
                self._delay = min(2 * self._delay, _LONGEST_RETRY)
                self._retry_at = time.monotonic() + self._delay
                self._kept.appendleft(kept._replace(error=refusal))
                self._has_failed = True
                return
            self._kept_bytes -= kept.member.size
            self.written_later += is_written

    def write_error(self) -> WriteError:
        """The exception for leaving the recording's block, if something is lost."""
        if not (self.lost or self.dropped or self.unredacted):
            return WriteError(self._not_uploaded())
        error = self._of_trajectories()
        if self._unsent:
            error.args = (f"{error} {self._not_uploaded()}",)
        return error

    def _not_uploaded(self) -> str:
        unsent = self._unsent
        folder, count = unsent[0].path.parent, sum(one.trajectories for one in unsent)
        shards = "1 shard" if len(unsent) == 1 else f"{len(unsent)} shards"
        return (
            f"{shards} with {_trajectories(count)} could not be uploaded to {self._name} "
            f"({guard.describe(unsent[0].error)}). Nothing is lost: they are in {folder}, and "
            f"rt.recover({self._name!r}, write=True) uploads them{self._spool_option(folder)}."
        )

    @staticmethod
    def _spool_option(folder: Path) -> str:
        """What is to be added for a spool that was given by option."""
        from rollout_trace.file.shards_upload import has_default_root

        return "" if has_default_root(folder) else f", with spool={str(folder.parent)!r}"

    def _of_trajectories(self) -> WriteError:
        if not self.lost:
            missing = [*self.dropped, *self.unredacted]
            count = len(missing)
            which = f"the first is {missing[0]}" if count > 1 else f"it is {missing[0]}"
            what = f"{_trajectories(count)} could not be written to {self._name} ({self._reasons()})"
            return WriteError(f"{what}; {which}.{self._where()}")
        open_writer = getattr(self._writer, "same_options", None)
        error = WriteError.summary(self.lost, self._name, None if open_writer is None else open_writer())
        if self.dropped:
            error.args = (f"{error} {len(self.dropped)} more had no room in memory.{self._where()}",)
        return error

    def _account(self, lost: int) -> str:
        total = self.written_later + lost + len(self.dropped) + len(self.unredacted)
        counts = [
            f"{self.written_later} {_were(self.written_later)} written later" if self.written_later else "",
            f"{lost} {'is' if lost == 1 else 'are'} in the `lost` of the recording" if lost else "",
            self._reasons(),
        ]
        told = ", ".join(filter(None, counts))
        where = self._where() if self.has_lost else ""
        return f"{self._name}: {_trajectories(total)} could not be written at once: {told}.{where}"

    def _reasons(self) -> str:
        """Why trajectories are lost that are not in ``lost``."""
        reasons = [
            f"{len(self.dropped)} had no room in memory" if self.dropped else "",
            f"{len(self.unredacted)} could not be redacted" if self.unredacted else "",
        ]
        return ", ".join(filter(None, reasons))

    def _where(self) -> str:
        if self._journal is None:
            return " There is no journal of them."
        reads = f"rt.recover({self._name!r}) reads {self._journal.path}"
        count = len(self.lost) + len(self.dropped) + len(self.unredacted)
        if self._in_journal >= count:
            return f" The journal has {'it' if count == 1 else 'them'}: {reads}."
        if not self._in_journal:
            return f" The journal has none of them whole; what it has of them, {reads}."
        return f" The journal has {self._in_journal} of these {count} whole: {reads}."


def _trajectories(count: int) -> str:
    return "1 trajectory" if count == 1 else f"{count} trajectories"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _journal_of(member: Member) -> TrajectoryJournal | None:
    return None if member.state is None else member.state.journal


def _journal_with(member: Member) -> TrajectoryJournal | None:
    """The journal that has all of a completed trajectory; None where there is none."""
    journal = _journal_of(member)
    return journal if journal is not None and journal.is_whole else None
