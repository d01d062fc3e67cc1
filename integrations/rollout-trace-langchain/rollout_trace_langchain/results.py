"""What a tool's run was given, and its result: what the model is told."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolMessage

import rollout_trace as rt
from rollout_trace.model import ErrorInfo


def snapshot(inputs: Mapping[str, Any], text: str) -> Any:
    """The arguments as they are now: a tool may change what it is given."""
    try:
        return copy.deepcopy(dict(inputs))
    except Exception:
        return text


def put_result(run: rt.ToolRun, output: Any) -> None:
    """What the model is told, whole."""
    message = _message_for(run.tool_call_id, output)
    if message is None:
        run.result = _copied(output if _sends(output) is None else _command(output))
        return
    run.result = _copied(message.content)
    # Releases of langchain-core before 1.2 do not tell it when the tool begins.
    run.tool_call_id = run.tool_call_id or message.tool_call_id
    if message.status == "error":
        run.error = ErrorInfo(type="ToolException", message=message.text)


def _copied(value: Any) -> Any:
    """A value as it is now: a tool may go on with what it gave."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _message_for(tool_call_id: str | None, output: Any) -> ToolMessage | None:
    """The message that answers the call; the last one, where the tool was run without a call."""
    if isinstance(output, ToolMessage):
        return output
    found = [message for message in _messages_in(output) if tool_call_id in (None, message.tool_call_id)]
    return found[-1] if found else None


def _messages_in(output: Any) -> Iterator[ToolMessage]:
    """The messages of an output. A command that hands over has those of the whole conversation before."""
    for one in output if isinstance(output, list) else [output]:
        if isinstance(one, ToolMessage):
            yield one
        sends = _sends(one)
        if sends is None:
            continue
        for state in (one.update, *(sent.arg for sent in sends)):
            yield from (message for message in _messages_of(state) if isinstance(message, ToolMessage))


def _messages_of(state: Any) -> Sequence[Any]:
    """The messages in a change of the state: a mapping, pairs, or an object with fields."""
    if isinstance(state, (list, tuple)):
        state = {pair[0]: pair[1] for pair in state if isinstance(pair, tuple) and len(pair) == 2}
    told = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return told if isinstance(told, (list, tuple)) else [told]


def _sends(output: Any) -> list[Any] | None:
    """The parts of LangGraph's ``Command`` that are sent to nodes; None of what is no command."""
    if not (hasattr(output, "goto") and hasattr(output, "update")):
        return None
    targets = output.goto if isinstance(output.goto, (list, tuple)) else [output.goto]
    return [target for target in targets if hasattr(target, "node") and hasattr(target, "arg")]


def _command(command: Any) -> dict[str, Any]:
    """A command that tells the model nothing: where it goes, and what it changes beside the messages."""
    targets = command.goto if isinstance(command.goto, (list, tuple)) else [command.goto]
    update = command.update
    if isinstance(update, Mapping):
        update = {name: value for name, value in update.items() if name != "messages"}
    said = {
        "goto": [getattr(target, "node", target) for target in targets],
        "graph": command.graph,
        "update": update,
        "resume": command.resume,
    }
    return {name: value for name, value in said.items() if value not in (None, [], {})}
