"""How the requests of a trajectory's steps continue each other: which of their messages are new.

Compared are the messages, not the token ids: what ``trajectory.sequences()`` finds is shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.chat.messages import previous_response_of
from rollout_trace.file.plain import dumps
from rollout_trace.train import history

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_RECENT = 16
"""Conversations whose ends a request is compared with first, the latest before the others."""


class Link(NamedTuple):
    """Where a step stands among the earlier ones."""

    thread: int
    """Which conversation it is in, from 0."""
    continues: int | None
    """Index of the step whose messages and answer its request begins with."""
    repeated: int
    """Number of messages at the beginning of its request that earlier steps have shown."""
    repeated_text: int = 0
    """Of a request that is one text: number of characters at its beginning."""
    shown_by: int | None = None
    """Index of the step that has shown what is repeated, where it is not one that this step continues."""


class _Seen(NamedTuple):
    at: int
    step: Step
    length: int
    """Number of its messages, those before its answer."""
    chain: int
    """Hash of these."""


class Threads:
    """The links of steps, which are added in their order."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self._seen: list[_Seen] = []
        self._ends: dict[int, tuple[_Seen, list[Any]]] = {}
        """The last step of each thread, with its messages; in the order of their last steps. Lists of all steps would
        grow with the square of the turns."""
        self._by_chain: dict[int, list[int]] = {}
        self._by_response: dict[str, int] = {}
        self._hashes: dict[int, tuple[Any, int]] = {}

    def add(self, step: Step) -> Link:
        """The link of the next step."""
        at = len(self._seen)
        messages = list(history.asked(step) or ())
        link, chain = self._link(step, messages)
        self.links.append(link)
        self._seen.append(_Seen(at, step, len(messages), chain))
        self._ends.pop(link.thread, None)
        self._ends[link.thread] = self._seen[at], messages
        self._by_chain.setdefault(chain, []).append(at)
        if step.response_id is not None:
            self._by_response.setdefault(step.response_id, at)
        return link

    def _link(self, step: Step, messages: list[Any]) -> tuple[Link, int]:
        previous = previous_response_of(step)
        if isinstance(previous, str) and previous in self._by_response:
            before = self._by_response[previous]
            return self._after(before, 0), self._chain(messages, self._seen[before].chain)
        if messages and isinstance(messages[0], str):
            return self._after_text(step, messages), self._chain(messages)
        if not messages:
            # They are not known: neither whether it continues another, nor that it begins anew.
            return Link(0, None, 0), 0
        found = self._predecessor(messages)
        if found is None:
            return self._beginning(step, messages)
        chain = self._chain(messages[found.length :], found.chain)
        if (twin := self._twin(messages, chain)) is not None:
            return self._beside(twin, repeated=len(messages)), chain
        repeated = found.length
        if history.compare_answer(step, found.step) != "changed":
            while repeated < len(messages) and history.is_from_assistant(messages[repeated]):
                repeated += 1
        return self._after(found.at, repeated), chain

    def _predecessor(self, messages: list[Any]) -> _Seen | None:
        """The step whose messages, followed by an answer, are the longest beginning of these."""
        best: _Seen | None = None
        for seen, own in self._recent():
            if (best is None or seen.length > best.length) and _follows(messages, own):
                best = seen
        if best is not None:
            return best
        chain, candidates = 0, []
        for message in messages:
            if chain in self._by_chain and history.is_from_assistant(message):
                candidates.append(chain)
            chain = hash((chain, self._hash(message)))
        for chain in reversed(candidates):
            for at in reversed(self._by_chain[chain]):
                if _follows(messages, self._messages(at)):
                    return self._seen[at]
        return None

    def _recent(self) -> list[tuple[_Seen, list[Any]]]:
        """The last steps of the latest threads, the latest first, with their messages."""
        return list(islice(reversed(self._ends.values()), _RECENT))

    def _messages(self, at: int) -> list[Any]:
        return list(history.asked(self._seen[at].step) or ())

    def _twin(self, messages: list[Any], chain: int) -> _Seen | None:
        """A step with the same request: another choice of one call, another try."""
        for at in reversed(self._by_chain.get(chain, [])):
            if self._messages(at) == messages:
                return self._seen[at]
        return None

    def _beginning(self, step: Step, messages: list[Any]) -> tuple[Link, int]:
        chain = self._chain(messages)
        twin = self._twin(messages, chain)
        if twin is not None:
            return self._beside(twin, repeated=len(messages)), chain
        # A reset, a summary, a sub-agent: what it has in common with others need not be shown again.
        common, other = max(((_common(messages, own), seen.at) for seen, own in self._recent()), default=(0, 0))
        if not 0 < common < len(messages):
            return Link(len(self._ends), None, 0), chain
        return Link(len(self._ends), None, common, shown_by=other), chain

    def _beside(self, twin: _Seen, *, repeated: int = 0, text: int = 0) -> Link:
        link = self.links[twin.at]
        return Link(link.thread, link.continues, repeated, text, twin.at)

    def _after(self, before: int, repeated: int, text: int = 0) -> Link:
        thread = self.links[before].thread
        # Also where the last one had the same request as this one: a thread goes on from either of two choices.
        is_end = thread in self._ends and self._ends[thread][0].chain == self._seen[before].chain
        return Link(thread if is_end else len(self._ends), before, repeated, text)

    def _after_text(self, step: Step, messages: list[Any]) -> Link:
        text = messages[0]
        for seen, own in self._recent():
            if history.continues(step, seen.step):
                reply = seen.step.completion.content if seen.step.completion is not None else ""
                return self._after(seen.at, 0, len(own[0]) + len(reply if isinstance(reply, str) else ""))
            if own == messages:
                return self._beside(seen, text=len(text))
        return Link(len(self._ends), None, 0)

    def _chain(self, messages: Sequence[Any], chain: int = 0) -> int:
        for message in messages:
            chain = hash((chain, self._hash(message)))
        return chain

    def _hash(self, message: Any) -> int:
        entry = self._hashes.get(id(message))
        if entry is None:
            # The message is stored too: an object that is alive shares its id with no other.
            entry = self._hashes[id(message)] = message, hash(dumps(message))
        return entry[1]


def _follows(messages: list[Any], before: list[Any]) -> bool:
    """Whether messages are others, then an answer, and perhaps more."""
    length = len(before)
    if not 0 < length < len(messages) or not history.is_from_assistant(messages[length]):
        return False
    # Comparing lists of mostly the same objects takes nanoseconds an item.
    return messages[:length] == before


def _common(one: list[Any], other: list[Any]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def threads_of(steps: Sequence[Step]) -> list[Link]:
    """The link of each step of a trajectory."""
    threads = Threads()
    return [threads.add(step) for step in steps]


def children_after(
    steps: Sequence[Step], children: Sequence[tuple[str, str | None, float | None]]
) -> dict[int, list[str]]:
    """Trajectories that were opened inside, by the index of the step after which they began; -1: before the first.

    Args:
        steps: of the trajectory.
        children: of each its id, its ``parent_step_id``, and when it started (Unix time).
    """
    index = {step.id: at for at, step in enumerate(steps)}
    found: dict[int, list[str]] = {}
    for identity, parent_step, started in children:
        at = index.get(parent_step) if parent_step is not None else None
        found.setdefault(_before(steps, started) if at is None else at, []).append(identity)
    return found


def _before(steps: Sequence[Step], started: float | None) -> int:
    times: Iterator[int] = (
        at
        for at, step in enumerate(steps)
        if started is not None and step.started_at is not None and step.started_at.timestamp() <= started
    )
    return max(times, default=-1)
