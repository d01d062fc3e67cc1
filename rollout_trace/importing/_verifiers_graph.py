"""The message graph of a verifiers trace, as steps."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from rollout_trace.data.model import Step, TokenIssue, TokenSource, ToolRun
from rollout_trace.data.tokens import TokenStore
from rollout_trace.importing.chat import chat_completion, error_of
from rollout_trace.importing.fields import Fields, nothing
from rollout_trace.importing.imported import Job
from rollout_trace.importing.steps import (
    Point,
    Thread,
    advantages,
    exported_facts,
    mode_of,
    recorded_facts,
    token_fields,
    usd,
)
from rollout_trace.wire.chat_messages import assistant_message
from rollout_trace.wire.tool_results import ToolCalls

_NO_IDS = "the node of the trace has no token ids."


class _Path(NamedTuple):
    """The conversation up to a node: its messages, its ids, the root's tools."""

    end: Point
    above: _Path | None
    """Of the node before it. Ids are stored once: whole prompts would grow with the square of the turns."""
    own: list[int] | None
    """Ids of the node alone; None where they are not those of its mask."""
    tools: list[Any] | None

    def ids(self) -> list[int] | None:
        """The ids from the root to the node; None where those of one are not known."""
        pieces: list[list[int]] = []
        path: _Path | None = self
        while path is not None:
            if path.own is None:
                return None
            pieces.append(path.own)
            path = path.above
        return [one for piece in reversed(pieces) for one in piece]


class Graph:
    """The steps of one trace. Each sampled node is one, whatever continues it."""

    def __init__(self, trace: Fields, ours: Fields, job: Job, *, trainable: bool) -> None:
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self._trace, self._job, self._trainable = trace, job, trainable
        self._store = TokenStore()
        self._name = trace.require_name("id")
        self._facts = list(ours.objects("steps"))
        self._fact_of = {fact.count("node"): fact for fact in self._facts if fact.get("node") is not None}
        self._choices = Counter(fact.name("call_id") for fact in self._facts)
        self._calls = list(trace.objects("calls"))
        self._call_of = {call.count("node"): call for call in self._calls if call.get("node") is not None}
        self._paths: list[_Path] = []
        self._step_ids: set[str] = set()
        self._tool_calls = ToolCalls()
        self._rounded = True
        self._has_logprobs = False
        if trace.items("nodes") is None:
            trace.refuse("nodes", "a list of nodes")
        for at, node in enumerate(trace.objects("nodes")):
            self._add(node, at)
        self._add_failed()
        self._restore_order()
        self._store.finish()
        if self._has_logprobs and self._rounded:
            job.report.note("traces whose logprobs have at most 4 decimals, as verifiers rounds them in files")

    def _parent(self, node: Fields, at: int) -> _Path:
        parent = node.get("parent")
        if parent is None:
            return _Path(Thread().end(), None, [], _tools_of(node))
        number = node.count("parent")
        if number is None or number >= at or number >= len(self._paths):
            node.wrong("parent", f"the index of an earlier node, below {at}")
            return _Path(Thread().end(), None, None, None)
        return self._paths[number]

    def _add(self, node: Fields, at: int) -> None:
        before = self._parent(node, at)
        thread, message = before.end.branch(), node.object("message")
        content = _message(message)
        own, marks = node.ids("token_ids") or [], _marks(node.items("mask"))
        if marks is None:
            node.wrong("mask", "a list of true and false")
        if node.flag("sampled"):
            self._sampled(node, at, before, thread, message, own, marks)
        elif content["role"] == "tool":
            self.tool_runs.append(self._tool_calls.run(content["tool_call_id"], content["content"]))
        thread.add(content)
        self._paths.append(_Path(thread.end(), before, None if marks is None else own, before.tools))

    def _sampled(
        self,
        node: Fields,
        at: int,
        before: _Path,
        thread: Thread,
        message: Fields,
        own: list[int],
        marks: list[bool] | None,
    ) -> None:
        fact, call = self._fact_of.get(at, nothing(node.place)), self._call_of.get(at, nothing(node.place))
        facts, call_facts = self._step_facts(fact), self._call_facts(call)
        usage = call_facts["usage"]
        counted = None
        if usage is not None and (not fact or self._choices[fact.name("call_id")] < 2):
            counted = usage.output
        begin, end = _span(marks)
        issue = _issue(own, marks, begin, end)
        logprobs = node.numbers("logprobs")
        self._look(logprobs)
        has_ids = bool(own) and issue is None and any(marks or ())
        prompt = before.ids() if has_ids else None
        source: TokenSource = facts.pop("token_source") or "engine"
        mode = facts.pop("logprobs_mode")
        tokens = token_fields(
            self._store,
            prompt=None if prompt is None else [*prompt, *own[:begin]],
            completion=own[begin:end] if has_ids else None,
            logprobs=logprobs if has_ids and logprobs else None,
            missing=_NO_IDS,
            source=source,
            counted=None if source == "retokenized" else counted,
            issue=issue,
        )
        self._job.report.miss_tokens(tokens["completion_token_ids"], tokens["logprobs"])
        completion = chat_completion(message)
        step = Step(
            **tokens,
            **{**call_facts, **facts},
            logprobs_mode=None if tokens["logprobs"] is None else mode,
            messages=thread.span(),  # type: ignore[arg-type]  # A stored form, which the field takes.
            tools=before.tools,
            completion=completion,
            advantage=advantages(node, "advantages"),
        )
        self.steps.append(step)
        for one in completion.tool_calls:
            self._tool_calls.note(one.id, one.name, one.arguments, step.id)

    def _look(self, logprobs: list[float | None] | None) -> None:
        for value in logprobs or ():
            self._has_logprobs = True
            if value is not None and value != round(value, 4):
                self._rounded = False
                return

    def _step_facts(self, fact: Fields) -> dict[str, Any]:
        """What our export keeps of a step beside its node."""
        facts = exported_facts(fact, "id", f"{self._name}.{len(self.steps)}", self._step_ids)
        return {
            "index": len(self.steps),
            "trainable": self._trainable,
            **facts,
            "logprobs_mode": mode_of(fact.text("logprobs_mode")),
            **recorded_facts(fact),
        }

    def _call_facts(self, call: Fields) -> dict[str, Any]:
        # The messages are of the shape of chat, whichever endpoint the call went to.
        facts: dict[str, Any] = {"protocol": "openai.chat", "usage": call.object("usage").usage("verifiers")}
        if not call:
            return facts
        time, reason = call.object("time"), call.text("finish_reason")
        began, ended = time.number("start") or None, time.number("end")
        facts |= {
            "model": call.text("model"),
            "sampling": call.mapping("sampling") or None,
            "cost": usd(call.object("usage").number("cost")),
            "started_at": time.time("start") if began else None,
            "latency": None if began is None or ended is None or ended < began else ended - began,
            "error": error_of(call.get("error")),
        }
        return facts if reason is None else {**facts, "finish_reason": reason}

    def _add_failed(self) -> None:
        """Adds the calls without a node: they gave no answer."""
        without = [fact for fact in self._facts if fact.get("node") is None]
        calls = [call for call in self._calls if call.get("node") is None]
        for at in range(max(len(without), len(calls))):
            none = nothing(self._trace.place)
            fact, call = without[at] if at < len(without) else none, calls[at] if at < len(calls) else none
            facts = self._step_facts(fact)
            facts.pop("token_source"), facts.pop("logprobs_mode")
            if not fact:
                facts["status"] = "error"
            tools = self._paths[0].tools if self._paths else None
            self.steps.append(Step(**{"tools": tools, **self._call_facts(call), **facts}))

    def _restore_order(self) -> None:
        order = {fact.name("id"): at for at, fact in enumerate(self._facts)}
        if not all(step.id in order for step in self.steps) or not order:
            return
        self.steps.sort(key=lambda step: order[step.id])
        for at, step in enumerate(self.steps):
            object.__setattr__(step, "index", at)


def _tools_of(node: Fields) -> list[Any] | None:
    found: list[Any] = []
    for tool in node.objects("tools"):
        kind = "custom" if tool.get("type") == "custom" else "function"
        found.append({"type": kind, kind: {key: value for key, value in tool.values.items() if key != "type"}})
    return found or None


def _marks(mask: list[Any] | None) -> list[bool] | None:
    if mask is None:
        return []
    return [bool(one) for one in mask] if all(isinstance(one, bool) or one in (0, 1) for one in mask) else None


def _span(marks: list[bool] | None) -> tuple[int, int]:
    """First and behind the last of the sampled tokens."""
    if not marks or True not in marks:
        return 0, 0
    return marks.index(True), len(marks) - marks[::-1].index(True)


def _issue(own: list[int], marks: list[bool] | None, begin: int, end: int) -> TokenIssue | None:
    """Why the ids of a node are no completion; None where they are one, or there are none."""
    if marks is not None and len(marks) != len(own):
        message = f"{len(own)} token ids but {len(marks)} marks in the mask."
        return TokenIssue(code="lengths_differ", message=message)
    if marks is not None and not all(marks[begin:end]):
        message = "tokens that were not sampled stand between those that were: they are not one completion."
        return TokenIssue(code="several_completions", message=message)
    return None


def _message(message: Fields) -> dict[str, Any]:
    """A message in the shape of chat."""
    role = message.text("role") or "user"
    if role == "assistant":
        return assistant_message(chat_completion(message))
    found: dict[str, Any] = {"role": role, "content": message.get("content")}
    if role == "tool":
        found["tool_call_id"] = message.name("tool_call_id")
    return found
