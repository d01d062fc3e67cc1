"""The parts of an ATIF document: steps with their messages, tool results and metrics, and facts in ``extra``."""

from __future__ import annotations

import json
from collections.abc import Callable
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.conversations import Node
from rollout_trace.data.model import shared
from rollout_trace.export._conversations import ChatTree
from rollout_trace.export._extras import count_raw, count_step_extras
from rollout_trace.export._rows import note_grammar
from rollout_trace.export._values import number, numbers
from rollout_trace.file.fields import facts_record
from rollout_trace.train.selection import logprobs_problem, n_sampled, reason_left_out
from rollout_trace.train.shaping import constrained
from rollout_trace.wire.chat_messages import Message, arguments_of, calls_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from rollout_trace.data.model import ErrorInfo, Step, ToolRun
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.report import ExportReport

MediaPath: TypeAlias = Callable[[str, str], str]
"""Maps a media type and a URL to the path or URL for the document."""

_FORKS = "Not every step follows the one before it: extra.follows names the step it follows, 0 for none."
_NOTHING = "No call of this run has messages or an answer: its step stands for none."
_DISPATCH = "Sub-agents that were begun before the first answer are referenced from a step without a model call."
_SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "aac": "audio/aac", "aiff": "audio/aiff"}
_NOT_EXTRA = frozenset({"role", "content", "tool_calls", "reasoning", "reasoning_content", "tool_call_id", "refusal"})


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
        when = _time(step.started_at)
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
        fields = _message_fields(message, self._media_path, self._report)
        if role == "assistant":
            fields["is_copied_context"] = True
        else:
            fields = {"message": fields["message"], "extra": fields["extra"]}
        if role not in ("user", "system", "assistant"):
            fields["extra"]["role"] = role
        return int(self._append(_SOURCES.get(str(role), "user"), fields, when)["step_id"])

    def _calling_step(self, node: Node) -> int:
        """Number of the agent step above a tool's message that has its call, else of the nearest one; 0 for none."""
        tool_call_id, nearest, above = node.message.get("tool_call_id"), 0, node.parent
        while above is not None:
            if above.message.get("role") == "assistant":
                calls = calls_of(above.message)
                if tool_call_id is not None and tool_call_id in [_call_id(call, at) for at, call in enumerate(calls)]:
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
            "content": _content(message.get("content"), self._media_path, self._report),
            "extra": extra or None,
        }
        self._add_result(number, without_none(result))

    def _has_call(self, number: int, tool_call_id: Any) -> bool:
        return any(call["tool_call_id"] == tool_call_id for call in self.all[number - 1].get("tool_calls") or ())

    def _add_result(self, number: int, result: dict[str, Any]) -> None:
        observation = self.all[number - 1].setdefault("observation", {"results": []})
        observation["results"].append(result)

    def _add_answer(self, step: Step, message: Message, when: str | None) -> int:
        fields = _message_fields(message, self._media_path, self._report)
        first = step.call_id not in self._calls
        self._calls.add(step.call_id)
        effort = (step.sampling or {}).get("reasoning_effort")
        fields |= {
            "model_name": model_of(step),
            "reasoning_effort": effort if isinstance(effort, (str, float)) else None,
            "metrics": _metrics(step, first=first, allow=self._allow, report=self._report),
            "llm_call_count": None if step.status == "cached" else 1,
            "extra": {**fields["extra"], **_step_facts(step)},
        }
        return int(self._append("agent", fields, when)["step_id"])

    def _add_failed(self, step: Step, number: int) -> None:
        self._calls.add(step.call_id)
        when = _time(step.started_at)
        facts = {"after": number, "timestamp": when, "usage": _usage(step), **_step_facts(step)}
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
            text, extra = _run_result(run)
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


# Metrics and facts


def _metrics(step: Step, *, first: bool, allow: Collection[str], report: ExportReport) -> dict[str, Any] | None:
    """The metrics of a step. Usage counts all choices of a call together: only the first (``first``) has it."""
    usage = step.usage if first else None
    cost = step.cost
    in_usd = cost is not None and cost.currency == "USD"
    extra = {
        "reasoning_tokens": None if usage is None else usage.reasoning,
        "cache_write_tokens": None if usage is None else usage.cache_write,
        "cost": None if cost is None or in_usd else {"amount": cost.amount, "currency": cost.currency},
        "logprobs_mode": None if step.logprobs is None else step.logprobs_mode,
        "advantage": step.advantage,
    }
    fields = {
        "prompt_tokens": None if usage is None else usage.input,
        "completion_tokens": None if usage is None else usage.output,
        "cached_tokens": None if usage is None else usage.cache_read,
        "cost_usd": cost.amount if cost is not None and in_usd else None,
        **_tokens(step, allow, report),
        "extra": without_none(extra) or None,
    }
    return without_none(fields) or None


def _tokens(step: Step, allow: Collection[str], report: ExportReport) -> dict[str, Any]:
    """Ids and logprobs of a step that can be trained on; empty for others, as ATIF's readers train on all there are.

    Logprobs of a step without any ids cannot be trained on by mistake: they are there if they are sound.
    """
    if n_sampled(step) is None and shared(step, "prompt_token_ids") is None:
        logprobs = step.logprobs
        if logprobs is None or logprobs_problem(logprobs) is None:
            return {"logprobs": logprobs}
        report.drop("logprobs that are not finite numbers up to 0", where=f"step {step.id}")
        return {}
    reason = reason_left_out(step, {"allow": allow})
    if reason is not None:
        report.drop(f"token ids of steps left out: {reason}", where=f"step {step.id}")
        return {}
    note_grammar(constrained(step), n_sampled(step) or 0, report)
    count_step_extras(step, report)
    names = ("prompt_token_ids", "completion_token_ids", "logprobs")
    return {name: getattr(step, name) for name in names}


def model_of(step: Step) -> str | None:
    """The model that the response names, else that of the request."""
    return step.response_model or step.model


def _usage(step: Step) -> dict[str, Any] | None:
    """Input and output tokens of the call; None where neither is known."""
    usage = step.usage
    return None if usage is None else without_none({"input": usage.input, "output": usage.output}) or None


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    names = ("type", "message", "code", "status")
    return None if error is None else without_none({name: getattr(error, name) for name in names})


def _step_facts(step: Step) -> dict[str, Any]:
    """The facts of a step that ATIF has no field for."""
    issue = step.token_issue
    return without_none(
        {
            "step_id": step.id,
            "call_id": step.call_id,
            "choice": step.choice or None,
            "agent": step.agent,
            "status": None if step.status == "ok" else step.status,
            "error": _error(step.error),
            "finish_reason": step.finish_reason,
            "latency_seconds": step.latency,
            "trainable": None if step.trainable else False,
            "token_source": step.token_source,
            "token_issue": None if issue is None else {"code": issue.code, "message": issue.message},
            "reward": number(step.reward),
            "policy_version": step.policy_version,
            "policy_spans": None if step.policy_spans is None else [list(span) for span in step.policy_spans],
            "metadata": step.metadata or None,
            "recorded": facts_record(step),
        }
    )


def trajectory_facts(trajectory: Trajectory, failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a trajectory that ATIF has no field for; ``failed`` are its calls without an answer."""
    task = trajectory.task
    return without_none(
        {
            "task": None if task is None else without_none({"id": task.id, "data": task.data}),
            "group_id": trajectory.group_id,
            "rollout_index": trajectory.rollout_index,
            "parent_id": trajectory.parent_id,
            "status": trajectory.status,
            "stop_reason": trajectory.stop_reason,
            "error": _error(trajectory.error),
            "started_at": _time(trajectory.started_at),
            "ended_at": _time(trajectory.ended_at),
            "environment": trajectory.environment,
            "metadata": trajectory.metadata or None,
            "failed_calls": failed or None,
        }
    )


def final_metrics(trajectory: Trajectory, steps: int, inner: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals of a trajectory; the cost, in USD, includes the documents inside it (``inner``), if all are known."""
    cost = trajectory.cost
    # A trajectory without steps cost nothing; one whose cost is not known leaves the total unknown.
    amounts = [cost.amount if cost is not None and cost.currency == "USD" else None if trajectory.steps else 0.0]
    amounts += [document["final_metrics"].get("total_cost_usd") for document in inner]
    known = [amount for amount in amounts if amount is not None]
    return without_none(
        {
            "total_prompt_tokens": trajectory.n_input_tokens,
            "total_completion_tokens": trajectory.n_output_tokens,
            "total_cached_tokens": trajectory.n_cache_read_tokens,
            # With sub-agents, as ATIF defines it. A sum without one of them would pass for the whole: then None.
            "total_cost_usd": sum(known) if len(known) == len(amounts) else None,
            "total_steps": steps,
            "extra": without_none(
                {
                    "reward": number(trajectory.reward),
                    "rewards": numbers(trajectory.rewards),
                    "metrics": trajectory.metrics,
                }
            )
            or None,
        }
    )


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


# Messages


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """The values without those that are None: ATIF leaves out what is missing."""
    return {name: value for name, value in values.items() if value is not None}


def _content(value: Any, media_path: MediaPath, report: ExportReport) -> str | list[dict[str, Any]]:
    """The content of a chat message in ATIF's form: a text (empty for none), or parts of text, image and audio."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)
    parts = [part for item in value if (part := _part(item, media_path, report)) is not None]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def _part(item: Any, media_path: MediaPath, report: ExportReport) -> dict[str, Any] | None:
    kind = item.get("type") if isinstance(item, dict) else type(item).__name__
    # A chat part has its value under the name of its type: {"type": "text", "text": ...}.
    payload = item.get(kind) if isinstance(item, dict) and isinstance(kind, str) else item
    if isinstance(payload, str) and kind in ("text", "refusal", "str"):
        return {"type": "text", "text": payload}
    url = payload.get("url") if isinstance(payload, dict) else payload
    if kind == "image_url" and isinstance(url, str):
        media = _media_type(url)
        if media in _IMAGES:
            return {"type": "image", "source": {"media_type": media, "path": media_path(media, url)}}
    if kind == "input_audio" and isinstance(payload, dict) and payload.get("format") in _AUDIO:
        media = _AUDIO[payload["format"]]
        url = f"data:{media};base64,{payload.get('data')}"
        return {"type": "audio", "source": {"media_type": media, "path": media_path(media, url)}}
    report.drop(f"content parts that ATIF has no type for: {kind}")
    return None


def _media_type(url: str) -> str:
    """The media type of a data URL, or that of another URL's suffix; empty where there is neither."""
    if url.startswith("data:"):
        return url[5:].split(",", 1)[0].split(";", 1)[0]
    return guess_type(url.split("?", 1)[0])[0] or ""


def _message_fields(message: Message, media_path: MediaPath, report: ExportReport) -> dict[str, Any]:
    """The fields of an ATIF step from a chat message: all but its number and source."""
    refusal = message.get("refusal")
    extra = {name: value for name, value in message.items() if name not in _NOT_EXTRA and value is not None}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return {
        "message": _content(message.get("content") or refusal, media_path, report),
        "reasoning_content": reasoning if isinstance(reasoning, str) and message.get("role") == "assistant" else None,
        "tool_calls": [_call(call, at) for at, call in enumerate(calls_of(message))] or None,
        "extra": extra if refusal is None else {**extra, "refusal": refusal},
    }


def _call_id(call: Any, position: int) -> str:
    """The id of a tool call; for one without, an id made of its position in the answer."""
    own = call.get("id") if isinstance(call, dict) else None
    return own if isinstance(own, str) and own else f"call_{position}"


def _call(call: Any, position: int) -> dict[str, Any]:
    kind = call.get("type") if isinstance(call, dict) else None
    function = call.get("custom" if kind == "custom" else "function") if isinstance(call, dict) else None
    payload = function if isinstance(function, dict) else {}
    written = payload.get("input") if kind == "custom" else payload.get("arguments")
    arguments = None if kind == "custom" else arguments_of(written)
    return without_none(
        {
            "tool_call_id": _call_id(call, position),
            "function_name": str(payload.get("name") or ""),
            "arguments": arguments or {},
            # ATIF's `arguments` is an object: what is none (broken JSON, a custom tool's text) is kept verbatim here.
            "extra": {"arguments": written} if arguments is None else None,
        }
    )


def _run_result(run: ToolRun) -> tuple[str | None, dict[str, Any]]:
    """The result of a tool as a text, and the other facts of its run."""
    text = run.result if run.result is None or isinstance(run.result, str) else json.dumps(run.result, default=str)
    began, error = _time(run.started_at), _error(run.error)
    facts = {"tool": run.name, "started_at": began, "duration_seconds": run.duration, "error": error}
    return text, without_none(facts)
