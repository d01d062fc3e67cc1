"""An index of earlier steps: which of them a conversation continues, without comparing it with each.

The rules are those of ``history``. Candidates are found by hashes of the beginnings of conversations, then checked by
the rule itself. Equal messages have equal hashes, so no step is missed; a collision costs one comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rollout_trace._cached import cached_property
from rollout_trace.data.lists import ListSpan, TableSpan
from rollout_trace.data.model import shared
from rollout_trace.data.tokens import Span
from rollout_trace.train import history

if TYPE_CHECKING:
    from rollout_trace.data.model import Step


class Row(Protocol):
    """The part of a row of sequences that is used here."""

    steps: list[tuple[Step, int, int]]
    """The steps in the row, each with begin and end of its completion."""


Placed: TypeAlias = "tuple[Step, Span, Row]"
"""A step, the span up to the end of its completion, and the row that it was added to."""

_BLOCK = 64
"""Number of characters of a text prompt that are hashed at a time."""
_DEPTH = 32
"""Depth in a message below which all values have the same hash: recursion must end, as a hostile message may be
thousands of lists deep, and equal messages must still hash alike."""


class Earlier:
    """The steps that are in rows, in order. Each method looks at the first ``count`` of them alone.

    The index is built on first use: by then all steps are placed, and one index serves all breaks.
    """

    def __init__(self, placed: list[Placed]) -> None:
        self.placed = placed

    def predecessor(self, step: Step, count: int) -> Placed | None:
        """The step that ``step`` continues; of several the one with the most messages, of equals the latest."""
        for at in self._index.candidates(step, count):
            if history.continues(step, self.placed[at][0]):
                return self.placed[at]
        return None

    def shares_start(self, step: Step, prompt: Span, count: int) -> bool:
        """Whether an earlier step has the same first message, or, where one of the two has no messages, first id."""
        index, first_id = self._index, _first_id(prompt)
        messages = _messages(step)
        by_id = index.by_first_id if messages is None else index.by_first_id_without_messages
        if by_id.get(first_id, count) < count:
            return True
        alike = index.by_first_message.get(index.hash_of_first(messages), [])
        return any(history.shares_start(step, self.placed[at][0]) for at in _below(alike, count, last_first=False))

    @cached_property
    def _index(self) -> _Index:
        return _Index(self.placed)

    def __getstate__(self) -> dict[str, Any]:
        # Without the index: another process has other hashes of texts, and copied objects have other ids.
        return {"placed": self.placed}


class _Hashes:
    """Hashes of messages, each computed once per object."""

    def __init__(self) -> None:
        # By id. The message is stored too: an object that is alive shares its id with no other.
        self._cache: dict[int, tuple[Any, int]] = {}

    def of(self, message: Any) -> int:
        entry = self._cache.get(id(message))
        if entry is None:
            entry = self._cache[id(message)] = (message, _hash(message))
        return entry[1]


class _Index:
    """Positions of steps by the hashes of their messages."""

    def __init__(self, placed: list[Placed]) -> None:
        self._hashes = _Hashes()
        self.by_first_message: dict[int | None, list[int]] = {}
        self.by_first_id: dict[int, int] = {}
        """First position of each first id, among all steps; below, among those without messages."""
        self.by_first_id_without_messages: dict[int, int] = {}
        # By the hash of all messages of a step.
        self._whole: dict[int, list[int]] = {}
        # Text prompts with their answers: by hash of the whole blocks and the rest, then by number of messages.
        # `_rests` has the lengths of the rests after the same blocks: a longer text is cut at each to look it up.
        self._texts: dict[tuple[int, str], dict[int, list[int]]] = {}
        self._rests: dict[int, set[int]] = {}
        # How far each growing list, or run of a table, was hashed, and the hash there; by id, start and the hash before
        # it. So each turn hashes its new messages alone. The lists are stored for their ids, as above.
        self._reached: dict[tuple[int, int, int], tuple[list[Any], int, int]] = {}
        for at, (step, completion, _) in enumerate(placed):
            self._add(at, step, completion)

    def candidates(self, step: Step, count: int) -> Iterator[int]:
        """Positions below ``count`` of steps that ``step`` may continue, best first."""
        messages = _messages(step)
        if not messages:
            return
        if isinstance(messages[0], str):
            yield from self._of_text(messages[0], count)
            return
        predecessors = []
        chain = 0
        for message in messages:
            # Before the message is added: an answer follows all messages of the step that it answers.
            if chain in self._whole and history.is_from_assistant(message):
                predecessors.append(self._whole[chain])
            chain = hash((chain, self._hashes.of(message)))
        for positions in reversed(predecessors):
            yield from _below(positions, count)

    def hash_of_first(self, messages: Sequence[Any] | None) -> int | None:
        """The hash of the first message that is no system prompt; None where there is none."""
        first = history.first(messages)
        return None if first is None else self._hashes.of(first)

    def _add(self, at: int, step: Step, completion: Span) -> None:
        first_id = _first_id(completion)
        self.by_first_id.setdefault(first_id, at)
        messages = _messages(step)
        if messages is None:
            self.by_first_id_without_messages.setdefault(first_id, at)
        if not messages:
            return
        first = self.hash_of_first(messages)
        if first is not None:
            self.by_first_message.setdefault(first, []).append(at)
        if isinstance(messages[0], str):
            self._add_text(at, step, messages)
        else:
            # Asked first: `asked` copies the messages, which few steps need.
            asked = history.asked(step) if history.continues_last(step) else None
            chain = self._chain(step, messages) if asked is None else self._of_all(asked)
            self._whole.setdefault(chain, []).append(at)

    def _chain(self, step: Step, messages: Sequence[Any]) -> int:
        """The hash of all messages; of a list that has grown, only the new ones are hashed."""
        stored = shared(step, "messages")
        if not isinstance(stored, ListSpan):
            return self._of_all(messages)
        chain = 0
        for first, end in stored.runs if isinstance(stored, TableSpan) else ((0, stored.length),):
            place = (id(stored.items), first, chain)
            _, reached, before = self._reached.get(place, (None, first, chain))
            if reached <= end:
                chain = self._extended_chain(stored.items, reached, end, before)
                self._reached[place] = (stored.items, end, chain)
            else:
                # A shorter part than was hashed before: from its start, and the mark is not moved back.
                chain = self._extended_chain(stored.items, first, end, chain)
        return chain

    def _of_all(self, messages: Sequence[Any]) -> int:
        return self._extended_chain(messages, 0, len(messages), 0)

    def _extended_chain(self, items: Sequence[Any], first: int, end: int, chain: int) -> int:
        """``chain``, the hash of the messages before ``first``, extended by those of [first, end)."""
        for at in range(first, end):
            chain = hash((chain, self._hashes.of(items[at])))
        return chain

    def _add_text(self, at: int, step: Step, messages: Sequence[Any]) -> None:
        reply = None if step.completion is None else step.completion.content
        if not (isinstance(reply, str) and reply):
            return
        whole = messages[0] + reply
        chain = 0
        for start in range(0, len(whole) - len(whole) % _BLOCK, _BLOCK):
            chain = hash((chain, whole[start : start + _BLOCK]))
        rest = whole[len(whole) - len(whole) % _BLOCK :]
        self._rests.setdefault(chain, set()).add(len(rest))
        self._texts.setdefault((chain, rest), {}).setdefault(len(messages), []).append(at)

    def _of_text(self, text: str, count: int) -> Iterator[int]:
        matches: list[tuple[int, int, list[int]]] = []
        chain = 0
        for start in range(0, len(text) + 1, _BLOCK):
            block = text[start : start + _BLOCK]
            for length in self._rests.get(chain, ()):
                for n_messages, positions in self._texts.get((chain, block[:length]), {}).items():
                    if positions[0] < count:
                        matches.append((n_messages, positions[bisect_left(positions, count) - 1], positions))
            chain = hash((chain, block))
        for _, _, positions in sorted(matches, key=lambda one: one[:2], reverse=True):
            yield from _below(positions, count)


def _below(positions: list[int], count: int, *, last_first: bool = True) -> Iterator[int]:
    """The positions below ``count``; ``positions`` ascend."""
    stop = bisect_left(positions, count)
    return (positions[at] for at in (range(stop - 1, -1, -1) if last_first else range(stop)))


def _messages(step: Step) -> Sequence[Any] | None:
    """A step's messages; the list is not copied where the step has all of it."""
    stored = shared(step, "messages")
    if type(stored) is ListSpan and stored.length == len(stored.items):
        return stored.items
    messages: Sequence[Any] | None = stored.get() if isinstance(stored, ListSpan) else stored
    return messages


def _first_id(span: Span) -> int:
    return int(Span(span.segment, 0, 1).get()[0])


def _hash(value: Any, depth: int = 0) -> int:
    """A hash that is equal for equal values, of JSON or of a program's own types; 0 for what cannot be hashed."""
    if isinstance(value, str):
        return hash(value)
    if depth == _DEPTH:
        return 0
    if isinstance(value, Mapping):
        return hash(frozenset((name, _hash(item, depth + 1)) for name, item in value.items()))
    if isinstance(value, Sequence):
        return hash(tuple([_hash(item, depth + 1) for item in value]))
    try:
        return hash(value)
    except TypeError:
        return 0
