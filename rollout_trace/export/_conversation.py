"""The messages of a trajectory's steps as a tree: which messages are new in each request."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from rollout_trace.data.conversations import MessageTree, Node
from rollout_trace.export._once import ConversionCache
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import (
    HELD_BY_SERVER,
    Message,
    answer,
    arguments_of,
    convert,
    message_groups,
    previous_response_of,
    texts_of,
)

if TYPE_CHECKING:
    from rollout_trace.data.model import Step


_COMPARED = ("role", "name", "tool_call_id", "function_call")
_NOTHING: tuple[Any, ...] = (None, "", [], {})


class ChatTree(MessageTree):
    """The messages of the steps of one trajectory; one that a later request repeats in its place is one node."""

    def __init__(self, report: ExportReport, where: str) -> None:
        super().__init__(_digest)
        self._report = report
        self._cache = ConversionCache(report, where)
        self._keys_without_name: dict[int, tuple[Message, bytes]] = {}
        self._answers: dict[str, Node] = {}

    def read(self, step: Step) -> tuple[Node, list[Message]]:
        """The last node that a step's request has in common with the tree, and the request's messages after it."""
        messages = [message for part in message_groups(step) for message in self._converted(step.protocol, part)]
        node = self._continued_answer(step)
        if node is not None:
            first = node.path()[0]
            if messages and self.key(messages[0]) == self.key(first.message) and first.message.get("role") == "system":
                # Instructions are no part of a stored response: each request that continues one repeats them.
                messages = messages[1:]
        node = node or self.root
        for position, message in enumerate(messages):
            child = self.child(node, message) or self._child_without_name(node, message)
            if child is None:
                return node, messages[position:]
            node = child
        return node, []

    def _converted(self, protocol: str | None, part: tuple[Any, ...]) -> list[Message]:
        messages: list[Message] = self._cache.convert(protocol, part, lambda dropped: convert(protocol, part, dropped))
        return messages

    def append_answer(self, node: Node, step: Step) -> Node | None:
        """Adds a step's answer as a child of its request's last message; None where the step has no answer."""
        message = answer(step, report=self._report)
        if message is None:
            return None
        child = self.append(node, message)
        if step.response_id is not None:
            self._answers.setdefault(step.response_id, child)
        return child

    def _continued_answer(self, step: Step) -> Node | None:
        """The answer that a Responses request continues by its id; None where it is not in this trajectory."""
        previous = previous_response_of(step)
        node = self._answers.get(previous) if isinstance(previous, str) else None
        if previous and node is None:
            dropped = ExportReport()
            dropped.drop(HELD_BY_SERVER)
            self._cache.count_lost((HELD_BY_SERVER, previous), dropped)
        return node

    def _child_without_name(self, node: Node, message: Message) -> Node | None:
        """The answer that an agent sent back with a ``name``, found by the key without it: models give no names."""
        if message.get("role") != "assistant" or message.get("name") in _NOTHING:
            return None
        entry = self._keys_without_name.get(id(message))
        if entry is None:
            entry = self._keys_without_name[id(message)] = message, _digest({**message, "name": None})
        return self._children.get((node.number, entry[1]))


def _digest(message: Message) -> bytes:
    return blake2b(dumps(_normalized(message), orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _normalized(message: Message) -> dict[str, Any]:
    """The fields by which messages are compared: equal for an answer and for the form in which a client sends it back,
    without nulls, reasoning and fields of its own, and with the arguments of tool calls serialized anew."""
    kept = {name: message[name] for name in _COMPARED if message.get(name) not in _NOTHING}
    texts = texts_of(message.get("content"))
    # An answer in several parts is often sent back as one string. Other messages are joined as templates render parts.
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
    # Absent arguments and an empty object are the same call: an agent may send back either.
    text = function.get("arguments") or "{}"
    arguments = arguments_of(text)
    return [call.get("id"), function.get("name"), text if arguments is None else arguments]
