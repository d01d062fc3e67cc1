"""The recorded exchanges of a cassette: each with its place, whether it has been used, and when it may be asked for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from rollout_trace.data.exchange import Exchange

from ._normal_form import protocol_of, request_of


@dataclass(slots=True, eq=False)
class RecordedCall:
    """One recorded exchange."""

    exchange: Exchange
    trajectory: int
    """Number of its trajectory, from 0."""
    generates: bool
    is_used: bool = False
    key: bytes = b""
    """Digest of the normal form of its request."""
    position: int = 0
    """Among the generating exchanges of its trajectory, from 0."""
    number: int = 0
    """Of the call in its trajectory, from 1; attempts of one call share it."""
    attempt: int = 1
    next_attempt: RecordedCall | None = None

    def describe(self, *, several: bool) -> str:
        """``the recorded call 3``; with ``several`` trajectories, ``call 3 of the recorded trajectory 2``."""
        if not self.generates:
            return "the recorded one"
        attempt = f"attempt {self.attempt} of " if self.attempt > 1 else ""
        if several:
            return f"{attempt}call {self.number} of the recorded trajectory {self.trajectory + 1}"
        return f"{attempt}the recorded call {self.number}"


def _generates(exchange: Exchange) -> bool:
    if protocol_of(request_of(exchange)) is not None:
        return True
    return exchange.protocol is not None and exchange.method.upper() == "POST"


def recorded_calls(trajectories: Iterable[Sequence[Exchange]]) -> list[list[RecordedCall]]:
    """The exchanges of each trajectory, numbered."""
    return [
        _numbered([RecordedCall(one, at, _generates(one)) for one in exchanges])
        for at, exchanges in enumerate(trajectories)
    ]


def _numbered(calls: list[RecordedCall]) -> list[RecordedCall]:
    latest: dict[str, RecordedCall] = {}
    numbers = count(1)
    for position, call in enumerate(one for one in calls if one.generates):
        call.position = position
        call_id = call.exchange.call_id
        before = latest.get(call_id) if call_id is not None else None
        if before is None:
            call.number = next(numbers)
        else:
            call.number, call.attempt = before.number, before.attempt + 1
            before.next_attempt = call
        if call_id is not None:
            latest[call_id] = call
    return calls


class RecordedOrder:
    """Tracks which calls of ordered trajectories are due.

    A call is due when every request that its trajectory has before it has been made, by whoever: two trajectories that
    begin with equal requests cannot be told apart there, and neither must wait for the other.
    """

    def __init__(self, trajectories: Sequence[Sequence[Hashable]], ordered: Sequence[bool]) -> None:
        """Takes the keys of the calls of each trajectory, in recorded order, and whether these have an order."""
        self._made: Counter[Hashable] = Counter()
        self._calls: list[list[tuple[Hashable, int]]] = []
        """Of each trajectory the keys, each with how many times it has come by then."""
        for keys in trajectories:
            counts: defaultdict[Hashable, Iterator[int]] = defaultdict(lambda: count(1))
            self._calls.append([(key, next(counts[key])) for key in keys])
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


def overlapped(exchanges: Sequence[Exchange], messages_of: Callable[[Exchange], Sequence[bytes]]) -> bool:
    """Whether calls of different conversations were under way at one time, or that is not known.

    Attempts of one call are one call, with the time between them. A request whose messages (``messages_of``: their
    digests) begin with all of another's continues it, and came after it, whatever the clocks say.
    """
    calls = _calls_of(exchanges)
    if any(call.start is None for call in calls):
        return len(calls) > 1
    under_way: list[_Span] = []
    for call in sorted(calls, key=lambda call: call.start or 0.0):
        under_way = [one for one in under_way if not one.ended_by(call.start or 0.0)]
        if not all(_continues(messages_of(call.exchange), messages_of(one.exchange)) for one in under_way):
            return True
        under_way.append(call)
    return False


class _Span(NamedTuple):
    """The time of a call, in seconds since 1970; None where it is not known."""

    exchange: Exchange
    """Its first attempt."""
    start: float | None
    end: float | None

    def ended_by(self, time: float) -> bool:
        # Rounded to the microseconds that a time has.
        return self.end is not None and round(self.end - time, 6) <= 0


def _calls_of(exchanges: Sequence[Exchange]) -> list[_Span]:
    calls: dict[str | int, _Span] = {}
    for at, exchange in enumerate(exchanges):
        span = _span_of(exchange)
        key = at if exchange.call_id is None else exchange.call_id
        first = calls.get(key, span)
        calls[key] = _Span(first.exchange, first.start, span.end)
    return list(calls.values())


def _span_of(exchange: Exchange) -> _Span:
    if exchange.started_at is None:
        return _Span(exchange, None, None)
    length = exchange.duration
    if exchange.outcome == "complete" and exchange.chunk_times:
        # The client may go on as soon as it has the last piece, before the server has seen the end.
        length = exchange.chunk_times[-1] if length is None else min(length, exchange.chunk_times[-1])
    start = exchange.started_at.timestamp()
    return _Span(exchange, start, None if length is None else start + length)


def _continues(later: Sequence[bytes], earlier: Sequence[bytes]) -> bool:
    return 0 < len(earlier) < len(later) and later[: len(earlier)] == earlier
