"""Which recorded answer a request gets, and what there is to say where it gets none."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from rollout_trace.data.exchange import Exchange

from ._changes import changes_text, unused_text
from ._match_facts import Facts, Reason
from ._nearest import nearest
from ._normal_form import form_of, key_of
from ._recorded_calls import CallIndex, RecordedCall, recorded_calls
from ._recorded_order import RecordedOrder, overlapped
from ._requests import MatchOptions, Request, request_of
from ._text_parts import Paint
from ._unmatched import Unmatched

EXACT = MatchOptions()
"""Nothing may differ."""

__all__ = ["MatchOptions", "Matcher", "Paint", "Request", "Unmatched", "changes_text", "unused_text"]


class Matcher:
    """Gives each request its recorded exchange. Safe for threads.

    An equal request goes before one whose normal form is equal; among equal ones the first recorded is used first. An
    exchange that generates is used once. One that generates nothing answers any number of times: where several answers
    were recorded for it, in their order, and then the last.

    Args:
        conversations: the exchanges of each recorded trajectory, in their order.
        options: what may differ.
    """

    def __init__(self, conversations: Sequence[Sequence[Exchange]], options: MatchOptions = EXACT) -> None:
        self._options = options
        self._trajectories = recorded_calls(conversations)
        self._lock = threading.Lock()
        self._ordered = [options.order == "recorded" and not self._is_parallel(calls) for calls in self._trajectories]
        self._exact = CallIndex(self._trajectories, self._ordered, lambda call: _exact_key(request_of(call.exchange)))
        self._normal: CallIndex | None = None
        self._attempts: dict[str, RecordedCall] = {}
        self._numbers: dict[str, int] = {}
        self._calls_made = 0
        self._refused: Counter[bytes] = Counter()

    def take(self, request: Request) -> Exchange | Unmatched:
        """The recorded exchange that answers a request, which is used with that; ``Unmatched`` where there is none.

        Raises:
            ValueError: ``normalize`` failed, or returned what is no JSON value.
        """
        with self._lock:
            found = self._find(request)
            if isinstance(found, RecordedCall):
                return found.exchange
            candidates = [(call, call.is_used) for calls in self._trajectories for call in calls]
        # Outside the lock: it reads many requests.
        closest = found.waiting or nearest(request, candidates, self._options)
        exchange = None if closest is None else closest.exchange
        return Unmatched(request, exchange, found.reason, replace(found, nearest=closest))

    def unused(self) -> list[Exchange]:
        """The recorded exchanges that generate and were not asked for, in recorded order."""
        with self._lock:
            return [one.exchange for calls in self._trajectories for one in calls if one.generates and not one.is_used]

    def _is_parallel(self, calls: Iterable[RecordedCall]) -> bool:
        exchanges = [call.exchange for call in calls if call.generates]
        known: dict[int, list[bytes]] = {}

        def messages_of(exchange: Exchange) -> list[bytes]:
            if id(exchange) not in known:
                messages = form_of(request_of(exchange), EXACT).messages
                known[id(exchange)] = [message.digest for message in messages]
            return known[id(exchange)]

        return overlapped(exchanges, messages_of)

    def _find(self, request: Request) -> RecordedCall | Facts:
        exact = _exact_key(request)
        found = self._exact.reply(exact) or self._use(request, self._exact, exact)
        if found is not None:
            return found
        if self._normal is None:  # Not before it is needed: it reads every request of the cassette.
            self._normal = CallIndex(self._trajectories, self._ordered, _normal_key(self._options))
        key = key_of(request, self._options)
        found = self._normal.reply(key) or self._use(request, self._exact, exact)  # By normal forms, more may be due.
        return found or self._use(request, self._normal, key) or self._facts(request, self._normal, key)

    @property
    def _order(self) -> RecordedOrder:
        # By normal forms as soon as they are known: a request that was made in other bytes counts there.
        return (self._normal or self._exact).order

    def _is_due(self, call: RecordedCall) -> bool:
        return self._order.is_due(call.trajectory, call.position)

    def _use(self, request: Request, index: CallIndex, key: Hashable) -> RecordedCall | None:
        """Uses a recorded call of a key that is due; None where there is none."""
        due = filter(self._is_due, index.unused(key))
        chosen = next(due, None)
        if chosen is None:
            return None
        if request.call is not None:
            chosen = self._next_attempt(request.call, index, key) or _first_attempt(chosen, due)
            self._attempts[request.call] = chosen
        chosen.is_used = True
        self._number(request, is_retry=chosen.attempt > 1)
        self._order.made(chosen.trajectory, chosen.position)
        return chosen

    def _next_attempt(self, call: str, index: CallIndex, key: Hashable) -> RecordedCall | None:
        """The next recorded attempt of what a client's call was given before, if it fits."""
        before = self._attempts.get(call)
        following = before.next_attempt if before is not None else None
        if following is None or following.is_used or index.key_of(following) != key or not self._is_due(following):
            return None
        return following

    def _number(self, request: Request, *, is_retry: bool) -> int:
        """Number of the call that a request is an attempt of, among those that the test made."""
        known = None if request.call is None else self._numbers.get(request.call)
        if known is not None:
            return known
        self._calls_made += not is_retry
        if request.call is not None:
            self._numbers[request.call] = self._calls_made
        return self._calls_made

    def _facts(self, request: Request, index: CallIndex, key: bytes) -> Facts:
        calls = [[call for call in calls if call.generates] for calls in self._trajectories]
        generating = [call for own in calls for call in own]
        waiting = next(index.unused(key), None)
        times = index.times(key)
        reason: Reason = "order" if waiting else "used" if times else "not_recorded"
        self._refused[key] += reason == "used"
        return Facts(
            reason=reason if any(self._trajectories) else "nothing_recorded",
            number=self._number(request, is_retry=False),
            recorded=len(generating),
            used=sum(call.is_used for call in generating),
            several=len(self._trajectories) > 1,
            times=times,
            asked=times + self._refused[key],
            waiting=waiting,
            missing=None if waiting is None else calls[waiting.trajectory][self._order.awaited(waiting.trajectory)],
            options=self._options,
        )


def _first_attempt(chosen: RecordedCall, others: Iterator[RecordedCall]) -> RecordedCall:
    # Later attempts of a recorded call are kept for the client's call that was given its first.
    return chosen if chosen.attempt == 1 else next((one for one in others if one.attempt == 1), chosen)


def _exact_key(request: Request) -> tuple[str, str, bytes]:
    return request.method.upper(), request.path, request.body


def _normal_key(options: MatchOptions) -> Callable[[RecordedCall], Hashable]:
    known: dict[Hashable, bytes] = {}  # Samples of one prompt, and attempts of one call, have equal bytes.

    def key(call: RecordedCall) -> bytes:
        request = request_of(call.exchange)
        exact = _exact_key(request)
        if exact not in known:
            known[exact] = key_of(request, options)
        return known[exact]

    return key
