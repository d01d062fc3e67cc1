"""Messages in the output of a tool or a node: alone, in a state update, or in a LangGraph ``Command``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage


def messages_in(output: Any) -> Iterator[BaseMessage]:
    """All messages of an output, in order. A command that hands over brings those of the whole conversation."""
    for one in output if isinstance(output, list) else [output]:
        if isinstance(one, BaseMessage):
            yield one
        for state in _states(one):
            yield from (message for message in _messages_of(state) if isinstance(message, BaseMessage))


def is_command(output: Any) -> bool:
    """Whether an output is a ``Command``. Found by its attributes: LangGraph need not be installed."""
    return hasattr(output, "goto") and hasattr(output, "update")


def command_summary(command: Any) -> dict[str, Any]:
    """A command's targets and state updates, without the messages; for the result of a tool run."""
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
    """The state updates in an output: for the graph, and for the nodes that a command sends to."""
    if not is_command(output):
        return [output] if isinstance(output, Mapping) else []
    return [output.update, *(target.arg for target in _targets(output) if hasattr(target, "arg"))]


def _messages_of(state: Any) -> Sequence[Any]:
    """The ``messages`` of a state: a mapping, pairs of name and value, or an object with attributes."""
    if isinstance(state, (list, tuple)):
        state = {pair[0]: pair[1] for pair in state if isinstance(pair, tuple) and len(pair) == 2}
    messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return messages if isinstance(messages, (list, tuple)) else [messages]
