"""Conversations: calls whose messages extend each other, merged into one list of messages.

A call continues the conversation whose messages, answer included, are the beginning of its own, and that had the same
tools. An agent that only ever appends has one conversation; one that forks, samples several choices, rewrites its
history or runs conversations in turn has one for each last answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from rollout_trace.data.conversations import MessageTree, Node
from rollout_trace.data.model import Step
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
    tool_of,
    tools_of,
)

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

    Include: TypeAlias = Callable[[Step], bool]

_COMPARED = ("role", "name", "tool_call_id", "function_call")
_NOTHING: tuple[Any, ...] = (None, "", [], {})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """A conversation up to its last answer, in chat's shape; tool arguments are JSON strings."""

    messages: list[Message]
    """Answers are as they were recorded, even where the agent sent them back without their reasoning."""
    tools: list[dict[str, Any]] | None
    steps: list[Step]
    """The steps whose answers are among the messages, in order."""
    answers: list[int]
    shared: int
    """Number of answers, from the first on, that are in an earlier conversation as well."""


def conversations(
    trajectory: Trajectory,
    report: ExportReport,
    *,
    include: Include | None = None,
    allow: Collection[str] = (),
    join: bool = True,
) -> list[Chain]:
    """The conversations of a trajectory, in the order of their last answers; without ``join`` each step is one.

    The report counts the steps that are left out, and what no chat message has a place for.
    """
    where = f"trajectory {trajectory.id}"
    trees: dict[bytes, ChatTree] = {}
    step_of_answer: dict[Node, Step] = {}
    ends: dict[Node, list[dict[str, Any]] | None] = {}
    for step in trajectory.steps:
        reason = text_reason(step, include, allow)
        if reason is not None:
            report.drop(f"steps left out: {reason}", where=f"{where}, step {step.id}")
            continue
        # A report of its own: steps with the same tools must not count the same loss again.
        dropped = ExportReport()
        tools = tools_of(step, dropped)
        # A row has one list of tools, so requests with other tools are other conversations, in trees of their own.
        key = dumps([tools, None if join else step.id], orjson.OPT_SORT_KEYS)
        if key not in trees:
            trees[key] = ChatTree(report, where)
            report.take(dropped, where=f"{where}, step {step.id}")
        leaf = _insert(trees[key], step)
        if leaf is None:
            report.drop("steps left out: messages_missing", where=f"{where}, step {step.id}")
            continue
        # `[-2::-1]`: from the parent up. The conversation that this step continues no longer ends there.
        previous = next((node for node in leaf.path()[-2::-1] if node in step_of_answer), None)
        if previous is not None:
            ends.pop(previous, None)
        step_of_answer[leaf], ends[leaf] = step, tools
    return _chains(ends, step_of_answer)


def text_reason(step: Step, include: Include | None, allow: Collection[str]) -> str | None:
    """Why a step's answer is left out, tokens aside: a status, or a reason of ``allow=``; None where it is used."""
    if step.status != "ok" and step.status not in allow:
        return step.status
    if not step.trainable and "not_trainable" not in allow:
        return "not_trainable"
    if step.completion is None:
        return "completion_missing"
    return "excluded" if include is not None and not include(step) else None


def _insert(tree: ChatTree, step: Step) -> Node | None:
    """Adds a step's messages and answer to the tree; returns the answer's node, None for a step without messages."""
    node, new = tree.read(step)
    if node is tree.root and not new:
        return None
    for message in new:
        node = tree.append(node, message)
    return tree.append_answer(node, step)


def _chains(ends: dict[Node, list[dict[str, Any]] | None], step_of_answer: dict[Node, Step]) -> list[Chain]:
    chains = []
    seen: set[Node] = set()
    for end, tools in ends.items():
        path = end.path()
        answers = [at for at, node in enumerate(path) if node in step_of_answer]
        chains.append(
            Chain(
                messages=[node.message for node in path],
                tools=tools,
                steps=[step_of_answer[path[at]] for at in answers],
                answers=answers,
                shared=sum(path[at] in seen for at in answers),
            )
        )
        seen.update(path)
    return chains


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
    return digest_of(_normalized(message))


def digest_of(value: Any) -> bytes:
    """A short stand-in for a value, the same for equal ones."""
    return blake2b(dumps(value, orjson.OPT_SORT_KEYS), digest_size=16).digest()


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


class ConversionCache:
    """Converts each object once, by identity: equal messages of one trajectory mostly are one object."""

    def __init__(self, report: ExportReport, where: str) -> None:
        self._report = report
        self._where = where
        self._converted: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}
        self._counted: set[bytes] = set()

    def convert(self, kind: Any, objects: tuple[Any, ...], read: Callable[[ExportReport], Any]) -> Any:
        """The result of ``read``, called once for these objects; counts what it drops, once for equal objects."""
        key = (kind, *map(id, objects))
        entry = self._converted.get(key)
        if entry is None:
            lost = ExportReport()
            # The objects are stored with the result: a freed object's id could be given to another one.
            entry = self._converted[key] = objects, read(lost)
            if lost.dropped:
                self.count_lost((kind, *objects), lost)
        return entry[1]

    def count_lost(self, what: Any, lost: ExportReport) -> None:
        """Counts what was lost in converting ``what``, unless an equal value was counted before."""
        digest = digest_of(what)
        if digest not in self._counted:
            self._counted.add(digest)
            self._report.take(lost, where=self._where)

    def tools(self, step: Step) -> list[dict[str, Any]]:
        """The tools of a step's request in chat's shape; empty where it has none."""
        if step.tools is None:
            return tools_of(step) or []
        converted = (self.convert("tool", (tool,), partial(tool_of, tool)) for tool in step.tools)
        return [tool for tool in converted if tool is not None]
