"""The message graph of a verifiers trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_trace.export._conversation import Conversation, Node
from rollout_trace.export._once import Once
from rollout_trace.export._verifiers_calls import message_of, seconds, tool_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence


class Graph:
    """The nodes of one trajectory. Each sequence is a path of its own, from the first message it does not share on."""

    def __init__(self, trajectory: Trajectory, report: ExportReport, *, of_steps: bool = True) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self.node_of: dict[str, int] = {}
        """The node of each step's answer."""
        self._report = report
        self._of_steps = of_steps
        self._where = f"trajectory {trajectory.id}"
        self._steps = trajectory.steps
        self._tools_of: dict[str, list[dict[str, Any]]] = {}
        self._read: dict[tuple[int | None, int, str], int] = {}
        self._requests: dict[str, list[Node]] = {}
        self._answers: dict[str, Node] = {}
        tree = Conversation(report, self._where)
        for step in self._steps:
            node, messages = tree.read(step)
            for message in messages:
                node = tree.say(node, message)
            self._requests[step.id] = node.path()
            # A step may hold the ids of an answer and not its text.
            self._answers[step.id] = tree.answer(node, step) or Node({"role": "assistant", "content": None}, node)
        self._find_tools()

    def add(self, rows: list[Sequence]) -> None:
        """Puts the sequences of the trajectory into the graph; its text alone where there are none."""
        steps = {step.id: step for step in self._steps}
        for row in rows:
            self._add_row(row, [steps[step_id] for step_id in row.step_ids])
        if not rows:
            self._add_text()

    def _add_row(self, row: Sequence, steps: list[Step]) -> None:
        if row.logprobs is None:
            self._report.drop("sequences without logprobs, given as text: verifiers would read 0.0", where=self._where)
        advantages = row.advantages
        if self._of_steps and (advantages is None or row.logprobs is None):
            unused = sum(step.advantage is not None for step in steps)
            self._report.drop("step advantages", unused, where=self._where)
        end = 0
        parent: int | None = None
        for number, (step, span) in enumerate(zip(steps, row.spans, strict=True)):
            for node in self._new(step, steps[number - 1] if number else None):
                parent = self._message(parent, node, step)
            start, begin, end = end, span[0], span[1]
            # A cut sequence may go on after its last completion, with a part of the next prompt.
            stop = end if number + 1 < len(steps) else len(row.token_ids)
            parent = self._sampled(parent, step)
            if row.logprobs is not None:
                self.nodes[parent] |= {
                    "token_ids": row.token_ids[start:stop],
                    "mask": row.loss_mask[start:stop].astype(bool),
                    "logprobs": row.logprobs[begin:end],
                    "advantages": None if advantages is None else advantages[begin:end],
                }

    def _new(self, step: Step, before: Step | None) -> list[Node]:
        """The messages of a step's request that are new after the step before it in its sequence."""
        path = self._requests[step.id]
        if before is None:
            return path
        known = self._requests[before.id]
        common = sum(one is other for one, other in zip(known, path, strict=False))
        rest = path[common:]
        # The answer itself, or as the client wrote it anew.
        answered = common == len(known) and rest and rest[0].message.get("role") == "assistant"
        return rest[1:] if answered else rest

    def _message(self, parent: int | None, node: Node, step: Step) -> int:
        """The node of a message that was read: the one it is already, or a new one."""
        # Of equal messages after the same parent the tree has one node; the tools stand on a root.
        place = (parent, id(node), json.dumps(self._tools_of[step.id]) if parent is None else "")
        if place not in self._read:
            self._read[place] = self._put(parent, node, step, sampled=False)
        return self._read[place]

    def _sampled(self, parent: int | None, step: Step) -> int:
        self.node_of[step.id] = self._put(parent, self._answers[step.id], step, sampled=True)
        return self.node_of[step.id]

    def _put(self, parent: int | None, node: Node, step: Step, *, sampled: bool) -> int:
        made: dict[str, Any] = {
            "parent": parent,
            "message": message_of(node.message, self._report),
            "sampled": sampled,
            "timestamp": seconds(step.started_at) + (step.latency or 0.0 if sampled else 0.0),
            "token_ids": [],
            "mask": [],
            "logprobs": [],
        }
        if parent is None:
            made["tools"] = self._tools_of[step.id]
        self.nodes.append(made)
        return len(self.nodes) - 1

    def _add_text(self) -> None:
        """A graph of the whole answers without ids: what one goes on from is one node, sampled or not."""
        places: dict[int, int] = {}
        for step in self._steps:
            if step.status != "ok" or step.completion is None:
                continue
            parent: int | None = None
            for node in self._requests[step.id]:
                if id(node) not in places:
                    places[id(node)] = self._put(parent, node, step, sampled=False)
                parent = places[id(node)]
            places[id(self._answers[step.id])] = self._sampled(parent, step)

    def _find_tools(self) -> None:
        distinct: dict[str, dict[str, Any]] = {}
        once = Once(self._report, self._where)
        for step in self._steps:
            self._tools_of[step.id] = [tool_of(tool) for tool in once.tools(step)]
            distinct.update((json.dumps(tool, sort_keys=True, default=str), tool) for tool in self._tools_of[step.id])
        self.tools = list(distinct.values())
