"""Finds the recorded step that a request continues: its messages begin with that step's request and answer.

A request is compared with the latest ones as they were sent, which is quick, and message by message only where it goes
on; what a comparison needs of a step is made when that is added. Recorders add steps on a thread of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.data.conversations import MessageTree, Node
from rollout_trace.wire import chat_messages
from rollout_trace.wire.message_key import (
    AnswerKey,
    Message,
    answer_key,
    calls_in,
    has_media,
    message_key,
    reasoning_key,
    unpadded,
)
from rollout_trace.wire.turn import Turn, added_text, call_ids

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_RECENT = 16
"""Steps whose messages a request is compared with as they stand: as many conversations can take turns."""


class Asked:
    """The messages of a request as they stood: those of an earlier one, and copies of the others."""

    __slots__ = ("begin", "rest")

    def __init__(self, begin: list[Any], rest: Sequence[Any]) -> None:
        self.begin = begin
        self.rest = [{**one} if _is_flat(one) else one for one in rest]

    def __len__(self) -> int:
        return len(self.begin) + len(self.rest)

    def begins(self, messages: Sequence[Any]) -> bool:
        """Returns whether messages begin with them."""
        known, end = len(self.begin), len(self)
        return messages[:known] == self.begin and messages[known:end] == self.rest

    def in_place_of(self, messages: list[Any]) -> list[Any]:
        """Returns equal messages, with the caller's texts where nothing else can be changed in one.

        A comparison with these need not read what both have.
        """
        known = len(self.begin)
        if len(messages) != len(self):
            return messages
        begin = self.begin if messages[:known] == self.begin else messages[:known]
        pairs = zip(self.rest, messages[known:], strict=True)
        return [*begin, *(one if _is_flat(one) and one == other else other for one, other in pairs)]


class Found(NamedTuple):
    """The step that a request continues."""

    turn: Turn | None
    """None where it continues none that is known."""
    answer: Message
    """The step's answer, as the request has it."""
    has_thought: bool
    """Whether an answer of the conversation held thinking."""
    added: str
    """Text that the request adds to an answer that was cut off: smolagents does, behind a stop text."""
    new: list[Message]
    """The messages behind it."""
    changed: int | None
    """Index of the first message that an earlier request or answer has otherwise; None where none is known."""
    is_ambiguous: bool
    """Whether other steps with other ids were asked and answered the same, and nothing in the request tells which."""
    has_media: bool
    """Whether a message, of all of them, holds more than text."""


_NOTHING = Found(None, {}, False, "", [], None, False, False)


class _Sent:
    """A request that a step answered."""

    __slots__ = ("_contents", "_lengths", "_others", "_roles", "found", "length", "messages", "node", "protocol")

    def __init__(self, protocol: str | None, messages: list[Any], node: Node, found: Found) -> None:
        """``node`` is that of its last message, ``found`` what it continued itself."""
        self.protocol, self.messages, self.node, self.found = protocol, messages, node, found
        self.length = len(messages)
        # Most messages are a role and a text. In lists of these a comparison finds one object after another, and of
        # equal objects it reads nothing; dicts are all over the memory.
        try:
            self._lengths: list[int] | None = [*map(len, messages)]
            self._roles, self._contents = [*map(_role, messages)], [*map(_content, messages)]
        except (KeyError, TypeError):
            self._lengths = None
        self._others = [one for one in messages if len(one) != _USUAL] if self._lengths else []

    def begins(self, messages: Sequence[Any]) -> bool:
        """Returns whether messages, which are as many or more, begin with these."""
        begin = messages[: self.length]
        if self._lengths is None:
            return begin == self.messages
        try:
            return (
                [*map(len, begin)] == self._lengths
                and [*map(_content, begin)] == self._contents
                and [*map(_role, begin)] == self._roles
                and (not self._others or [one for one in begin if len(one) != _USUAL] == self._others)
            )
        except (KeyError, TypeError):
            return False


_role, _content = itemgetter("role"), itemgetter("content")
_USUAL = 2
"""Fields of a message that is a role and a text."""


class TurnIndex(MessageTree):
    """The steps of one trajectory by the messages that they were asked with. Not safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[Node, list[Turn]] = {}
        """Those whose requests end at a node."""
        self._seen: set[str] = set()
        self._recent: list[_Sent] = []
        """Of the latest steps."""
        self._latest: Turn | None = None
        self._answers: set[AnswerKey] = set()
        """Keys of the steps' answers, without white space around them."""
        self._starts: set[Hashable] = set()
        """Keys of the first messages that are no system prompts."""

    def key(self, message: Any) -> Hashable:
        # Computed each time: the messages of a request are its caller's, who may change them in their place.
        return message_key(message)

    def add(self, steps: Sequence[Step], server: str | None = None, asked: Asked | None = None) -> None:
        """Adds the steps that are new: those that ended with an answer, which this server gave.

        ``asked`` are their messages, from ``find``.
        """
        for step in steps:
            if step.id in self._seen or step.status not in ("ok", "abandoned"):
                continue
            self._seen.add(step.id)
            messages = step.messages
            if messages is None or step.completion is None:
                continue
            sent = [*messages] if asked is None else asked.in_place_of([*messages])
            found, node, rest = self._follow(step.protocol, sent, self._known_beginning(step.protocol, sent))
            for message in rest:
                node = self.append(node, message)
            turn = self._latest = Turn(step, server, found.turn, self._latest)
            self._turns.setdefault(node, []).append(turn)
            # What goes on from here was looked for before this step was known.
            self._recent = [one for one in self._recent if not _is_behind(one.node, node)]
            self._answers.add(turn.unpadded)
            self._starts.add(node.start)
            self._recent = [_Sent(step.protocol, sent, node, found), *self._recent[: _RECENT - 1]]

    def find(self, protocol: str, messages: Sequence[Any]) -> tuple[Found, Asked]:
        """Finds the step whose request and answer begin the messages: the one with the most of them.

        Returns it, and the messages as they stand, for ``add``.

        Args:
            protocol: of the request.
            messages: in its shape.
        """
        known = self._known_beginning(protocol, messages)
        begin = [] if known is None else known.messages
        return self._follow(protocol, messages, known)[0], Asked(begin, messages[len(begin) :])

    def _follow(
        self, protocol: str | None, messages: Sequence[Any], known: _Sent | None
    ) -> tuple[Found, Node, list[Message]]:
        """The step; the node of the last message that is known, and the messages behind that."""
        found, node, at = (_NOTHING, self.root, 0) if known is None else (known.found, known.node, known.length)
        turn, answer, has_thought, added, new, changed, is_ambiguous, holds_media = found
        behind = messages[at:] if at else messages
        path, new, base = _chat(protocol, behind), [*new], node.depth
        holds_media = holds_media or has_media(behind)
        first_new, rest = changed, None
        is_known: bool | None = at > 0 or None
        for index, message in enumerate(path, base):
            is_answer, hit = message.get("role") == "assistant", None
            if rest is None:
                key = message_key(message)
                hit = self._answered(node, message, key) if is_answer else None
                child = self._children.get((node.number, key))
                node, rest = (node, path[index - base :]) if child is None else (child, None)
            if hit is not None:
                turn, added, is_ambiguous = hit
                answer, new, changed, first_new = message, [], None, None
                has_thought = has_thought or turn.has_thought
                continue
            new.append(message)
            first_new = index if first_new is None and rest is not None else first_new
            if is_answer:
                has_thought = has_thought or reasoning_key(message) is not None
                is_known = self._is_known(path) if is_known is None else is_known
                changed = (index if first_new is None else first_new) if is_known else changed
        found = Found(turn, answer, has_thought, added, new, changed, is_ambiguous, holds_media)
        return found, node, rest or []

    def _is_known(self, path: Sequence[Message]) -> bool:
        """Whether messages are a conversation of this trajectory: by their first one, or by an answer among them."""
        first = next((one for one in path if one.get("role") not in ("system", "developer")), None)
        answers = (unpadded(answer_key(one)) for one in path if one.get("role") == "assistant")
        return (first is not None and message_key(first) in self._starts) or not self._answers.isdisjoint(answers)

    def _known_beginning(self, protocol: str | None, messages: Sequence[Any]) -> _Sent | None:
        """The latest step with the most messages that these begin with, compared as they were sent."""
        best, longest, n_messages = None, -1, len(messages)
        for one in self._recent:
            if longest < one.length <= n_messages and one.protocol == protocol and one.begins(messages):
                best, longest = one, one.length
        return best

    def _answered(self, node: Node, message: Message, key: Any) -> tuple[Turn, str, bool] | None:
        """The turn of a node whose answer a message is, by its ids of calls where several said the same.

        And the text that is added to it; and whether another one, with other ids, would do as well.
        """
        asked = self._turns.get(node)
        if not asked:
            return None
        thought, _, said = key
        if thought is not None:
            asked = [one for one in asked if thought in one.reasonings]
        same = [one for one in asked if one.answer == said]
        if len(same) == 1:
            return same[0], "", False
        if not same:
            bare = unpadded(said)
            same = [one for one in asked if one.unpadded == bare]
        if len(same) > 1:
            ids = [one for _, _, one in calls_in(message)]
            same = [one for one in same if call_ids(one) == ids] or same
        found = [(one, "") for one in same]
        found = found or [(one, added) for one in asked if (added := added_text(one, message)) is not None]
        if not found:
            return None
        is_sure = len(found) == 1 or len({(one.ids and b"".join(one.ids.texts()), added) for one, added in found}) == 1
        # The first choice of the latest call.
        latest = found[-1][0].step.call_id
        return *next(one for one in found if one[0].step.call_id == latest), not is_sure


def _is_behind(one: Node | None, node: Node) -> bool:
    if one is node:
        return False
    while one is not None and one.depth > node.depth:
        one = one.parent
    return one is node


_DICTS = frozenset({dict})
_FLAT = frozenset({str, int, float, bool, type(None)})


def _is_flat(message: Any) -> bool:
    """Whether nothing in a message can be changed but its own fields."""
    return type(message) is dict and _FLAT.issuperset(map(type, message.values()))


def _chat(protocol: str | None, messages: Sequence[Any]) -> list[Message]:
    if protocol == "openai.chat" and {*map(type, messages)} <= _DICTS:
        # They stay as they were sent.
        return [*messages]
    groups = chat_messages.grouped(protocol, messages)
    return [message for group in groups for message in chat_messages.convert(protocol, group)]


__all__ = ["Asked", "Found", "TurnIndex"]
