"""Conversations: calls whose messages extend each other, merged into one list of messages.

A call continues the conversation whose messages, answer included, are the beginning of its own, and that had the same
tools. An agent that only ever appends has one conversation; one that forks, samples several choices, rewrites its
history or runs conversations in turn has one for each last answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from rollout_trace.export._conversation import ChatTree
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import tools_of

if TYPE_CHECKING:
    from rollout_trace.data.conversations import Node
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.wire.chat_messages import Message

    Include: TypeAlias = Callable[[Step], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """A conversation up to its last answer, in chat's shape; tool arguments are JSON strings."""

    messages: list[Message]
    """Answers are as they were recorded, even where the agent sent them back without their reasoning."""
    tools: list[dict[str, Any]] | None
    steps: list[Step]
    """The steps whose answers are among the messages, in order."""
    answers: list[int]
    """For each step, the index of its answer in ``messages``."""
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
    """The conversations of a trajectory, in the order of their last answers.

    The report counts the steps that are left out (``text_reason``, or ``messages_missing``), and what no chat message
    has a place for. ``join=False``: each step is a conversation of its own, with its messages as they were sent.
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
    """The reason for which a step's answer is left out, tokens aside; None where it is used.

    A status, ``not_trainable``, ``completion_missing`` or ``excluded``.
    """
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
