"""The recorded exchanges of a cassette, each with its place and whether it has been used."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from rollout_trace.data.exchange import Exchange

from ._normal_form import protocol_of
from ._recorded_order import RecordedOrder
from ._requests import request_of


class RecordedCall:
    """One recorded exchange."""

    __slots__ = ("attempt", "exchange", "generates", "is_used", "next_attempt", "number", "position", "trajectory")

    def __init__(self, exchange: Exchange, trajectory: int) -> None:
        self.exchange = exchange
        self.trajectory = trajectory
        """Number of its trajectory, from 0."""
        self.generates = _generates(exchange)
        self.is_used = False
        self.position = 0
        """Among the generating exchanges of its trajectory, from 0."""
        self.number = 0
        """Of the call in its trajectory, from 1; attempts of one call share it."""
        self.attempt = 1
        self.next_attempt: RecordedCall | None = None

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
    return [_numbered([RecordedCall(one, at) for one in exchanges]) for at, exchanges in enumerate(trajectories)]


def _numbered(calls: list[RecordedCall]) -> list[RecordedCall]:
    latest: dict[str, RecordedCall] = {}
    count = 0
    for position, call in enumerate(one for one in calls if one.generates):
        call.position = position
        call_id = call.exchange.call_id
        before = latest.get(call_id) if call_id is not None else None
        if before is None:
            count += 1
            call.number = count
        else:
            call.number, call.attempt = before.number, before.attempt + 1
            before.next_attempt = call
        if call_id is not None:
            latest[call_id] = call
    return calls


class CallIndex:
    """Recorded exchanges by a key of their requests, and the order in which they come by that key.

    Args:
        trajectories: the exchanges of each.
        ordered: for each, whether its calls have an order.
        key: the key of an exchange's request.
    """

    def __init__(
        self,
        trajectories: Sequence[Sequence[RecordedCall]],
        ordered: Sequence[bool],
        key: Callable[[RecordedCall], Hashable],
    ) -> None:
        self._calls: dict[Hashable, list[RecordedCall]] = {}
        self._replies: dict[Hashable, _Replies] = {}
        self._keys: list[list[Hashable]] = [[] for _ in trajectories]
        for call in (call for calls in trajectories for call in calls):
            found = key(call)
            if call.generates:
                self._calls.setdefault(found, []).append(call)
                self._keys[call.trajectory].append(found)
            else:
                self._replies.setdefault(found, _Replies()).add(call)
        self._times = {found: len(calls) for found, calls in self._calls.items()}
        self.order = RecordedOrder(self._keys, ordered)
        for call in (call for calls in self._calls.values() for call in calls if call.is_used):
            self.order.made(call.trajectory, call.position)

    def reply(self, key: Hashable) -> RecordedCall | None:
        """The answer to a request that generates nothing: the recorded ones in their order, then the last of them."""
        found = self._replies.get(key)
        return None if found is None else found.next()

    def unused(self, key: Hashable) -> Iterator[RecordedCall]:
        """Generating exchanges with this key that have not been used, in recorded order."""
        calls = self._calls.get(key, [])
        # Here, and not where they are used: each is in several indexes.
        while calls and calls[0].is_used:
            calls.pop(0)
        return (call for call in calls if not call.is_used)

    def key_of(self, call: RecordedCall) -> Hashable:
        """The key of a generating exchange."""
        return self._keys[call.trajectory][call.position]

    def times(self, key: Hashable) -> int:
        """How many generating exchanges were recorded with this key."""
        return self._times.get(key, 0)


class _Replies:
    def __init__(self) -> None:
        self._calls: list[RecordedCall] = []
        self._given = 0

    def add(self, call: RecordedCall) -> None:
        self._calls.append(call)

    def next(self) -> RecordedCall:
        self._given += 1
        return self._calls[min(self._given, len(self._calls)) - 1]
