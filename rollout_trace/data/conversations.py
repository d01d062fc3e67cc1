"""The index of conversations: which earlier step a request continues, what it repeats, and what it begins with.

Requests that begin with equal messages share the nodes of one tree, so each is placed by its new messages alone. Text
prompts, which have no messages, are found by hashes of their beginnings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from rollout_trace.data.lists import ListSpan, TableSpan
from rollout_trace.data.model import shared

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_BLOCK = 64
"""Number of characters of a text prompt that are hashed at a time."""
_DEPTH = 32
"""Depth in a message below which all values have the same hash: recursion must end, as a hostile message may be
thousands of lists deep, and equal messages must still hash alike."""
_ASSISTANT_ITEMS = frozenset({"function_call", "custom_tool_call", "reasoning"})


class Node:
    """A message that follows those of its ancestors. The root holds no message.

    It refers to its parent alone: a cycle is never freed in trainers that switch the garbage collector off.
    """

    __slots__ = ("depth", "message", "number", "parent", "place", "start", "steps", "text")

    def __init__(self, message: Any, parent: Node | None, number: int = 0, place: int = 0) -> None:
        self.message = message
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        """Number of messages up to this one."""
        self.number = number
        """Its own among the nodes of its tree."""
        self.place = place
        """Position of the step that was the first to have it; or in an exporter's output."""
        self.steps: list[int] = []
        """Positions of the steps whose requests end here, ascending."""
        self.start: Hashable = None
        """Key of the first message that is no system or developer prompt; None where there is none."""
        self.text: str | None = None
        """The first message, where it is a text prompt."""

    def path(self) -> list[Node]:
        """The nodes from the first message to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class MessageTree:
    """Messages by those that come before them."""

    def __init__(self, key: Callable[[Any], Hashable] | None = None) -> None:
        """``key``: messages with equal keys are the same; by default equal messages are."""
        self.root = Node({}, None)
        self._key_of = key or _Equal
        self._keys: dict[int, tuple[Any, Hashable]] = {}
        self._children: dict[tuple[int, Hashable], Node] = {}
        """By the number of the parent, and the key."""
        self._numbers = count(1)

    def child(self, node: Node, message: Any) -> Node | None:
        """The node of a message after those up to ``node``; None where there is none."""
        return self._children.get((node.number, self.key(message)))

    def key(self, message: Any) -> Hashable:
        """The key of a message, computed once for each object."""
        entry = self._keys.get(id(message))
        if entry is None:
            # The message is stored with its key: a freed message's id could be given to another one.
            entry = self._keys[id(message)] = message, self._key_of(message)
        return entry[1]

    def append(self, node: Node, message: Any, place: int = 0) -> Node:
        """Adds a message as a child of a node."""
        key = self.key(message)
        child = Node(message, node, next(self._numbers), place)
        is_system = isinstance(message, dict) and message.get("role") in ("system", "developer")
        child.start = key if node.start is None and not is_system else node.start
        child.text = message if node.parent is None and isinstance(message, str) else node.text
        # The first of equal children stays the one that later requests continue.
        self._children.setdefault((node.number, key), child)
        return child


class Conversations(MessageTree):
    """Steps by the messages of their requests. Each is named by its position, in the order in which they are added."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._leaves: list[Node] = []
        self._starts: dict[Hashable, int] = {}
        """First position of each first message."""
        self._reached: dict[tuple[int, int, int], tuple[list[Any], int, Node]] = {}
        """How far each growing list, or run of a table, was placed, and where: by its id, its start, and the
        number of the node before it. Lists are stored for their ids, as messages are."""
        self._texts: dict[tuple[int, str], dict[int, list[int]]] = {}
        """Text prompts with their answers: by hash of the whole blocks and the rest, then by number of messages."""
        self._rests: dict[int, set[int]] = {}
        """Lengths of the rests after the same blocks: a longer text is cut at each to look it up."""

    def add(self, step: Step, after: int | None = None) -> int:
        """Places the next step, and returns its position.

        ``after``: the position of a step whose messages come before these, though the request does not repeat them.
        """
        at = len(self.steps)
        leaf = self._place(shared(step, "messages"), self.root if after is None else self.request(after), at)
        self.steps.append(step)
        self._leaves.append(leaf)
        if leaf.start is not None:
            self._starts.setdefault(leaf.start, at)
        request = self.request(at)
        if request is not self.root:
            request.steps.append(at)
        if leaf.text is not None:
            self._add_text(at, step, leaf)
        return at

    def request(self, at: int) -> Node:
        """The last message of a step's request, before its answer."""
        leaf = self._leaves[at]
        return leaf.parent if leaf.parent is not None and gives_start(self.steps[at]) else leaf

    def continued(self, at: int) -> Iterator[int]:
        """Earlier steps whose messages, then an answer, a request begins with: the longest first, of equals the latest.

        What the answer says is not compared. A text prompt continues those that it begins with, answers included.
        """
        node = self._leaves[at]
        if node.text is not None:
            yield from self._continued_texts(node.text, at)
            return
        while node.parent is not None:
            is_answer, node = is_from_assistant(node.message), node.parent
            if is_answer:
                yield from _below(node.steps, at)

    def twin(self, at: int) -> int | None:
        """The latest earlier step with the same request: another choice of one call, another try."""
        return next(_below(self.request(at).steps, at), None)

    def repeated(self, at: int) -> Node:
        """The last message of a request that stood in an earlier one, after the same messages; the root for none."""
        node = self.request(at)
        while node.parent is not None and node.place == at:
            node = node.parent
        return node

    def shares_start(self, at: int) -> bool:
        """Returns whether an earlier request has the same first message, system prompts aside."""
        return self._starts.get(self._leaves[at].start, at) < at

    def _place(self, stored: Any, node: Node, at: int) -> Node:
        if not isinstance(stored, ListSpan):
            return self._extend(node, stored or (), 0, len(stored or ()), at)
        for first, end in stored.runs if isinstance(stored, TableSpan) else ((0, stored.length),):
            mark = (id(stored.items), first, node.number)
            _, reached, node = self._reached.get(mark, (None, first, node))
            if reached <= end:
                node = self._extend(node, stored.items, reached, end, at)
                self._reached[mark] = stored.items, end, node
            for _ in range(end, reached):
                assert node.parent is not None
                node = node.parent
        return node

    def _extend(self, node: Node, messages: Sequence[Any], first: int, end: int, at: int) -> Node:
        for index in range(first, end):
            node = self.child(node, messages[index]) or self.append(node, messages[index], at)
        return node

    def _add_text(self, at: int, step: Step, leaf: Node) -> None:
        reply = None if step.completion is None else step.completion.content
        # An empty answer adds nothing to the prompt: any prompt with this beginning would seem to continue it.
        if not (isinstance(reply, str) and reply):
            return
        whole = f"{leaf.text}{reply}"
        chain = 0
        for start in range(0, len(whole) - len(whole) % _BLOCK, _BLOCK):
            chain = hash((chain, whole[start : start + _BLOCK]))
        rest = whole[len(whole) - len(whole) % _BLOCK :]
        self._rests.setdefault(chain, set()).add(len(rest))
        self._texts.setdefault((chain, rest), {}).setdefault(leaf.depth, []).append(at)

    def _continued_texts(self, text: str, at: int) -> Iterator[int]:
        matches: list[tuple[int, int, list[int]]] = []
        chain = 0
        for start in range(0, len(text) + 1, _BLOCK):
            block = text[start : start + _BLOCK]
            for length in self._rests.get(chain, ()):
                for n_messages, positions in self._texts.get((chain, block[:length]), {}).items():
                    if positions[0] < at:
                        matches.append((n_messages, positions[bisect_left(positions, at) - 1], positions))
            chain = hash((chain, block))
        for _, _, positions in sorted(matches, key=lambda one: one[:2], reverse=True):
            # Hashes of different texts may be equal.
            yield from (one for one in _below(positions, at) if text.startswith(self.whole_text(one)))

    def whole_text(self, at: int) -> str:
        """A text prompt, followed by its answer."""
        completion = self.steps[at].completion
        return f"{self._leaves[at].text}{'' if completion is None else completion.content}"


class _Equal:
    """A message as a key: equal for equal messages."""

    __slots__ = ("_hash", "message")

    def __init__(self, message: Any) -> None:
        self.message = message
        self._hash = _hash(message)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Equal) and (self.message is other.message or bool(self.message == other.message))


def is_from_assistant(message: Any) -> bool:
    """Returns whether a message is the assistant's (Google's: model), or a Responses item of it: a call, reasoning."""
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    return message.get("role") in ("assistant", "model") or (isinstance(kind, str) and kind in _ASSISTANT_ITEMS)


def gives_start(step: Step) -> bool:
    """Returns whether the answer continues the last message of the request (``continue_final_message``).

    An answer that was cut off or aborted goes on so: the conversation has one answer, of both parts.
    """
    if not (isinstance(step.sampling, Mapping) and step.sampling.get("continue_final_message") is True):
        return False
    last = step.messages[-1] if step.messages else None
    content = last.get("content") if last and is_from_assistant(last) else None
    parts = content if isinstance(content, list) else [{"text": content}]
    return any(isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"] for part in parts)


def n_asked(step: Step) -> int:
    """Number of a step's messages before its answer: without the last one where the answer continues it."""
    stored = shared(step, "messages")
    length: int = stored.length if isinstance(stored, ListSpan) else len(stored or ())
    return length - gives_start(step)


def _below(positions: list[int], stop: int) -> Iterator[int]:
    """The positions below ``stop``, the last first; ``positions`` ascend."""
    return (positions[at] for at in range(bisect_left(positions, stop) - 1, -1, -1))


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
