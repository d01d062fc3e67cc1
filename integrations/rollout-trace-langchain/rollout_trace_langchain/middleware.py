"""Answers that the middleware of an agent threw away: the model was asked again, and the node gives another answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage

from rollout_trace_langchain.calls import Call
from rollout_trace_langchain.commands import messages_in
from rollout_trace_langchain.run import Run


def settle(node: Run, outputs: Any) -> None:
    """The node of an agent that calls its model is over. Outputs name the messages that are kept."""
    answered = [frame for frame in node.asked if isinstance(frame, Call) and frame.is_agents]
    if len(answered) > 1:
        ids = {message.id for message in messages_in(outputs)}
        kept = [frame for frame in answered if frame.message_id in ids]
        for frame in answered:
            if frame not in kept and any(_is_asked_again(frame, other) for other in kept):
                frame.supersede()
    for frame in answered:
        frame.drop_prompt()


def _is_asked_again(frame: Call, other: Call) -> bool:
    """Whether two calls are of one conversation, for the agent: middleware may ask a model other things, too.

    The later one may go on from the earlier one, and may have other instructions or other tools, not both.
    """
    instructions, conversation = _parts(frame.prompt)
    other_instructions, other_conversation = _parts(other.prompt)
    length = min(len(conversation), len(other_conversation))
    if conversation[:length] != other_conversation[:length]:
        return False
    tools = frame.parameters.get("tools")
    return instructions == other_instructions or bool(tools and tools == other.parameters.get("tools"))


def _parts(prompt: Sequence[BaseMessage] | str) -> tuple[list[Any], list[Any]]:
    """The system messages, and the others."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    for message in prompt:
        parts[not isinstance(message, SystemMessage)].append(message)
    return parts
