"""Calls whose messages extend each other, as one conversation each.

A call goes on with the conversation whose messages, answer included, begin its own, and that was given the same tools.
So an agent that only ever appends has one; one that forks, samples several choices, rewrites its history or runs
conversations in turn has one for each end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from rollout_trace.chat.messages import tools_of
from rollout_trace.export._conversation import Conversation
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport

if TYPE_CHECKING:
    from rollout_trace.chat.messages import Message
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._conversation import Node

    Include: TypeAlias = Callable[[Step], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """A conversation up to its last answer, in chat's shape; tool arguments are JSON texts."""

    messages: list[Message]
    """Answers are as they were recorded, also where the agent sent them back without their reasoning."""
    tools: list[dict[str, Any]] | None
    steps: list[Step]
    """Those whose answers are among the messages, in order."""
    answers: list[int]
    """Where in ``messages`` the answer of each step is."""
    shared: int
    """How many of the answers, the first ones, are in an earlier conversation too."""


def conversations(
    trajectory: Trajectory,
    report: ExportReport,
    *,
    include: Include | None = None,
    allow: Collection[str] = (),
    join: bool = True,
) -> list[Chain]:
    """The conversations of a trajectory, in the order of their last answers.

    Counted in the report are steps that are left out (``text_reason``, or ``messages_missing``), and what no chat
    message has a place for. ``join=False``: each step is a conversation of its own, its messages as they were sent.
    """
    where = f"trajectory {trajectory.id}"
    tellers: dict[bytes, Conversation] = {}
    answered: dict[Node, Step] = {}
    ends: dict[Node, list[dict[str, Any]] | None] = {}
    for step in trajectory.steps:
        reason = text_reason(step, include, allow)
        if reason is not None:
            report.drop(f"steps left out: {reason}", where=f"{where}, step {step.id}")
            continue
        drops = ExportReport()
        tools = tools_of(step, drops)
        key = dumps([tools, None if join else step.id], orjson.OPT_SORT_KEYS)
        if key not in tellers:
            tellers[key] = Conversation(report, where)
            report.take(drops, where=f"{where}, step {step.id}")
        said = _say(tellers[key], step)
        if said is None:
            report.drop("steps left out: messages_missing", where=f"{where}, step {step.id}")
            continue
        before = next((node for node in said.path()[-2::-1] if node in answered), None)
        if before is not None:
            ends.pop(before, None)
        answered[said], ends[said] = step, tools
    return _chains(ends, answered)


def text_reason(step: Step, include: Include | None, allow: Collection[str]) -> str | None:
    """Why a step's answer is not taken, its tokens aside: a status, ``not_trainable``, ``completion_missing``,
    ``excluded``; None where it is."""
    if step.status != "ok" and step.status not in allow:
        return step.status
    if not step.trainable and "not_trainable" not in allow:
        return "not_trainable"
    if step.completion is None:
        return "completion_missing"
    return "excluded" if include is not None and not include(step) else None


def _say(conversation: Conversation, step: Step) -> Node | None:
    """Puts a step's messages and answer where they belong; None where it has no messages."""
    node, new = conversation.read(step)
    if node is conversation.root and not new:
        return None
    for message in new:
        node = conversation.say(node, message)
    return conversation.answer(node, step)


def _chains(ends: dict[Node, list[dict[str, Any]] | None], answered: dict[Node, Step]) -> list[Chain]:
    chains = []
    seen: set[Node] = set()
    for end, tools in ends.items():
        path = end.path()
        answers = [at for at, node in enumerate(path) if node in answered]
        chains.append(
            Chain(
                messages=[node.message for node in path],
                tools=tools,
                steps=[answered[path[at]] for at in answers],
                answers=answers,
                shared=sum(path[at] in seen for at in answers),
            )
        )
        seen.update(path)
    return chains
