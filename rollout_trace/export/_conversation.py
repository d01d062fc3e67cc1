"""What is new in each request: the messages of a trajectory's steps as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.chat.messages import (
    HELD_BY_SERVER,
    Message,
    answer,
    arguments_of,
    convert,
    message_groups,
    previous_response_of,
)
from rollout_trace.chat.parts import texts_of
from rollout_trace.export._once import Once
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport

if TYPE_CHECKING:
    from rollout_trace.data.model import Step


_COMPARED = ("role", "name", "tool_call_id", "function_call")
_NOTHING: tuple[Any, ...] = (None, "", [], {})


@dataclass(eq=False)
class Node:
    """A message after those of its parents."""

    message: Message
    parent: Node | None
    key: bytes = b""
    children: dict[bytes, Node] = field(default_factory=dict)
    place: int = 0
    """Where an exporter put it."""

    def path(self) -> list[Node]:
        """The nodes from the first message to this one."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]


class Conversation:
    """The messages of the steps of one trajectory, each as often as it was said anew."""

    def __init__(self, report: ExportReport, where: str) -> None:
        self.root = Node({}, None)
        self._report = report
        self._once = Once(report, where)
        self._keys: dict[int, tuple[Message, bytes]] = {}
        self._unnamed_keys: dict[int, tuple[Message, bytes]] = {}
        self._answers: dict[str, Node] = {}

    def read(self, step: Step) -> tuple[Node, list[Message]]:
        """The node at which a step's request goes on from what was said before, and its messages after that."""
        messages = [message for part in message_groups(step) for message in self._converted(step.protocol, part)]
        node = self._held(step)
        if node is not None:
            first = node.path()[0]
            if messages and self._key(messages[0]) == first.key and first.message.get("role") == "system":
                # A request that goes on from a held answer says its instructions again.
                messages = messages[1:]
        node = node or self.root
        for position, message in enumerate(messages):
            child = node.children.get(self._key(message)) or self._unnamed(node, message)
            if child is None:
                return node, messages[position:]
            node = child
        return node, []

    def _converted(self, protocol: str | None, part: tuple[Any, ...]) -> list[Message]:
        made: list[Message] = self._once.convert(protocol, part, lambda lost: convert(protocol, part, lost))
        return made

    def say(self, node: Node, message: Message) -> Node:
        """Puts a message after a node."""
        key = self._key(message)
        said = Node(message, node, key)
        node.children.setdefault(key, said)
        return said

    def answer(self, node: Node, step: Step) -> Node | None:
        """Puts a step's answer after the last message of its request; None where it has none."""
        message = answer(step, report=self._report)
        if message is None:
            return None
        said = self.say(node, message)
        if step.response_id is not None:
            self._answers.setdefault(step.response_id, said)
        return said

    def _held(self, step: Step) -> Node | None:
        """The answer that a Responses request goes on from, where it is one of this trajectory's."""
        previous = previous_response_of(step)
        node = self._answers.get(previous) if isinstance(previous, str) else None
        if previous and node is None:
            lost = ExportReport()
            lost.drop(HELD_BY_SERVER)
            self._once.tell((HELD_BY_SERVER, previous), lost)
        return node

    def _unnamed(self, node: Node, message: Message) -> Node | None:
        """The answer that an agent sends back under its own name, which no model gives."""
        if message.get("role") != "assistant" or message.get("name") in _NOTHING:
            return None
        known = self._unnamed_keys.get(id(message))
        if known is None:
            known = self._unnamed_keys[id(message)] = message, _digest({**message, "name": None})
        return node.children.get(known[1])

    def _key(self, message: Message) -> bytes:
        known = self._keys.get(id(message))
        if known is None:
            # The message is kept beside its key: another one must not get its id.
            known = self._keys[id(message)] = message, _digest(message)
        return known[1]


def _digest(message: Message) -> bytes:
    return blake2b(dumps(_said(message), orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _said(message: Message) -> dict[str, Any]:
    """What two forms of one message have in common: a client that sends an answer back drops nulls, the reasoning and
    its own fields, and writes the arguments of a tool call anew."""
    kept = {name: message[name] for name in _COMPARED if message.get(name) not in _NOTHING}
    texts = texts_of(message.get("content"))
    # An answer that was cut into parts is sent back whole. What an agent sent is compared as a template renders it.
    joined = None if texts is None else ("" if message.get("role") == "assistant" else "\n").join(texts)
    content = (message.get("content") if joined is None else joined) or message.get("refusal")
    calls = message.get("tool_calls")
    if content not in _NOTHING:
        kept["content"] = content
    if isinstance(calls, list) and calls:
        kept["tool_calls"] = [_call(call) for call in calls]
    return kept


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    # Some answers have no arguments where others have an empty object; an agent may send back either.
    text = function.get("arguments") or "{}"
    arguments = arguments_of(text)
    return [call.get("id"), function.get("name"), text if arguments is None else arguments]
