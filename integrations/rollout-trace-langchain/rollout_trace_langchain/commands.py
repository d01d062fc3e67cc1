"""The messages in what a tool or a node gives: alone, in a change of the state, or in a LangGraph ``Command``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage


def messages_in(output: Any) -> Iterator[BaseMessage]:
    """All messages, in order. A command that hands over has those of the whole conversation before."""
    for one in output if isinstance(output, list) else [output]:
        if isinstance(one, BaseMessage):
            yield one
        for state in _states(one):
            yield from (message for message in _messages_of(state) if isinstance(message, BaseMessage))


def is_command(output: Any) -> bool:
    """Whether it is a ``Command``; LangGraph is not imported for it."""
    return hasattr(output, "goto") and hasattr(output, "update")


def described(command: Any) -> dict[str, Any]:
    """Where a command goes, and what it changes beside the messages."""
    update = command.update
    if isinstance(update, Mapping):
        update = {name: value for name, value in update.items() if name != "messages"}
    facts = {
        "goto": [getattr(target, "node", target) for target in _targets(command)],
        "graph": command.graph,
        "update": update,
        "resume": command.resume,
    }
    return {name: value for name, value in facts.items() if value not in (None, [], {})}


def _targets(command: Any) -> Sequence[Any]:
    return command.goto if isinstance(command.goto, (list, tuple)) else [command.goto]


def _states(output: Any) -> Sequence[Any]:
    """The changes of the state: those of the graph, and those that nodes are sent."""
    if not is_command(output):
        return [output] if isinstance(output, Mapping) else []
    return [output.update, *(target.arg for target in _targets(output) if hasattr(target, "arg"))]


def _messages_of(state: Any) -> Sequence[Any]:
    """The messages of a mapping, of pairs, or of an object with fields."""
    if isinstance(state, (list, tuple)):
        state = {pair[0]: pair[1] for pair in state if isinstance(pair, tuple) and len(pair) == 2}
    told = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return told if isinstance(told, (list, tuple)) else [told]
