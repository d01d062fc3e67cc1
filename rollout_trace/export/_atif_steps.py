"""The steps of an ATIF document: messages with their sources, tool results, references to sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.conversations import Node
from rollout_trace.export._atif_facts import metrics, model_of, step_facts, usage_of
from rollout_trace.export._atif_parts import (
    SOURCES,
    MediaPath,
    call_id,
    content_of,
    message_fields,
    run_result,
    without_none,
)
from rollout_trace.export._conversation import ChatTree
from rollout_trace.export._extras import count_raw
from rollout_trace.wire.chat_messages import calls_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport
    from rollout_trace.wire.chat_messages import Message

_FORKS = "Not every step follows the one before it: extra.follows names the step it follows, 0 for none."
_NOTHING = "No call of this run has messages or an answer: its step stands for none."
_DISPATCH = "Sub-agents that were begun before the first answer are referenced from a step without a model call."


class Steps:
    """The steps of one document, its failed calls, and its notes."""

    def __init__(
        self,
        trajectory: Trajectory,
        children: list[Trajectory],
        allow: Collection[str],
        report: ExportReport,
        media_path: MediaPath,
    ) -> None:
        self.all: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._allow, self._report, self._media_path = allow, report, media_path
        self._numbers: dict[str, int] = {}
        self._calls: set[str] = set()
        self._tree = ChatTree(report, f"trajectory {trajectory.id}")
        known = {step.id for step in trajectory.steps}
        early = [child for child in children if child.parent_step_id not in known]
        if early:
            # A reference is part of an agent step, and these come before any: an empty step without a call has them.
            self.notes.append(_DISPATCH)
            self._append("agent", {"message": "", "llm_call_count": 0})
            self._tree.root.place = 1
        for step in trajectory.steps:
            self._add(step)
        if not self.all:
            self.notes.append(_NOTHING)
            self._append("agent", {"message": "", "llm_call_count": 0})
        for child in children:
            self._reference_child(child, 1 if child in early else max(1, self._numbers[str(child.parent_step_id)]))
        self._add_runs(trajectory)

    def _append(self, source: str, fields: dict[str, Any], timestamp: str | None = None) -> dict[str, Any]:
        step = {"step_id": len(self.all) + 1, "timestamp": timestamp, "source": source, **fields}
        step["extra"] = fields.get("extra") or {}
        self.all.append(step)
        return step

    def _add(self, step: Step) -> None:
        count_raw(step, self._report)
        node, messages = self._tree.read(step)
        before, follows = len(self.all), node.place
        when = None if step.started_at is None else step.started_at.isoformat()
        for message in messages:
            node = self._tree.append(node, message)
            node.place = self._add_message(node, when)
        answer = self._tree.append_answer(node, step)
        if answer is None:
            self._add_failed(step, node.place)
        else:
            answer.place = self._add_answer(step, answer.message, when)
        # Without an answer, tool runs and sub-agents of this step are put on the last message that it read.
        self._numbers[step.id] = len(self.all) if answer is not None else node.place or len(self.all)
        # Readers assume that each step follows the one before it: the first new one has its true predecessor.
        if len(self.all) > before and follows != before:
            self.all[before]["extra"]["follows"] = follows
            if _FORKS not in self.notes:
                self.notes.append(_FORKS)

    def _add_message(self, node: Node, when: str | None) -> int:
        """Adds a message of a request: as a step, or to the observation of the calling step; returns the number."""
        message = node.message
        role = message.get("role")
        if role in ("tool", "function") and (caller := self._calling_step(node)):
            self._add_observation(caller, message)
            return caller
        fields = message_fields(message, self._media_path, self._report)
        if role == "assistant":
            fields["is_copied_context"] = True
        else:
            fields = {"message": fields["message"], "extra": fields["extra"]}
        if role not in ("user", "system", "assistant"):
            fields["extra"]["role"] = role
        return int(self._append(SOURCES.get(str(role), "user"), fields, when)["step_id"])

    def _calling_step(self, node: Node) -> int:
        """Number of the agent step above a tool's message that has its call, else of the nearest one; 0 for none."""
        tool_call_id, nearest, above = node.message.get("tool_call_id"), 0, node.parent
        while above is not None:
            if above.message.get("role") == "assistant":
                calls = calls_of(above.message)
                if tool_call_id is not None and tool_call_id in [call_id(call, at) for at, call in enumerate(calls)]:
                    return above.place
                nearest = nearest or above.place
            above = above.parent
        return nearest

    def _add_observation(self, number: int, message: Message) -> None:
        tool_call_id = message.get("tool_call_id")
        extra = {name: message[name] for name in ("is_error", "name") if message.get(name) is not None}
        known = self._has_call(number, tool_call_id)
        if tool_call_id is not None and not known:
            extra["tool_call_id"] = tool_call_id
        result = {
            "source_call_id": tool_call_id if known else None,
            "content": content_of(message.get("content"), self._media_path, self._report),
            "extra": extra or None,
        }
        self._add_result(number, without_none(result))

    def _has_call(self, number: int, tool_call_id: Any) -> bool:
        return any(call["tool_call_id"] == tool_call_id for call in self.all[number - 1].get("tool_calls") or ())

    def _add_result(self, number: int, result: dict[str, Any]) -> None:
        observation = self.all[number - 1].setdefault("observation", {"results": []})
        observation["results"].append(result)

    def _add_answer(self, step: Step, message: Message, when: str | None) -> int:
        fields = message_fields(message, self._media_path, self._report)
        first = step.call_id not in self._calls
        self._calls.add(step.call_id)
        effort = (step.sampling or {}).get("reasoning_effort")
        fields |= {
            "model_name": model_of(step),
            "reasoning_effort": effort if isinstance(effort, (str, float)) else None,
            "metrics": metrics(step, first=first, allow=self._allow, report=self._report),
            "llm_call_count": None if step.status == "cached" else 1,
            "extra": {**fields["extra"], **step_facts(step)},
        }
        return int(self._append("agent", fields, when)["step_id"])

    def _add_failed(self, step: Step, number: int) -> None:
        self._calls.add(step.call_id)
        when = None if step.started_at is None else step.started_at.isoformat()
        facts = {"after": number, "timestamp": when, "usage": usage_of(step), **step_facts(step)}
        self.failed.append(without_none(facts))

    def _reference_child(self, child: Trajectory, number: int) -> None:
        reference = without_none({"trajectory_id": child.id, "session_id": child.episode_id})
        self._add_result(number, {"subagent_trajectory_ref": [reference]})

    def _add_runs(self, trajectory: Trajectory) -> None:
        """Adds facts of tool runs to their results, and results that were never sent back to the model."""
        for run in trajectory.tool_runs:
            number = self._numbers.get(str(run.step_id), 0)
            if not number:
                self._report.drop("tool runs that no answer asked for", where=f"trajectory {trajectory.id}")
                continue
            results = self.all[number - 1].get("observation", {"results": []})["results"]
            tool_call_id = run.tool_call_id if self._has_call(number, run.tool_call_id) else None
            text, extra = run_result(run)
            sent = [
                result
                for result in results
                if tool_call_id is not None and result.get("source_call_id") == tool_call_id
            ]
            if sent:
                sent[0]["extra"] = {**sent[0].get("extra", {}), **extra}
            else:
                self._add_result(
                    number, without_none({"source_call_id": tool_call_id, "content": text, "extra": extra or None})
                )
