"""When a recorded call may be asked for: the order in which a trajectory's calls were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from rollout_trace.data.exchange import Exchange


class RecordedOrder:
    """Which calls of ordered trajectories are due.

    A call is due when every request that its trajectory has before it has been made, by whoever: two trajectories that
    begin with equal requests cannot be told apart there, and neither must wait for the other.
    """

    def __init__(self, trajectories: Sequence[Sequence[Hashable]], ordered: Sequence[bool]) -> None:
        """
        Args:
            trajectories: keys of the calls of each, in recorded order.
            ordered: for each, whether its calls have an order.
        """
        self._made: Counter[Hashable] = Counter()
        self._calls = [_numbered(keys) for keys in trajectories]
        self._ordered = ordered
        self._passed = [0] * len(trajectories)

    def made(self, trajectory: int, position: int) -> None:
        """Counts a request that a call of a trajectory answered."""
        self._made[self._calls[trajectory][position][0]] += 1

    def is_due(self, trajectory: int, position: int) -> bool:
        """Whether everything before a call has been asked for."""
        return not self._ordered[trajectory] or self.awaited(trajectory) >= position

    def awaited(self, trajectory: int) -> int:
        """Position of a trajectory's first call that has not been asked for; its number of calls after the last."""
        calls, at = self._calls[trajectory], self._passed[trajectory]
        while at < len(calls) and self._made[calls[at][0]] >= calls[at][1]:
            at += 1
        self._passed[trajectory] = at
        return at


def _numbered(keys: Sequence[Hashable]) -> list[tuple[Hashable, int]]:
    """Each key with how many times it has come by then."""
    counts: Counter[Hashable] = Counter()
    found = []
    for key in keys:
        counts[key] += 1
        found.append((key, counts[key]))
    return found


def overlapped(calls: Sequence[Exchange], messages_of: Callable[[Exchange], Sequence[bytes]]) -> bool:
    """Whether calls of different conversations were under way at one time, or that is not known.

    Args:
        calls: the calls of a trajectory in recorded order.
        messages_of: digests of a call's messages. One whose messages begin with all of another's continues it, and
            came after it, whatever the clocks say.
    """
    if any(exchange.started_at is None for exchange in calls):
        return len(calls) > 1
    open_calls: list[Exchange] = []
    for exchange in sorted(calls, key=_start):
        open_calls = [one for one in open_calls if not _ended_by(one, _start(exchange))]
        if not all(_is_one_conversation(one, exchange, messages_of) for one in open_calls):
            return True
        open_calls.append(exchange)
    return False


def _start(exchange: Exchange) -> float:
    return exchange.started_at.timestamp() if exchange.started_at else 0.0


def _ended_by(exchange: Exchange, time: float) -> bool:
    length = exchange.duration
    if exchange.outcome == "complete" and exchange.chunk_times:
        # The client may go on as soon as it has the last piece, before the server has seen the end.
        length = exchange.chunk_times[-1] if length is None else min(length, exchange.chunk_times[-1])
    # Rounded to the microseconds that a time has.
    return length is not None and round(_start(exchange) + length - time, 6) <= 0


def _is_one_conversation(first: Exchange, second: Exchange, messages_of: Callable[[Exchange], Sequence[bytes]]) -> bool:
    if first.call_id is not None and first.call_id == second.call_id:
        return True
    earlier, later = messages_of(first), messages_of(second)
    return 0 < len(earlier) < len(later) and later[: len(earlier)] == earlier
