"""Chooses the recorded answer for a request, and explains why there is none."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any

from rollout_trace import guard
from rollout_trace.data.exchange import Exchange

from ._differences import Paint, digest_of
from ._explain import Reason, Unmatched, changes_text, unused_text
from ._normal_form import MatchOptions, Request, form_of, key_of, messages_of, protocol_of, request_of, target_of
from ._recorded_calls import RecordedCall, RecordedOrder, overlapped, recorded_calls

EXACT = MatchOptions()
"""Nothing may differ."""

__all__ = ["MatchOptions", "Matcher", "Paint", "Request", "Unmatched", "changes_text", "unused_text"]


class Matcher:
    """Gives each request its recorded exchange, of those of each recorded trajectory. Safe for threads.

    An equal request goes before one whose normal form is equal; among equal ones the first recorded is used first. An
    exchange that generates is used once. One that generates nothing answers any number of times: where several answers
    were recorded for it, in their order, and then the last.
    """

    def __init__(self, conversations: Sequence[Sequence[Exchange]], options: MatchOptions = EXACT) -> None:
        self._options = options
        self._trajectories = recorded_calls(conversations)
        self._lock = threading.Lock()
        self._by_key: dict[bytes, list[RecordedCall]] = {}
        self._failure: ValueError | None = None
        """Of ``normalize``, on a recorded request: such a request is found by its bytes alone."""
        self._order: RecordedOrder | None = None
        self._replies: Counter[bytes] = Counter()
        """How many requests that generate nothing were answered, by their key."""
        self._attempts: dict[str, RecordedCall] = {}
        self._numbers: dict[str, int] = {}
        self._calls_made = 0

    def take(self, request: Request) -> Exchange | Unmatched:
        """The recorded exchange that answers a request, which is used with that; ``Unmatched`` where there is none.

        Raises ValueError where no recorded request has the same bytes and ``normalize`` failed.
        """
        with self._lock:
            order = self._order = self._order or self._read()
            key, failure = self._keyed(request)
            calls = self._by_key.get(key, [])
            found = self._reply(key, calls) or self._use(request, [one for one in calls if one.generates], order)
            if found is not None:
                return found.exchange
            if (failure := failure or self._failure) is not None:
                raise failure
            number = self._number(request, is_retry=False)
            waiting = next((one for one in calls if not one.is_used), None)
            expected = None
            if waiting is not None:
                own = [one for one in self._trajectories[waiting.trajectory] if one.generates]
                expected = own[order.awaited(waiting.trajectory)]
        # Without the lock: it takes long, and other requests have their answers.
        return self._unmatched(request, number, len(calls), waiting, expected)

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

    def _read(self) -> RecordedOrder:
        known: dict[tuple[str, str, bytes], bytes] = {}  # Samples of one prompt, and attempts, have equal bytes.
        for call in (call for calls in self._trajectories for call in calls):
            request = request_of(call.exchange)
            if (bytes_of := _bytes_of(request)) not in known:
                known[bytes_of], failure = self._keyed(request)
                self._failure = self._failure or failure
            call.key = known[bytes_of]
            self._by_key.setdefault(call.key, []).append(call)
        ordered = [self._options.order == "recorded" and not self._is_parallel(calls) for calls in self._trajectories]
        return RecordedOrder([[one.key for one in calls if one.generates] for calls in self._trajectories], ordered)

    def _keyed(self, request: Request) -> tuple[bytes, ValueError | None]:
        """The key of a request; where ``normalize`` failed, that of its bytes, and why it failed."""
        try:
            return key_of(request, self._options), None
        except ValueError as failure:
            return digest_of(_bytes_of(request)), failure

    def _reply(self, key: bytes, calls: Sequence[RecordedCall]) -> RecordedCall | None:
        """The answer to a request that generates nothing: the recorded ones in their order, then the last of them."""
        replies = [one for one in calls if not one.generates]
        if not replies:
            return None
        self._replies[key] += 1
        return replies[min(self._replies[key], len(replies)) - 1]

    def _use(self, request: Request, calls: Sequence[RecordedCall], order: RecordedOrder) -> RecordedCall | None:
        """Uses a recorded call that is due; None where there is none."""
        due = [one for one in calls if not one.is_used and order.is_due(one.trajectory, one.position)]
        if not due:
            return None
        due.sort(key=lambda one: _bytes_of(request_of(one.exchange)) != _bytes_of(request))
        chosen = due[0]
        if request.call is not None:
            before = self._attempts.get(request.call)
            if before is not None and before.next_attempt in due:
                chosen = before.next_attempt
            else:
                # Later attempts of a recorded call are kept for the client's call that was given its first.
                chosen = next((one for one in due if one.attempt == 1), chosen)
            self._attempts[request.call] = chosen
        chosen.is_used = True
        self._number(request, is_retry=chosen.attempt > 1)
        order.made(chosen.trajectory, chosen.position)
        return chosen

    def _number(self, request: Request, *, is_retry: bool) -> int:
        """Number of the call that a request is an attempt of, among those that the test made."""
        known = None if request.call is None else self._numbers.get(request.call)
        if known is not None:
            return known
        self._calls_made += not is_retry
        if request.call is not None:
            self._numbers[request.call] = self._calls_made
        return self._calls_made

    def _unmatched(
        self, request: Request, number: int, times: int, waiting: RecordedCall | None, before: RecordedCall | None
    ) -> Unmatched:
        """Explains why call ``number`` has no answer, though ``times`` equal requests were recorded.

        One of these was not asked for (``waiting``); another call should come before it (``before``).
        """
        several = len(self._trajectories) > 1
        calls = [call for own in self._trajectories for call in own]
        closest = expected = waiting or self._nearest(request, calls)
        reason: Reason = "not_recorded"
        what = f"call {number}"
        if protocol_of(request) is None:
            what = f"the request {guard.printable(target_of(request), 200)}"
        if not calls:
            reason, sentence = "nothing_recorded", f"{what} was not recorded: the cassette is empty."
        elif waiting is not None and before is not None:
            expected = before
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


def _bytes_of(request: Request) -> tuple[str, str, bytes]:
    return request.method.upper(), request.path, request.body
