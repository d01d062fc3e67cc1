"""Marks answers that an agent's middleware discarded: it called the model again, and the node returns another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage

from rollout_trace_langchain.calls import CallFrame
from rollout_trace_langchain.commands import messages_in
from rollout_trace_langchain.run import Run


def supersede_discarded(node: Run, outputs: Any) -> None:
    """Marks discarded answers ``superseded`` when the model node of an agent ends.

    Args:
        node: the run of the node.
        outputs: the node's output: the messages in it are the answers that were kept.
    """
    frames = [frame for frame in node.model_calls if isinstance(frame, CallFrame) and frame.is_in_model_node]
    if len(frames) > 1:
        ids = {message.id for message in messages_in(outputs)}
        kept = [frame for frame in frames if frame.message_id in ids]
        for frame in frames:
            if frame not in kept and any(_have_same_request(frame, other) for other in kept):
                frame.supersede()
    for frame in frames:
        frame.drop_prompt()


def _have_same_request(frame: CallFrame, other: CallFrame) -> bool:
    """Whether two calls request the same answer of the agent: middleware may call a model for other purposes, too.

    The prompt of the later call may extend that of the earlier one. Instructions or tools may differ, not both.
    """
    instructions, conversation = _split_prompt(frame.prompt)
    other_instructions, other_conversation = _split_prompt(other.prompt)
    length = min(len(conversation), len(other_conversation))
    if conversation[:length] != other_conversation[:length]:
        return False
    tools = frame.parameters.get("tools")
    return instructions == other_instructions or bool(tools and tools == other.parameters.get("tools"))


def _split_prompt(prompt: Sequence[BaseMessage] | str) -> tuple[list[Any], list[Any]]:
    """The system messages of a prompt, and its other messages."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    for message in prompt:
        parts[not isinstance(message, SystemMessage)].append(message)
    return parts
