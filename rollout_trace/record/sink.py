"""The target of a recording, and what could not be written to it yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rollout_trace import guard
from rollout_trace._threads import give_way
from rollout_trace.errors import WriteError
from rollout_trace.record.state import Episode, Member

if TYPE_CHECKING:
    from rollout_trace.data.costs import PriceTable
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.shards_upload import Unsent
    from rollout_trace.record.journal import Journal, TrajectoryJournal
    from rollout_trace.record.redaction import Redactor

KEEP_LIMIT = 256 * 1024 * 1024
"""Most bytes of trajectories kept in memory while their file cannot be written; the journal has those beyond it."""
JOURNALED_LIMIT = 16 * 1024 * 1024
"""Most bytes of those that the journal has whole: many objects would make each of Python's garbage collections long."""
FIRST_RETRY, _LONGEST_RETRY = 0.5, 30.0
"""Seconds until what could not be written is tried again; doubled after each attempt that fails."""


on_written: list[Callable[[Trajectory, str], object]] = []
"""Called with each trajectory that a recording has written, and the name of its target."""
on_refused: list[Callable[[Trajectory, str], object]] = []
"""The same, of each that its file refuses: it is kept, and mostly written later."""


class Answer(NamedTuple):
    """The outcome of an episode; without an episode, that the process has ended."""

    number: int | None
    results: Sequence[int | str | None] = ()
    """Of each trajectory: the number of its steps; None: the file system refused it; or why it could not be made."""
    refusals: int = 0
    """How often the file system has refused a line so far."""


NO_ANSWER = Answer(None)


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


@dataclass(eq=False)
class Sink:
    """Writes the episodes of one recording; keeps what its file system refuses, and tries it again.

    All methods run on the recording's thread.
    """

    writer: Writer
    name: str
    """Of the target, for messages."""
    _: KW_ONLY
    close: Callable[[], object]
    """Called at the end, when nothing more will be written."""
    redactor: Redactor | None = None
    """The user's rules; None without any."""
    prices: PriceTable | None = None
    """Sets the cost of calls that have none."""
    journal: Journal | None = None
    """Keeps what has not been written; None without one."""

    def __post_init__(self) -> None:
        # What a JSONLWriter has and a writer of the user's own has not: its OSErrors may pass.
        self._is_file = hasattr(self.writer, "same_options")
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
        self.is_failing = False
        """Whether the latest write failed: agents do not wait for such a target."""
        self.written_later = 0
        """Number of trajectories that were written after a first attempt had failed."""
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._lost_bytes = 0
        self._delay = FIRST_RETRY
        self._retry_at = 0.0

    @property
    def retry_in(self) -> float | None:
        """Seconds until the next attempt to write what is kept; None if nothing is."""
        return max(0.0, self._retry_at - time.monotonic()) if self._kept else None

    def write(self, episode: Episode) -> None:
        """Completes and writes an episode, trajectory by trajectory."""
        for member in episode.members:
            # Each on its own: what fails for one is not the others' loss.
            self.write_one(member)

    def write_one(self, member: Member) -> None:
        """Completes and writes one trajectory."""
        self._complete(member)
        give_way()
        self._write(member)

    def was_written(self, member: Member, steps: int) -> None:
        """Notes that the writer process has written a trajectory. ``steps``: how many it has; 0: it is not known.

        The journal is not told: it may have calls of it that are to be read.
        """
        if on_written:
            self._complete(member)
        self._note_written(member.as_closed() if on_written else member.trajectory, None)
        # Looked at for what it lacks: reading its steps here would decode them.
        if not steps and member.state is not None:
            guard.run_all("silence", partial(member.state.was_written, member.trajectory, self.name))

    @property
    def is_keeping(self) -> bool:
        """Whether trajectories wait for a file system that has refused them."""
        return bool(self._kept)

    def _complete(self, member: Member) -> None:
        costs = [] if self.prices is None else [partial(self.prices.apply, member.trajectory)]
        guard.run_all("close", member.complete, *costs)

    def _write(self, member: Member) -> None:
        trajectory = member.trajectory
        try:
            # With the values of its close, and redacted.
            if self._is_file or self.redactor is not None:
                trajectory = member.as_closed()
                if self.redactor is not None:
                    trajectory = self.redactor.apply(trajectory)
                if member.journal is not None:
                    member.journal.completed(trajectory)
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
        _, refusal = self._attempt(trajectory, member.journal, member)
        if refusal is not None:
            self._keep(_Kept(member, trajectory, refusal))

    def _attempt(
        self, trajectory: Trajectory, journal: TrajectoryJournal | None, member: Member | None = None
    ) -> tuple[bool, OSError | None]:
        """Whether a trajectory was written; if not, the file system's error where it may be tried again, else None."""
        try:
            self.writer.write(trajectory)
        except BaseException as error:
            if isinstance(error, WriteError) and error.is_in_file:
                # Whole in the file, though maybe not on the disk: to write it again would double it.
                guard.warn(str(error))
            elif isinstance(error, OSError) and self._is_file:
                return False, error
            else:
                # Of a writer of the user's own, or of a trajectory that cannot be encoded. Nobody is to be interrupted.
                self._lose(trajectory, error, member)
                return False, None
        self._note_written(trajectory, journal)
        if not self._is_file and member is not None and member.state is not None:
            # As a JSONLWriter does itself.
            guard.run_all("silence", partial(member.state.was_written, member.trajectory, self.name))
        return True, None

    def _note_written(self, trajectory: Trajectory, journal: TrajectoryJournal | None) -> None:
        self.is_failing = False
        guard.count("trajectories_written")
        if on_written:
            guard.run_all("summary", *(partial(tell, trajectory, self.name) for tell in list(on_written)))
        if journal is not None:
            journal.written()

    def _tell_refused(self, trajectory: Trajectory) -> None:
        if on_refused:
            guard.run_all("summary", *(partial(tell, trajectory, self.name) for tell in list(on_refused)))

    def _lose(self, trajectory: Trajectory, error: BaseException, member: Member | None) -> None:
        self._tell_refused(trajectory)
        size = 0 if member is None else member.size
        if member is not None and self._lost_bytes + size > KEEP_LIMIT:
            # Not to be tried again out of the journal: it is not the file that refuses it.
            self.dropped[trajectory.id] = _Dropped(None, size)
            self._in_journal += member.whole_journal is not None
            kept = "memory has no room for it."
        else:
            self.lost.append((trajectory, error))
            self._lost_bytes += size
            guard.count("trajectories_lost")
            kept = "it is kept in the `lost` of the recording."
        message = f"{self._failure(trajectory, error)} The agent goes on; {kept}"
        guard.failed("write", None, error if isinstance(error, Exception) else RuntimeError(repr(error)), message)

    def _keep(self, kept: _Kept) -> None:
        self.is_failing = True
        self._tell_refused(kept.trajectory)
        if not self._kept:
            self._delay = FIRST_RETRY
            self._retry_at = time.monotonic() + self._delay
            guard.warn(
                f"{self._failure(kept.trajectory, kept.error)} It and those that follow are kept in memory and "
                "tried again. The agent goes on."
            )
        journal = kept.member.whole_journal
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
        return f"{named} was not written to {self.name}: {guard.describe(error)}."

    def retry(self) -> None:
        """Writes what is kept, oldest first, until one fails again. Does nothing before it is time."""
        if self._kept and not self.retry_in:
            self._write_kept()
            if not self._kept:
                guard.run_all("write", self._write_dropped)

    def finish(self) -> None:
        """Writes what is kept, for the last time, and closes the target. What fails again is lost."""
        if self._kept or self.dropped:
            guard.run_all("write", self._write_kept, self._restore)
        guard.run_all("write", self.close)
        lost = [*((kept.trajectory, kept.error) for kept in self._kept), *self._restored]
        self.lost += lost
        self._kept.clear()
        count = len(lost) + len(self.dropped) + len(self.unredacted)
        guard.count("trajectories_lost", count)
        later = self.written_later
        if later or count:
            counts = [
                f"{later} {'was' if later == 1 else 'were'} written later" if later else "",
                f"{len(lost)} {'is' if len(lost) == 1 else 'are'} in the `lost` of the recording" if lost else "",
                self._reasons(),
            ]
            told = ", ".join(filter(None, counts))
            what = f"{self.name}: {_trajectories(later + count)} could not be written at once: {told}."
            guard.warn(what + (self._where() if self.has_lost else ""))

    @property
    def has_lost(self) -> bool:
        """Whether a trajectory was not written, or a shard not uploaded; final once ``finish`` has run."""
        return bool(self.lost or self.dropped or self.unredacted or self._unsent)

    @property
    def _unsent(self) -> list[Unsent]:
        """Complete shards that could not be uploaded."""
        found: list[Unsent] = getattr(self.writer, "unsent", [])
        return found

    def _restore(self) -> None:
        """Writes what memory had no room for, or takes it back, to be lost with the rest."""
        refusal = self._write_dropped() if not self._kept else self._kept[-1].error
        size = self._kept_bytes
        try:
            for name, trajectory in self._from_journal() if refusal is not None else ():
                size += self.dropped[name].size
                if size > KEEP_LIMIT:
                    break
                del self.dropped[name]
                self._restored.append((trajectory, refusal or WriteError()))
        finally:
            # Before the journal is closed, which lets go of its files.
            self._in_journal += sum(kept.member.whole_journal is not None for kept in self._kept)

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
        """Yields the dropped trajectories that are complete in the journal, by id."""
        journals = {one.journal.id: (name, one.journal) for name, one in self.dropped.items() if one.journal}
        if not journals:
            return
        # Imported on use: almost no recording needs it.
        from rollout_trace.record.recovery import kept_trajectories

        paths = {path for _, journal in journals.values() for path in journal.paths}
        for key, trajectory in kept_trajectories(paths, journals):
            yield journals[key][0], trajectory

    def _write_kept(self) -> None:
        while self._kept:
            kept = self._kept.popleft()
            is_written, refusal = self._attempt(kept.trajectory, kept.member.journal, kept.member)
            if refusal is not None:
                self._delay = min(2 * self._delay, _LONGEST_RETRY)
                self._retry_at = time.monotonic() + self._delay
                self._kept.appendleft(kept._replace(error=refusal))
                self.is_failing = True
                return
            self._kept_bytes -= kept.member.size
            self.written_later += is_written

    def write_error(self) -> WriteError:
        """The exception for leaving the recording's block, if something is lost."""
        missing = [*self.dropped, *self.unredacted]
        if self.lost:
            open_writer = getattr(self.writer, "same_options", None)
            error = WriteError.summary(self.lost, self.name, None if open_writer is None else open_writer())
            if self.dropped:
                error.args = (f"{error} {len(self.dropped)} more had no room in memory.{self._where()}",)
        elif missing:
            which = f"the first is {missing[0]}" if len(missing) > 1 else f"it is {missing[0]}"
            what = f"{_trajectories(len(missing))} could not be written to {self.name} ({self._reasons()})"
            error = WriteError(f"{what}; {which}.{self._where()}")
        else:
            return WriteError(self._not_uploaded())
        if self._unsent:
            error.args = (f"{error} {self._not_uploaded()}",)
        return error

    def _not_uploaded(self) -> str:
        from rollout_trace.file.shards_upload import has_default_root

        unsent = self._unsent
        folder, count = unsent[0].path.parent, sum(one.trajectories for one in unsent)
        option = "" if has_default_root(folder) else f", with spool={str(folder.parent)!r}"
        shards = "1 shard" if len(unsent) == 1 else f"{len(unsent)} shards"
        return (
            f"{shards} with {_trajectories(count)} could not be uploaded to {self.name} "
            f"({guard.describe(unsent[0].error)}). Nothing is lost: they are in {folder}, and "
            f"rt.recover({self.name!r}, write=True) uploads them{option}."
        )

    def _reasons(self) -> str:
        """Why trajectories are lost that are not in ``lost``."""
        reasons = [
            f"{len(self.dropped)} had no room in memory" if self.dropped else "",
            f"{len(self.unredacted)} could not be redacted" if self.unredacted else "",
        ]
        return ", ".join(filter(None, reasons))

    def _where(self) -> str:
        if self.journal is None:
            return " There is no journal of them."
        reads = f"rt.recover({self.name!r}) reads {self.journal.path}"
        count = len(self.lost) + len(self.dropped) + len(self.unredacted)
        if self._in_journal >= count:
            return f" The journal has {'it' if count == 1 else 'them'}: {reads}."
        if not self._in_journal:
            return f" The journal has only parts of them: {reads}."
        return f" The journal has {self._in_journal} of these {count} whole: {reads}."


def _trajectories(count: int) -> str:
    return "1 trajectory" if count == 1 else f"{count} trajectories"
