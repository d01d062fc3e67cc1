"""The message graph of a verifiers trace, with messages and tools in the forms of verifiers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollout_trace.data.conversations import Node
from rollout_trace.export._conversations import ChatTree, ConversionCache
from rollout_trace.export._extras import GAPS, parts_of_mask, whole_experts
from rollout_trace.export._values import AsIs
from rollout_trace.wire.chat_messages import calls_of

if TYPE_CHECKING:
    from datetime import datetime

    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence
    from rollout_trace.wire.chat_messages import Message

_ROLES = {"developer": "system", "function": "tool"}
_TOOL: dict[str, type] = {"description": str, "parameters": dict, "strict": bool}


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
            "message": _message(node.message, self._report),
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
            self._tools_of[step.id] = [_tool(tool) for tool in cache.tools(step)]
            distinct.update((json.dumps(tool, sort_keys=True, default=str), tool) for tool in self._tools_of[step.id])
        self.tools = list(distinct.values())


def _of_trainer(step: Step, sampled: int, before: int, behind: int) -> dict[str, Any]:
    """A trainer's known numbers of a node's sampled tokens, with weights for the others before and behind them, too."""
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


def seconds(when: datetime | None) -> float:
    """Seconds since 1970; 0.0, which verifiers reads as unset, where the time is not known."""
    return 0.0 if when is None else when.timestamp()


def _message(message: Message, report: ExportReport) -> dict[str, Any]:
    """A chat message in verifiers' form: contents are texts or parts of text and image, an answer's is one text."""
    role = _ROLES.get(str(message.get("role")), message.get("role"))
    content = _content(message.get("content"), report)
    if role == "assistant":
        calls = [_call(call, report) for call in calls_of(message)]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        return {
            "role": "assistant",
            "content": _only_text(content, report) or message.get("refusal"),
            "reasoning_content": reasoning if isinstance(reasoning, str) else None,
            "tool_calls": calls or None,
        }
    if role == "tool":
        return {"role": "tool", "tool_call_id": str(message.get("tool_call_id") or ""), "content": content}
    if role not in ("system", "user"):
        report.drop(f"roles that verifiers does not know, written as user: {role}")
        role = "user"
    return {"role": role, "content": content}


def _content(content: Any, report: ExportReport) -> Any:
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else json.dumps(content, default=str)
    return [part for item in content if (part := _part(item, report)) is not None]


def _part(item: Any, report: ExportReport) -> dict[str, Any] | None:
    kind = item.get("type") if isinstance(item, dict) else type(item).__name__
    if kind in ("text", "refusal") and isinstance(item.get(kind), str):
        return {"type": "text", "text": item[kind]}
    image = item.get("image_url") if kind == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    report.drop(f"content parts that verifiers has no type for: {kind}")
    return None


def _only_text(content: Any, report: ExportReport) -> str | None:
    if not isinstance(content, list):
        return content or None
    texts = [part["text"] for part in content if part["type"] == "text"]
    report.drop("images in an answer", len(content) - len(texts))
    return "".join(texts) or None


def _call(call: Any, report: ExportReport) -> dict[str, Any]:
    kind = "custom" if isinstance(call, dict) and call.get("type") == "custom" else "function"
    inner = call.get(kind) if isinstance(call, dict) else None
    fields = inner if isinstance(inner, dict) else {}
    arguments = fields.get("input" if kind == "custom" else "arguments")
    return {
        "id": str(call.get("id") or "") if isinstance(call, dict) else "",
        "type": kind,
        "name": str(fields.get("name") or ""),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of chat's shape in verifiers' flat form, without values of another type than verifiers' own."""
    kind = "custom" if tool.get("type") == "custom" else "function"
    inner = tool.get(kind)
    given = inner.items() if isinstance(inner, dict) else ()
    fields = {name: value for name, value in given if isinstance(value, _TOOL.get(name, object)) and value is not None}
    return {**fields, "type": kind, "name": str(fields.get("name") or "")}
