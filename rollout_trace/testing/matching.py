"""Which recorded answer a request gets, and what there is to say where it gets none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from rollout_trace import guard
from rollout_trace.data.exchange import Exchange

from ._differences import Paint, digest_of
from ._explain import Reason, Unmatched, changes_text, unused_text
from ._normal_form import MatchOptions, Request, form_of, key_of, messages_of, protocol_of, request_of, target_of
from ._recorded_calls import CallIndex, RecordedCall, RecordedOrder, overlapped, recorded_calls

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

    def take(self, request: Request) -> Exchange | Unmatched:
        """The recorded exchange that answers a request, which is used with that; ``Unmatched`` where there is none.

        Raises:
            ValueError: ``normalize`` failed, or returned what is no JSON value.
        """
        with self._lock:
            found = self._find(request)
            if isinstance(found, RecordedCall):
                return found.exchange
            number = self._number(request, is_retry=False)
            return self._unmatched(request, f"call {number}" if protocol_of(request) else "the request", found)

    def unused(self) -> list[Exchange]:
        """The recorded exchanges that generate and were not asked for, in recorded order."""
        with self._lock:
            return [one.exchange for calls in self._trajectories for one in calls if one.generates and not one.is_used]

    def _is_parallel(self, calls: Iterable[RecordedCall]) -> bool:
        exchanges = [call.exchange for call in calls if call.generates]
        known: dict[int, list[bytes]] = {}

        def digests(exchange: Exchange) -> list[bytes]:
            if id(exchange) not in known:
                form = form_of(request_of(exchange), EXACT)
                known[id(exchange)] = [digest_of(one) for one in messages_of(form["protocol"], form["body"])]
            return known[id(exchange)]

        return overlapped(exchanges, digests)

    def _find(self, request: Request) -> RecordedCall | bytes:
        """The call that answers a request; where there is none, the key of the request's normal form."""
        exact = _exact_key(request)
        found = self._exact.reply(exact) or self._use(request, self._exact, exact)
        if found is not None:
            return found
        if self._normal is None:  # Not before it is needed: it reads every request of the cassette.
            self._normal = CallIndex(self._trajectories, self._ordered, _normal_key(self._options))
        key = key_of(request, self._options)
        found = self._normal.reply(key) or self._use(request, self._exact, exact)  # By normal forms, more may be due.
        return found or self._use(request, self._normal, key) or key

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

    def _unmatched(self, request: Request, what: str, key: bytes) -> Unmatched:
        index, several = self._normal or self._exact, len(self._trajectories) > 1
        calls = [call for own in self._trajectories for call in own]
        waiting, times = next(index.unused(key), None), index.times(key)
        closest = expected = waiting or self._nearest(request, calls)
        reason: Reason = "not_recorded"
        if protocol_of(request) is None:
            what = f"{what} {guard.printable(target_of(request), 200)}"
        if not calls:
            reason, sentence = "nothing_recorded", f"{what} was not recorded: the cassette is empty."
        elif waiting is not None:
            own = [one for one in self._trajectories[waiting.trajectory] if one.generates]
            expected = own[self._order.awaited(waiting.trajectory)]
            names = [one.describe(several=several) for one in (waiting, expected)]
            reason = "order"
            sentence = f"{what} came too early: it is {names[0]}, and {names[1]} should come before it."
        elif times:
            count = "once" if times == 1 else f"{times:,} times"
            reason, sentence, expected = "used", f"{what} was recorded {count}, and is asked for once more.", None
        elif closest is None:
            sentence = f"{what} was not recorded."
        else:
            sentence = f"{what} was not recorded: it differs from {closest.describe(several=several)}"
        exchanges = [None if one is None else one.exchange for one in (closest, expected)]
        return Unmatched(request, reason, sentence, exchanges[0], exchanges[1], self._options)

    def _nearest(self, request: Request, calls: Sequence[RecordedCall]) -> RecordedCall | None:
        """The call with the fewest messages that differ, then with the fewest other fields, then the most alike."""
        now = form_of(request, self._options)
        # A list of models is like no call.
        fitting = [one for one in calls if one.generates == (now["protocol"] is not None)]
        fitting = sorted(fitting, key=lambda call: call.is_used)[:_MOST_COMPARED]

        def distance(call: RecordedCall) -> tuple[Any, ...]:
            then = form_of(request_of(call.exchange), self._options)
            is_other = now["protocol"] != then["protocol"] or now["request"] != then["request"]
            bodies = [one["body"] if isinstance(one["body"], dict) else {"": one["body"]} for one in (now, then)]
            fields = sum(bodies[0].get(name) != bodies[1].get(name) for name in {**bodies[0], **bodies[1]})
            mine, theirs = (messages_of(one["protocol"], one["body"]) for one in (now, then))
            digests = [digest_of(one) for one in mine], [digest_of(one) for one in theirs]
            equal = sum(size for _, _, size in SequenceMatcher(None, *digests, autojunk=False).get_matching_blocks())
            texts = [json.dumps(some[-1:])[-_COMPARED:] for some in (mine, theirs)]
            alike = SequenceMatcher(None, texts[0], texts[1]).quick_ratio()
            return is_other, max(len(mine), len(theirs)) - equal, fields, -round(alike, 1)

        return min(fitting, key=distance, default=None)


_MOST_COMPARED = 200
"""Calls among which the nearest is looked for: reading a cassette of thousands takes long."""
_COMPARED = 2000
"""Characters of a message by which calls are found to be alike."""


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
