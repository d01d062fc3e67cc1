"""One sample of an inspect log: its model calls and tools, by agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rollout_trace.data.model import Completion, ErrorInfo, Step, StepStatus, ToolRun, Usage, amend
from rollout_trace.importing._inspect_messages import Messages
from rollout_trace.importing.chat import error_of
from rollout_trace.importing.fields import Fields, nothing
from rollout_trace.importing.imported import Job
from rollout_trace.importing.steps import REBUILT, SharedStores, Thread, logprob_of, number, token_fields, usd

_CANCELLED = ("Cancelled by operator", "Cancelled by limit", "Cancelled by system", "Cancelled")
_BESIDE = frozenset(
    {"span_end", "state", "store", "info", "sample_init", "sample_limit", "score", "step", "logger", "sandbox", "input"}
    | {"approval", "subtask", "error", "score_edit"}
)
"""Kinds of events beside calls and tools."""
_NO_IDS = "inspect's logs have no place for token ids, and no answer of this call was logged with them."
_ID = "token_id:"


@dataclass
class Agent:
    """The calls and tools of one agent: those in its span and in no agent's inside it."""

    id: str
    name: str | None
    parent: str | None
    steps: list[Step] = field(default_factory=list)
    tool_runs: list[ToolRun] = field(default_factory=list)


class Sample:
    """The agents of a sample; the first one is the outermost, and is there always."""

    def __init__(self, fields: Fields, model: str | None, job: Job) -> None:
        self._fields, self._model, self._job = fields, model, job
        self._messages = Messages(fields, job.report)
        self._stores = SharedStores()
        self._above: dict[str, str | None] = {}
        self._agents: dict[str, Agent] = {"": Agent("", None, None)}
        self._calls: dict[str, str] = {}
        self._name = fields.name("uuid") or f"{fields.name('id')}.{fields.count('epoch') or 1}"
        self._numbers: dict[str, int] = {}
        """Of each call, by its id."""
        self._is_earlier = False
        """Whether the events at hand are of an attempt before a retry."""
        self._add_earlier()
        before = len(self._numbers)
        for event in fields.objects("events"):
            self._add(event)
        if len(self._numbers) == before:
            self._from_messages()
        self._stores.finish()
        self.agents = self._sorted()
        """The outermost first."""
        for agent in self.agents:
            number(agent.steps, job.report)
        job.report.drop("attachments that the log does not have", self._messages.missing)

    def _add_earlier(self) -> None:
        """Adds the attempts that ended with an error before the sample was tried again: their answers are superseded.

        All are of the outermost agent: an agent that was begun again is one agent.
        """
        self._is_earlier = True
        for attempt in self._fields.objects("error_retries"):
            for event in attempt.objects("events"):
                self._add(event)
        self._is_earlier = False
        steps = self._agents[""].steps
        for step in steps:
            if step.status == "ok":
                amend(step, status="superseded")
        self._job.report.note("calls of attempts before a retry, superseded", len(steps))

    def _sorted(self) -> list[Agent]:
        """The agents with calls or tools, the outermost first: what is in no agent's span, or the only agent there."""
        outside = self._agents[""]
        tops = [one for one in self._agents.values() if one.parent == "" and (one.steps or one.tool_runs)]
        if len(tops) == 1:
            # What was called outside of the one agent, such as a grader, is part of its run.
            tops[0].steps = sorted([*tops[0].steps, *outside.steps], key=lambda step: self._numbers[step.call_id])
            tops[0].tool_runs += outside.tool_runs
            self._agents = {"": tops[0], **{one.id: one for one in self._agents.values() if one.id}}
        inner = [one for one in self._agents.values() if one is not self._agents[""]]
        return [self._agents[""], *(one for one in inner if one.steps or one.tool_runs)]

    def parent_of(self, agent: Agent) -> tuple[Agent, Step | None]:
        """The agent around an agent that has calls or tools, and its last step before the first of that one."""
        around = self.agents[0]
        name = agent.parent
        while name:
            inner = self._agents[name]
            if any(inner is one for one in self.agents):
                around = inner
                break
            name = inner.parent
        began = agent.steps[0].started_at if agent.steps else None
        before = [step for step in around.steps if began and step.started_at and step.started_at <= began]
        return around, before[-1] if before else None

    def _add(self, event: Fields) -> None:
        kind = event.text("event")
        if kind == "span_begin":
            self._begin_span(event)
        elif kind == "model":
            self._add_call(event)
        elif kind == "tool":
            self._add_tool(event)
        elif kind not in _BESIDE:
            self._job.report.drop(f"events of the kind {str(kind)[:40]}")

    def _begin_span(self, event: Fields) -> None:
        own = event.name("id")
        if own is None or own in self._above or self._is_earlier:
            return
        parent = event.name("parent_id")
        # A parent begins first: one that is not known yet is none.
        above = parent if parent in self._above else None
        agent = self._agent_id(above)
        if event.get("type") == "agent":
            self._agents[own] = Agent(own, event.text("name"), agent)
        self._above[own] = above

    def _agent_id(self, span: str | None) -> str:
        while span is not None:
            if span in self._agents:
                return span
            span = self._above.get(span)
        return ""

    def _add_call(self, event: Fields) -> None:
        agent = self._agents[self._agent_id(event.name("span_id"))]
        if event.flag("pending"):
            self._job.report.drop("calls that had not ended")
            return
        name = f"{self._name}.{len(self._numbers) + 1}"
        self._numbers[name] = len(self._numbers)
        output = event.object("output")
        choices = list(output.objects("choices"))
        shared = {**self._call_facts(event, output, agent), "call_id": name}
        for at, choice in enumerate(choices or [nothing(event.place)]):
            agent.steps.append(self._step(event, output, choice, at, shared, only=len(choices) == 1))

    def _call_facts(self, event: Fields, output: Fields, agent: Agent) -> dict[str, Any]:
        sent = [self._messages.chat(one) for one in self._messages.input_of(event)]
        config, choice = dict(event.mapping("config")), event.get("tool_choice")
        if choice is not None:
            config["tool_choice"] = choice
        tools = [{"type": "function", "function": _tool(tool)} for tool in event.objects("tools")]
        role, usage = event.text("role"), output.object("usage")
        began, seconds = _times(event, output)
        facts = {"role": role, "retries": event.count("retries") or None}
        return {
            "messages": self._stores.add_messages(sent),
            "tools": tools or None,
            "sampling": config or None,
            "protocol": "openai.chat",
            "model": event.text("model") or self._model,
            "agent": agent.name,
            "started_at": began,
            "latency": seconds,
            "response_model": output.text("model"),
            "response_id": output.name("response_id"),
            "usage": usage.usage("inspect"),
            "trainable": role is None,
            "metadata": {name: value for name, value in facts.items() if value is not None} or None,
        }

    def _step(
        self, event: Fields, output: Fields, choice: Fields, at: int, shared: dict[str, Any], *, only: bool
    ) -> Step:
        message = choice.object("message")
        completion = self._messages.completion(message) if message else None
        error = event.text("error") or output.text("error")
        tokens = self._tokens(output, choice, message, shared["usage"], only=only)
        cost = output.object("usage").number("total_cost")
        step = Step(
            **tokens,
            **shared,
            id=f"{shared['call_id']}.{at}",
            choice=at,
            completion=completion,
            finish_reason=choice.text("stop_reason"),
            cost=usd(cost) if at == 0 else None,
            status=_status(event, completion, error),
            error=None if error is None else ErrorInfo(type="ModelError", message=error),
        )
        for call in () if completion is None else completion.tool_calls:
            if call.id is not None:
                self._calls[call.id] = step.id
        return step

    def _tokens(
        self, output: Fields, choice: Fields, message: Fields, usage: Usage | None, *, only: bool
    ) -> dict[str, Any]:
        rows = list(choice.object("logprobs").objects("content"))
        numbers = [logprob_of(row) for row in rows]
        # vLLM writes ids in the place of texts where it is asked to.
        ids = [_id(row.get("token")) for row in rows]
        known = bool(ids) and None not in ids
        sources = [one.object("metadata") for one in (output, message)]
        prompt = next((one.ids("prompt_token_ids") for one in sources if one.get("prompt_token_ids")), None)
        found = token_fields(
            self._stores.tokens,
            prompt=prompt if only else None,
            completion=[one for one in ids if one is not None] if known else None,
            logprobs=numbers or None,
            missing=_NO_IDS,
            source="logprobs",
            counted=usage.output if usage is not None and only and rows else None,
        )
        if not choice:
            found["token_issue"] = None
        return found

    def _add_tool(self, event: Fields) -> None:
        agent = self._agents[self._agent_id(event.name("span_id"))]
        call_id = event.name("id")
        began, seconds = _times(event)
        agent.tool_runs.append(
            ToolRun(
                tool_call_id=call_id,
                name=event.text("function"),
                arguments=event.get("arguments"),
                result=self._messages.resolved(event.get("result")),
                error=error_of(event.get("error")),
                started_at=began,
                duration=seconds,
                step_id=self._calls.get(call_id or ""),
            )
        )

    def _from_messages(self) -> None:
        """Steps of a log without events: each answer in the messages, with those before it."""
        thread, agent = Thread(), self._agents[""]
        for message in self._fields.objects("messages"):
            if message.get("role") != "assistant" or message.get("source") == "input":
                thread.add(self._messages.chat(message))
                continue
            name = f"{self._name}.{len(agent.steps)}"
            agent.steps.append(
                Step(
                    id=name,
                    call_id=name,
                    protocol="openai.chat",
                    model=message.text("model") or self._model,
                    messages=thread.span(),  # type: ignore[arg-type]  # A stored form, which the field takes.
                    completion=self._messages.completion(message),
                    metadata=dict(REBUILT),
                    **token_fields(self._stores.tokens, prompt=None, completion=None, logprobs=None, missing=_NO_IDS),
                )
            )
            thread.add(self._messages.chat(message))
        if agent.steps:
            self._job.report.miss("model events: prompts are put together from the messages", len(agent.steps))


def _times(event: Fields, output: Fields | None = None) -> tuple[datetime | None, float | None]:
    """When an event began, and the seconds that it took."""
    seconds, began, ended = event.number("working_time"), event.time("timestamp"), event.time("completed")
    if began is not None and ended is not None and ended >= began:
        seconds = (ended - began).total_seconds()
    elif output is not None and (own := output.number("time")) is not None:
        seconds = own
    return began, None if seconds is None or seconds < 0 else seconds


def _status(event: Fields, completion: Completion | None, error: str | None) -> StepStatus:
    if event.get("cache") == "read":
        return "cached"
    if error is not None and error.startswith(_CANCELLED):
        return "cancelled"
    return "error" if error is not None or completion is None else "ok"


def _tool(tool: Fields) -> dict[str, Any]:
    return {name: tool.get(name) for name in ("name", "description", "parameters") if tool.get(name) is not None}


def _id(text: Any) -> int | None:
    digits = text.removeprefix(_ID) if isinstance(text, str) and text.startswith(_ID) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
