"""The steps of an ATIF document, with the conversation before each."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rollout_trace.data.model import Completion, Cost, Step, TokenIssue, TokenSource, ToolCall, ToolRun, Usage
from rollout_trace.data.tokens import TokenStore
from rollout_trace.importing.chat import arguments_text, error_of, tool_message
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

_NO_IDS = "the ATIF document has no token ids for this step."
_OURS = frozenset(
    {"step_id", "call_id", "choice", "agent", "status", "error", "finish_reason", "latency_seconds", "trainable"}
    | {"token_source", "token_issue", "reward", "policy_version", "policy_spans", "metadata", "follows", "refusal"}
    | {"recorded", "timestamp"}
)


class Document:
    """The steps and tool runs of one document."""

    def __init__(self, document: Fields, job: Job) -> None:
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self.caller_of: dict[str, str | None] = {}
        """Step that references a sub-agent, by the sub-agent's id."""
        self.references_by_path = 0
        self._job = job
        self._document = document
        agent = document.object("agent")
        self._model, self._tools = agent.text("model_name"), agent.items("tool_definitions")
        self._store = TokenStore()
        self._ends: dict[int, Point] = {0: Thread().end()}
        """By the number of a step: the conversation up to its end."""
        self._ids: set[str] = set()
        read = list(document.objects("steps"))
        if document.get("steps") is None:
            document.refuse("steps", "a list")
        self._choices = Counter(_call_id(step) for step in read)
        failed: dict[int, list[Fields]] = {}
        for call in document.object("extra").objects("failed_calls"):
            failed.setdefault(call.count("after") or 0, []).append(call)
        before = 0
        self._add_failed(failed.pop(0, []), 0)
        for position, step in enumerate(read):
            number = step.count("step_id") or position + 1
            self._add(step, number, before)
            before = number
            self._add_failed(failed.pop(number, []), number)
        for left in failed.values():
            self._add_failed(left, before)
        self._store.finish()

    def _thread_after(self, number: int) -> Thread:
        """A conversation to append to, which ends with a step; a copy where another step has continued it already."""
        return (self._ends.get(number) or self._ends[0]).branch()

    def _add(self, step: Fields, number: int, before: int) -> None:
        extra = step.object("extra")
        follows = extra.count("follows")
        thread = self._thread_after(before if follows is None else follows)
        source = step.text("source")
        if source == "agent":
            self._add_answer(step, extra, thread)
        elif source in ("user", "system"):
            thread.add({"role": extra.text("role") or source, "content": self._content(step, "message")})
        elif source is not None:
            step.wrong("source", '"system", "user" or "agent"')
        self._ends[number] = thread.end()

    def _add_answer(self, step: Fields, extra: Fields, thread: Thread) -> None:
        completion = Completion(
            content=self._content(step, "message") or None,
            reasoning=step.text("reasoning_content"),
            tool_calls=tuple(self._call(call) for call in step.objects("tool_calls")),
            refusal=extra.text("refusal"),
        )
        calls, is_copy = step.count("llm_call_count"), step.flag("is_copied_context")
        made = None
        if calls != 0 and not is_copy:
            made = self._step(step, extra, thread, completion, calls)
            self.steps.append(made)
        elif is_copy:
            self._job.report.note("answers of copied context, kept as messages alone")
        if calls != 0 or completion.content or completion.tool_calls:
            thread.add(assistant_message(completion))
        self._add_results(step, completion, thread, made)

    def _step(self, step: Fields, extra: Fields, thread: Thread, completion: Completion, calls: int | None) -> Step:
        metrics = step.object("metrics")
        more, facts = metrics.object("extra"), self._facts(extra)
        cost = _cost(metrics, more)
        usage = metrics.usage("atif")
        several = calls is not None and calls > 1
        issue = facts.pop("token_issue")
        if several:
            # It stands for several calls: its ids are not one sample.
            message = f"the ATIF step stands for {calls} calls: its ids are not one sample."
            issue = TokenIssue(code="several_completions", message=message)
            facts["trainable"], metrics = False, nothing(step.place)
        source: TokenSource = facts.pop("token_source") or "engine"
        alone = self._choices[_call_id(step)] < 2
        counts = usage is not None and alone and source != "retokenized" and not several
        tokens = token_fields(
            self._store,
            prompt=metrics.ids("prompt_token_ids"),
            completion=metrics.ids("completion_token_ids"),
            logprobs=metrics.numbers("logprobs"),
            missing=_NO_IDS,
            source=source,
            counted=usage.output if counts and usage is not None else None,
            issue=issue,
        )
        self._job.report.miss_tokens(tokens["completion_token_ids"], tokens["logprobs"])
        mode = None if tokens["logprobs"] is None else more.text("logprobs_mode")
        effort, is_list = step.get("reasoning_effort"), isinstance(more.get("advantage"), list)
        values = {
            **tokens,
            "model": step.text("model_name") or self._model,
            "response_model": step.text("model_name"),
            "sampling": None if effort is None else {"reasoning_effort": effort},
            "usage": usage,
            "cost": cost,
            **facts,
        }
        return Step(
            **values,
            index=len(self.steps),
            protocol="openai.chat",
            messages=thread.span(),  # type: ignore[arg-type]  # A stored form, which the field takes.
            tools=self._tools,
            completion=completion,
            logprobs_mode=mode_of(mode),
            started_at=step.time("timestamp"),
            advantage=advantages(more, "advantage") if is_list else more.number("advantage"),
        )

    def _facts(self, extra: Fields) -> dict[str, Any]:
        """The fields of a step that our export keeps in ``extra``, and what others keep there."""
        facts = exported_facts(extra, "step_id", self._made_id(), self._ids)
        if not extra:
            return {**facts, "token_issue": None}
        others = {key: value for key, value in extra.values.items() if key not in _OURS}
        issue = extra.object("token_issue")
        code = issue.text("code")
        return {
            **facts,
            "choice": extra.count("choice") or 0,
            "agent": extra.text("agent"),
            "error": error_of(extra.get("error")),
            "latency": extra.number("latency_seconds"),
            "token_issue": None if code is None else TokenIssue(code=code, message=issue.text("message") or ""),
            "metadata": {**facts["metadata"], **({"atif": others} if others else {})},
            **recorded_facts(extra),
        }

    def _made_id(self) -> str:
        root = self._document.name("trajectory_id") or self._document.name("session_id") or "atif"
        name = f"{root}.{len(self.steps)}"
        while name in self._ids:
            name += "'"
        return name

    def _call(self, call: Fields) -> ToolCall:
        # Arguments that are no JSON object stand in the extra, as they were written.
        written = call.object("extra").get("arguments")
        written = call.get("arguments") if written is None else written
        return ToolCall(
            id=call.name("tool_call_id"), name=call.text("function_name"), arguments=arguments_text(written)
        )

    def _add_results(self, step: Fields, completion: Completion, thread: Thread, made: Step | None) -> None:
        names = {call.id: call for call in completion.tool_calls}
        for result in step.object("observation").objects("results"):
            self._reference(result, made)
            if result.get("content") is None and result.get("subagent_trajectory_ref") is not None:
                continue
            call = names.get(result.name("source_call_id"))
            content, extra = self._content(result, "content"), result.object("extra")
            call_id = None if call is None else call.id
            thread.add(tool_message(call_id, content, is_error=extra.get("is_error") is True))
            self.tool_runs.append(
                ToolRun(
                    tool_call_id=call_id,
                    name=(call and call.name) or extra.text("tool"),
                    arguments=call and call.arguments,
                    result=content,
                    error=error_of(extra.get("error")),
                    started_at=extra.time("started_at"),
                    duration=extra.number("duration_seconds"),
                    step_id=None if made is None else made.id,
                )
            )

    def _reference(self, result: Fields, made: Step | None) -> None:
        for reference in result.objects("subagent_trajectory_ref"):
            name = reference.name("trajectory_id")
            if name is not None:
                self.caller_of.setdefault(name, None if made is None else made.id)
            else:
                self.references_by_path += 1

    def _content(self, fields: Fields, name: str) -> Any:
        """A text, or parts in the shape of chat."""
        value = fields.get(name)
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            fields.wrong(name, "a text or a list of parts")
            return None
        return [part for item in fields.objects(name) if (part := self._part(item)) is not None]

    def _part(self, part: Fields) -> dict[str, Any] | None:
        kind = part.text("type")
        if kind == "text":
            return {"type": "text", "text": part.text("text") or ""}
        path = part.object("source").text("path")
        if kind == "image" and path is not None:
            self._job.report.note("images by their path or address, not loaded", not path.startswith("data:"))
            return {"type": "image_url", "image_url": {"url": path}}
        self._job.report.drop(f"parts of messages: {kind}")
        return None

    def _add_failed(self, calls: list[Fields], number: int) -> None:
        thread = self._thread_after(number)
        for call in calls:
            facts = self._facts(call)
            facts.pop("token_source")
            facts["metadata"].pop("atif", None)
            counts = call.object("usage")
            usage = Usage(input=counts.count("input"), output=counts.count("output")) if counts else None
            self.steps.append(
                Step(
                    **{"usage": usage, **facts},
                    index=len(self.steps),
                    protocol="openai.chat",
                    tools=self._tools,
                    started_at=call.time("timestamp"),
                    messages=thread.span(),  # type: ignore[arg-type]  # A stored form, which the field takes.
                )
            )


def _call_id(step: Fields) -> Any:
    extra = step.values.get("extra")
    found = extra.get("call_id") if isinstance(extra, dict) else None
    return found if isinstance(found, str) else id(step)


def _cost(metrics: Fields, more: Fields) -> Cost | None:
    given = more.object("cost")
    amount = given.number("amount")
    if amount is None:
        return usd(metrics.number("cost_usd"))
    return Cost(amount=amount, currency=given.text("currency") or "USD", source="unknown")
