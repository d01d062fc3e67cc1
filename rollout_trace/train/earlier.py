"""Which of many earlier steps a conversation goes on from, without comparing it with each of them.

The rules are those of ``history``. Here conversations are found by hashes of their beginnings, and what was found is
held against the rule: equal messages have equal hashes, so that nothing is missed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rollout_trace._lazy import cached_property
from rollout_trace.data.lists import ListSpan, TableSpan
from rollout_trace.data.model import shared
from rollout_trace.data.tokens import Span
from rollout_trace.train import history

if TYPE_CHECKING:
    from rollout_trace.data.model import Step


class Row(Protocol):
    """What is asked of a row of sequences here."""

    steps: list[tuple[Step, int, int]]
    """Its steps, and where the completion of each begins and ends."""


Placed: TypeAlias = "tuple[Step, Span, Row]"
"""A step, its completion's ids, and the row that it was added to."""

_BLOCK = 64
"""Characters of a text prompt that are hashed at a time."""
_DEPTH = 32
"""Below it, values in a message hash alike: equal ones must, and a hostile message may be thousands of lists deep."""


class Earlier:
    """The steps that are in rows, in order. Each question is about the first ``count`` of them.

    Built when it is first asked, which is when all steps are placed.
    """

    def __init__(self, placed: list[Placed]) -> None:
        self.placed = placed

    def before(self, step: Step, count: int) -> Placed | None:
        """The step from which another goes on: of several the one with the most messages, of equals the latest."""
        for at in self._index.candidates(step, count):
            if history.goes_on(step, self.placed[at][0]):
                return self.placed[at]
        return None

    def shares_its_start(self, step: Step, prompt: Span, count: int) -> bool:
        """Whether one of them begins as a step does: with the same message, or id where one has no messages."""
        index, first_id = self._index, _first_id(prompt)
        messages = _messages(step)
        by_id = index.by_first_id if messages is None else index.silent_by_first_id
        if by_id.get(first_id, count) < count:
            return True
        alike = index.by_first_message.get(index.hash_of_first(messages), [])
        return any(history.shares_its_start(step, self.placed[at][0]) for at in _below(alike, count, last_first=False))

    @cached_property
    def _index(self) -> _Index:
        return _Index(self.placed)

    def __getstate__(self) -> dict[str, Any]:
        # Not the index: in another process, or in a copy, text has other hashes and objects have other ids.
        return {"placed": self.placed}


class _Hashes:
    """Hashes of messages, each computed once."""

    def __init__(self) -> None:
        # With the message: while it is held, its id is not given to another.
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, message: Any) -> int:
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = (message, _hash(message))
        return known[1]


class _Index:
    """Positions of steps by how their conversations begin."""

    def __init__(self, placed: list[Placed]) -> None:
        self._hashes = _Hashes()
        self.by_first_message: dict[int | None, list[int]] = {}
        self.by_first_id: dict[int, int] = {}
        """The first position; of any step, and of those without messages."""
        self.silent_by_first_id: dict[int, int] = {}
        # By the hash of all messages of a step.
        self._whole: dict[int, list[int]] = {}
        # Of text prompts with their answers: by the hash of their whole blocks and the rest, then by the number of
        # messages; and how long the rests after those blocks are.
        self._texts: dict[tuple[int, str], dict[int, list[int]]] = {}
        self._rests: dict[int, set[int]] = {}
        # Lists that grow, and runs of tables: how far each was hashed, by where it begins and the hash of what stands
        # before it. They are held, as messages are.
        self._reached: dict[tuple[int, int, int], tuple[list[Any], int, int]] = {}
        for at, (step, completion, _) in enumerate(placed):
            self._add(at, step, completion)

    def candidates(self, step: Step, count: int) -> Iterator[int]:
        """Positions below ``count`` from which a step may go on, the best first."""
        messages = _messages(step)
        if not messages:
            return
        if isinstance(messages[0], str):
            yield from self._of_text(messages[0], count)
            return
        found = []
        chain = 0
        for message in messages:
            if chain in self._whole and history.is_said(message):
                found.append(self._whole[chain])
            chain = hash((chain, self._hashes.of(message)))
        for positions in reversed(found):
            yield from _below(positions, count)

    def hash_of_first(self, messages: Sequence[Any] | None) -> int | None:
        """Of the message by which conversations are told apart."""
        first = history.first(messages)
        return None if first is None else self._hashes.of(first)

    def _add(self, at: int, step: Step, completion: Span) -> None:
        first_id = _first_id(completion)
        self.by_first_id.setdefault(first_id, at)
        messages = _messages(step)
        if messages is None:
            self.silent_by_first_id.setdefault(first_id, at)
        if not messages:
            return
        first = self.hash_of_first(messages)
        if first is not None:
            self.by_first_message.setdefault(first, []).append(at)
        if isinstance(messages[0], str):
            self._add_text(at, step, messages)
        else:
            self._whole.setdefault(self._chain(step, messages), []).append(at)

    def _chain(self, step: Step, messages: Sequence[Any]) -> int:
        """The hash of all messages; of a list that has grown, from where it was left."""
        held = shared(step, "messages")
        if not isinstance(held, ListSpan):
            return self._after(messages, 0, len(messages), 0)
        chain = 0
        for first, end in held.runs if isinstance(held, TableSpan) else ((0, held.length),):
            place = (id(held.items), first, chain)
            _, reached, before = self._reached.get(place, (None, first, chain))
            if reached <= end:
                chain = self._after(held.items, reached, end, before)
                self._reached[place] = (held.items, end, chain)
            else:
                chain = self._after(held.items, first, end, chain)
        return chain

    def _after(self, items: Sequence[Any], first: int, end: int, chain: int) -> int:
        """The hash of messages, of those before the first of which ``chain`` is the hash."""
        for at in range(first, end):
            chain = hash((chain, self._hashes.of(items[at])))
        return chain

    def _add_text(self, at: int, step: Step, messages: Sequence[Any]) -> None:
        said = None if step.completion is None else step.completion.content
        if not (isinstance(said, str) and said):
            return
        whole = messages[0] + said
        chain = 0
        for start in range(0, len(whole) - len(whole) % _BLOCK, _BLOCK):
            chain = hash((chain, whole[start : start + _BLOCK]))
        rest = whole[len(whole) - len(whole) % _BLOCK :]
        self._rests.setdefault(chain, set()).add(len(rest))
        self._texts.setdefault((chain, rest), {}).setdefault(len(messages), []).append(at)

    def _of_text(self, text: str, count: int) -> Iterator[int]:
        found: list[tuple[int, int, list[int]]] = []
        chain = 0
        for start in range(0, len(text) + 1, _BLOCK):
            block = text[start : start + _BLOCK]
            for length in self._rests.get(chain, ()):
                for n_messages, positions in self._texts.get((chain, block[:length]), {}).items():
                    if positions[0] < count:
                        found.append((n_messages, positions[bisect_left(positions, count) - 1], positions))
            chain = hash((chain, block))
        for _, _, positions in sorted(found, key=lambda one: one[:2], reverse=True):
            yield from _below(positions, count)


def _below(positions: list[int], count: int, *, last_first: bool = True) -> Iterator[int]:
    """Those below ``count`` of ascending positions."""
    stop = bisect_left(positions, count)
    return (positions[at] for at in (range(stop - 1, -1, -1) if last_first else range(stop)))


def _messages(step: Step) -> Sequence[Any] | None:
    """A step's messages, without a copy of their list where that can be."""
    held = shared(step, "messages")
    if type(held) is ListSpan and held.length == len(held.items):
        return held.items
    messages: Sequence[Any] | None = held.get() if isinstance(held, ListSpan) else held
    return messages


def _first_id(span: Span) -> int:
    return int(Span(span.segment, 0, 1).get()[0])


def _hash(value: Any, depth: int = 0) -> int:
    """Equal for equal values, as JSON has them and as a program may put them there."""
    if isinstance(value, str):
        return hash(value)
    if depth == _DEPTH:
        return 0
    if isinstance(value, Mapping):
        return hash(frozenset((name, _hash(held, depth + 1)) for name, held in value.items()))
    if isinstance(value, Sequence):
        return hash(tuple([_hash(held, depth + 1) for held in value]))
    try:
        return hash(value)
    except TypeError:
        return 0
