"""The target of a recording, and what could not be written to it yet."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rollout_trace import guard
from rollout_trace.errors import WriteError
from rollout_trace.record.handover import Family, Member

if TYPE_CHECKING:
    from rollout_trace.data.costs import PriceTable
    from rollout_trace.data.trajectory import Trajectory

KEEP_LIMIT = 256 * 1024 * 1024
"""Most bytes of trajectories kept in memory while their file cannot be written; the journal has those beyond it."""
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 30.0
"""Seconds until what could not be written is tried again; doubled after each attempt that fails."""


class Writer(Protocol):
    """The target of a recording: ``JSONLWriter``, or any object with this method."""

    def write(self, trajectory: Trajectory) -> None:
        """Writes one closed trajectory."""


class Redactor(Protocol):
    """Removes what must not be in a file."""

    def apply(self, trajectory: Trajectory) -> int:
        """Redacts a copy of a trajectory in place; returns the number of changed texts."""


class _Kept(NamedTuple):
    member: Member
    trajectory: Trajectory
    size: int
    error: BaseException


class Sink:
    """Writes the families of one recording; keeps what its file system refuses, and tries it again.

    All methods run on the recording's thread.
    """

    def __init__(
        self,
        writer: Writer,
        name: str,
        *,
        is_file: bool,
        prices: PriceTable | None = None,
        redactor: Redactor | None = None,
        journal_path: str | None = None,
    ) -> None:
        """``name``: the target, for messages. ``is_file``: the writer is a JSONLWriter, whose OSErrors may pass."""
        self._writer = writer
        self._name = name
        self._is_file = is_file
        self._prices = prices
        self._redactor = redactor
        self._journal_path = journal_path
        self.reset()

    def reset(self) -> None:
        """Forgets what is kept and lost. For a forked process: it is the original process's."""
        self.lost: list[tuple[Trajectory, BaseException]] = []
        """Trajectories that were not written, each with the exception."""
        self.dropped: list[str] = []
        """Ids of further ones, which memory had no room for."""
        self.written_later = 0
        """Number of trajectories that were written after a first attempt had failed."""
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._delay = _FIRST_RETRY
        self._retry_at = 0.0

    @property
    def is_failing(self) -> bool:
        """Whether the latest write failed."""
        return bool(self._kept or self.dropped)

    @property
    def retry_in(self) -> float | None:
        """Seconds until the next attempt to write what is kept; None if nothing is."""
        return max(0.0, self._retry_at - time.monotonic()) if self._kept else None

    def write(self, family: Family) -> None:
        """Completes and writes a family, trajectory by trajectory."""
        for member in family.members:
            # Each on its own: what fails for one is not the others' loss.
            guard.run_all("close", member.complete, partial(self._add_costs, member.trajectory))
            self._write(member, family.size // len(family.members))
        guard.run_all("silence", *(partial(_warn_if_silent, member) for member in family.members))

    def _add_costs(self, trajectory: Trajectory) -> None:
        if self._prices is not None:
            self._prices.apply(trajectory)

    def _write(self, member: Member, size: int) -> None:
        trajectory = member.trajectory
        try:
            if self._is_file or self._redactor is not None:
                trajectory = member.as_closed()
            if self._redactor is not None:
                self._redactor.apply(trajectory)
            if self._kept and self.retry_in:
                # In order, and not waiting for the same lock or disk again for each.
                self._keep(_Kept(member, trajectory, size, self._kept[-1].error))
                return
            self._write_one(member, trajectory)
        except OSError as error:
            if self._is_file:
                self._keep(_Kept(member, trajectory, size, error))
            else:
                self._lose(trajectory, error)
        except BaseException as error:
            # Of a writer of the user's own; on this thread there is nobody to interrupt.
            self._lose(trajectory, error)

    def _write_one(self, member: Member, trajectory: Trajectory) -> None:
        self._writer.write(trajectory)
        guard.count("trajectories_written")
        if member.state is not None and member.state.journal is not None:
            member.state.journal.written()

    def _lose(self, trajectory: Trajectory, error: BaseException) -> None:
        self.lost.append((trajectory, error))
        guard.count("trajectories_lost")
        message = f"{self._failure(trajectory, error)} The agent goes on; it is kept in the `lost` of the recording."
        guard.failed("write", None, error if isinstance(error, Exception) else RuntimeError(repr(error)), message)

    def _keep(self, kept: _Kept) -> None:
        if not self._kept:
            self._delay = _FIRST_RETRY
            self._retry_at = time.monotonic() + self._delay
            guard.warn(
                f"{self._failure(kept.trajectory, kept.error)} It is kept in memory, as those that follow are, and "
                "tried again; the agent goes on."
            )
        if self._kept_bytes + kept.size > KEEP_LIMIT:
            self.dropped.append(kept.trajectory.id)
            return
        self._kept.append(kept)
        self._kept_bytes += kept.size

    def _failure(self, trajectory: Trajectory, error: BaseException) -> str:
        # A JSONLWriter's message has the id already, and the state of the file.
        if trajectory.id in (message := str(error)):
            return message
        named = f"trajectory {trajectory.id} ({trajectory.name})"
        return f"{named} was not written to {self._name}: {guard.describe(error)}."

    def retry(self, *, is_last: bool) -> None:
        """Writes what is kept, oldest first, until one fails again. ``is_last``: what fails then is lost."""
        while self._kept and (is_last or not self.retry_in):
            kept = self._kept[0]
            try:
                self._write_one(kept.member, kept.trajectory)
            except Exception as error:
                self._delay = min(2 * self._delay, _LONGEST_RETRY)
                self._retry_at = time.monotonic() + self._delay
                self._kept[0] = kept._replace(error=error)
                break
            self._kept.popleft()
            self._kept_bytes -= kept.size
            self.written_later += 1
        if is_last:
            self._finish()

    def _finish(self) -> None:
        """Counts what was not written as lost, and logs one line about all that could not be written at once."""
        lost = [(kept.trajectory, kept.error) for kept in self._kept]
        self.lost += lost
        self._kept.clear()
        guard.count("trajectories_lost", len(lost) + len(self.dropped))
        if self.written_later or lost or self.dropped:
            guard.warn(self._account(len(lost)))

    def write_error(self) -> WriteError:
        """The exception for leaving the recording's block, if something is lost."""
        count = len(self.lost) + len(self.dropped)
        trajectory, cause = self.lost[0] if self.lost else (None, None)
        error = WriteError(
            f"{count} trajectories could not be written to {self._name}; the first is "
            f"{self.dropped[0] if trajectory is None else trajectory.id} ({type(cause).__name__}: {cause})."
        )
        error.__cause__ = cause
        return error

    def _account(self, lost: int) -> str:
        total = self.written_later + lost + len(self.dropped)
        counts = [
            f"{self.written_later} were written later" if self.written_later else "",
            f"{lost} are in the `lost` of the recording" if lost else "",
            f"{len(self.dropped)} more had no room in memory" if self.dropped else "",
        ]
        where = ""
        if lost or self.dropped:
            where = " There is no journal of them."
            if self._journal_path is not None:
                where = f" The journal has them: rt.recover({self._name!r}) reads {self._journal_path}."
        return f"{self._name}: {total} trajectories could not be written at once: {', '.join(filter(None, counts))}.{where}"


def _warn_if_silent(member: Member) -> None:
    if member.state is not None:
        member.state.was_written(member.trajectory, member.state.handed_to)
