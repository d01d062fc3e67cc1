"""The message graph of a verifiers trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_trace.data.conversations import Node
from rollout_trace.export._conversation import ChatTree
from rollout_trace.export._extras import GAPS, parts_of_mask, whole_experts
from rollout_trace.export._once import ConversionCache
from rollout_trace.export._strict_json import AsIs
from rollout_trace.export._verifiers_calls import message_of, seconds, tool_of

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence


class Graph:
    """The nodes of one trajectory. Each sequence is a path; paths share the messages they begin with, but no answer."""

    def __init__(
        self,
        trajectory: Trajectory,
        report: ExportReport,
        *,
        uses_step_advantages: bool = True,
        with_tensors: bool = False,
    ) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self.node_of: dict[str, int] = {}
        """Index of the node of each step's answer, by step id."""
        self._report = report
        self._uses_step_advantages = uses_step_advantages
        self.tensors = ("routed_experts", "sampling_mask") if with_tensors else ()
        """Fields of a sequence that nodes have as arrays' bytes, which JSON cannot hold."""
        self._where = f"trajectory {trajectory.id}"
        self._steps = trajectory.steps
        self._tools_of: dict[str, list[dict[str, Any]]] = {}
        self._message_nodes: dict[tuple[int | None, int, str], int] = {}
        self._requests: dict[str, list[Node]] = {}
        self._answers: dict[str, Node] = {}
        tree = ChatTree(report, self._where)
        for step in self._steps:
            node, messages = tree.read(step)
            for message in messages:
                node = tree.append(node, message)
            self._requests[step.id] = node.path()
            # A step may have the ids of its answer without the text: its sequence needs a node all the same.
            self._answers[step.id] = tree.append_answer(node, step) or Node(
                {"role": "assistant", "content": None}, node
            )
        self._find_tools()

    def add(self, rows: list[Sequence]) -> None:
        """Adds the sequences of the trajectory; where there are none, its text alone."""
        steps = {step.id: step for step in self._steps}
        for row in rows:
            self._add_row(row, [steps[step_id] for step_id in row.step_ids])
        if not rows:
            self._add_text()

    def _add_row(self, row: Sequence, steps: list[Step]) -> None:
        if row.logprobs is None:
            self._report.drop("sequences without logprobs, given as text: verifiers would read 0.0", where=self._where)
        advantages = row.advantages
        if self._uses_step_advantages and (advantages is None or row.logprobs is None):
            unused = sum(step.advantage is not None for step in steps)
            self._report.drop("step advantages", unused, where=self._where)
        experts = _experts_of(row, self._report) if self.tensors and row.logprobs is not None else None
        masks = parts_of_mask(row.sampling_mask, row.spans) if self.tensors and row.sampling_mask is not None else None
        end = 0
        parent: int | None = None
        for number, (step, span) in enumerate(zip(steps, row.spans, strict=True)):
            for node in self._new_messages(step, steps[number - 1] if number else None):
                parent = self._message_node(parent, node, step)
            start, begin, end = end, span[0], span[1]
            # The last node has the rest: a sequence cut by `max_length` may end inside a prompt, after its last answer.
            stop = end if number + 1 < len(steps) else len(row.token_ids)
            parent = self._answer_node(parent, step)
            if row.logprobs is not None:
                # Ids and mask are of prompt and completion, logprobs and advantages of the sampled tokens alone.
                self.nodes[parent] |= {
                    "token_ids": row.token_ids[start:stop],
                    "mask": row.loss_mask[start:stop].astype(bool),
                    "logprobs": row.logprobs[begin:end],
                    "advantages": None if advantages is None else advantages[begin:end],
                }
                self.nodes[parent] |= _of_trainer(step, end - begin, begin - start, stop - end)
                if experts is not None:
                    self.nodes[parent]["routed_experts"] = AsIs(_tensor(experts[start:stop]))
                if masks is not None:
                    mask = masks[number]
                    self.nodes[parent]["sampling_mask"] = AsIs(
                        {"ids": _tensor(mask.ids), "counts": _tensor(mask.counts)}
                    )

    def _new_messages(self, step: Step, before: Step | None) -> list[Node]:
        """The messages of a step's request that follow the answer of the step before it in its sequence."""
        path = self._requests[step.id]
        if before is None:
            return path
        known = self._requests[before.id]
        # Two paths of a tree share nodes at their beginning alone: their number is the length of the shared part.
        common = sum(one is other for one, other in zip(known, path, strict=False))
        rest = path[common:]
        # The answer has its sampled node already, also where the client sent it back in another form.
        answered = common == len(known) and rest and rest[0].message.get("role") == "assistant"
        return rest[1:] if answered else rest

    def _message_node(self, parent: int | None, node: Node, step: Step) -> int:
        """The index of the node of a message that was read; a new one where this parent has none for it."""
        # A root carries the tools, so requests with the same first message and other tools need roots of their own.
        place = (parent, id(node), json.dumps(self._tools_of[step.id]) if parent is None else "")
        if place not in self._message_nodes:
            self._message_nodes[place] = self._append_node(parent, node, step, sampled=False)
        return self._message_nodes[place]

    def _answer_node(self, parent: int | None, step: Step) -> int:
        self.node_of[step.id] = self._append_node(parent, self._answers[step.id], step, sampled=True)
        return self.node_of[step.id]

    def _append_node(self, parent: int | None, node: Node, step: Step, *, sampled: bool) -> int:
        fields: dict[str, Any] = {
            "parent": parent,
            "message": message_of(node.message, self._report),
            "sampled": sampled,
            "timestamp": seconds(step.started_at) + (step.latency or 0.0 if sampled else 0.0),
            "token_ids": [],
            "mask": [],
            "logprobs": [],
        }
        if parent is None:
            fields["tools"] = self._tools_of[step.id]
        self.nodes.append(fields)
        return len(self.nodes) - 1

    def _add_text(self) -> None:
        """Adds the text of all whole answers, without ids; here branches share answers too, as none is trained on."""
        places: dict[int, int] = {}
        for step in self._steps:
            if step.status != "ok" or step.completion is None:
                continue
            parent: int | None = None
            for node in self._requests[step.id]:
                if id(node) not in places:
                    places[id(node)] = self._append_node(parent, node, step, sampled=False)
                parent = places[id(node)]
            places[id(self._answers[step.id])] = self._answer_node(parent, step)

    def _find_tools(self) -> None:
        distinct: dict[str, dict[str, Any]] = {}
        cache = ConversionCache(self._report, self._where)
        for step in self._steps:
            self._tools_of[step.id] = [tool_of(tool) for tool in cache.tools(step)]
            distinct.update((json.dumps(tool, sort_keys=True, default=str), tool) for tool in self._tools_of[step.id])
        self.tools = list(distinct.values())


def _of_trainer(step: Step, sampled: int, before: int, behind: int) -> dict[str, Any]:
    """A trainer's numbers of a node: of the sampled tokens alone, but weights of all its tokens. Without unknown ones.

    Args:
        sampled: number of sampled tokens of the node; ``before`` and ``behind``: of the others around them.
    """
    import numpy as np

    found: dict[str, Any] = {}
    for ours, theirs in _OF_TRAINER.items():
        values = None if step.trainer is None else getattr(step.trainer, ours)
        if values is not None and np.isfinite(values[:sampled]).all():
            found[theirs] = values[:sampled]
    if "loss_weights" in found:
        found["loss_weights"] = {"rollout_trace": np.pad(found["loss_weights"], (before, behind))}
    return found


_OF_TRAINER = {
    "trainer_logprobs": "trainer_logprobs",
    "reference_logprobs": "reference_logprobs",
    "entropy": "entropies",
    "loss_weights": "loss_weights",
}
"""Fields of a node by those of a step: verifiers 0.4.0, verifiers/v1/graph.py."""


def _experts_of(row: Sequence, report: ExportReport) -> ExpertArray | None:
    """The experts of every token, [length, layers, k]; None where a token before the last has none.

    verifiers needs a row for the last token too, which was not run through the model: it repeats the one before, as we
    do. A node without experts makes verifiers drop those of its whole branch.
    """
    import numpy as np

    experts, known = row.routed_experts, row.routed_experts_mask
    if experts is None or known is None:
        return None
    whole = whole_experts(row)
    if whole is None:
        report.drop(GAPS, where=f"step {row.step_ids[0]}")
        return None
    if known[-1]:
        return experts
    repeated: ExpertArray = np.concatenate([whole, whole[-1:]])
    return repeated


def _tensor(array: Any) -> dict[str, Any]:
    """An array as verifiers sends it between processes: its type, its shape and its bytes."""
    return {"__nd__": True, "dtype": str(array.dtype), "shape": list(array.shape), "data": array.tobytes()}
