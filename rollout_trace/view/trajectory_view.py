"""A trajectory as it is shown: its outline, its steps, and its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rollout_trace._python import cached_property
from rollout_trace.data.model import Step, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.report import ExportReport
from rollout_trace.train.checks import Finding
from rollout_trace.train.drift import MEANINGS
from rollout_trace.train.sequence import Sequence as Row
from rollout_trace.train.sequence import Sequences
from rollout_trace.view.model import (
    AttemptView,
    DriftView,
    FindingView,
    Message,
    Outline,
    Part,
    StepLine,
    StepView,
    Summary,
    Tokens,
    ToolRunView,
)
from rollout_trace.view.summary import (
    answer_excerpt,
    checked,
    error_text,
    finite,
    lengths,
    mean_logprob,
    reason_of,
    row_view,
    summary_of,
    unix,
    worst,
)
from rollout_trace.view.threads import Link, children_after, threads_of
from rollout_trace.view.tokens import TokenTexts, ratio_bins, tokens_of
from rollout_trace.view.values import json_text, plain, text_of
from rollout_trace.wire.chat_messages import answer, convert, grouped, names_of_tools


class TrajectoryView:
    """Everything shown about one trajectory, which must not change. Each part is computed on first access and kept.

    ``decode``: a tokenizer, for tokens without texts; ``family``: summaries of its episode's trajectories, its own too.
    """

    def __init__(
        self, trajectory: Trajectory, *, decode: TokenTexts | None = None, family: Sequence[Summary] = ()
    ) -> None:
        self.trajectory = trajectory
        self._decode = decode
        self.family = list(family)
        self._steps = trajectory.steps
        self._index = {step.id: at for at, step in enumerate(self._steps)}

    @cached_property
    def summary(self) -> Summary:
        """The trajectory in a line."""
        return summary_of(self.trajectory, *self._checked)

    @cached_property
    def outline(self) -> Outline:
        """The trajectory without the contents of its steps."""
        one = self.trajectory
        return Outline(
            summary=self.summary,
            steps=self._lines,
            tool_runs=[self._short_run(run) for run in one.tool_runs],
            rows=[row_view(row, self._index) for row in self._rows],
            findings=self._findings,
            drift=self._drift,
            threads=1 + max((link.thread for link in self._links), default=0),
            family=self.family,
            task=None if one.task is None else plain(one.task.data),
            environment=plain(one.environment),
            metadata=plain(one.metadata),
            error=error_text(one.error),
            token_texts=self._source_of_texts(),
            ratios=ratio_bins(self._steps),
            exchanges=len(one.exchanges),
            exchange_bytes=sum(len(each.request) + len(each.response) for each in one.exchanges),
        )

    def steps(self, first: int = 0, end: int | None = None, *, tokens: bool = True) -> list[StepView]:
        """The steps ``[first, end)``, whole; without their tokens where these are not wanted."""
        return [self._step(at, tokens=tokens) for at in range(*slice(first, end).indices(len(self._steps)))]

    def tokens(self, index: int) -> Tokens | None:
        """The tokens of a step's completion."""
        return tokens_of(self._steps[index], self._decode)

    @cached_property
    def _checked(self) -> tuple[list[Finding], Sequences | None]:
        return checked(self.trajectory)

    @property
    def _rows(self) -> Iterable[Row]:
        return self._checked[1] or ()

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """By step: the row that has its completion, and where that begins."""
        return {
            step_id: (at, begin)
            for at, row in enumerate(self._rows)
            for step_id, (begin, _) in zip(row.step_ids, row.spans, strict=True)
        }

    @cached_property
    def _left_out(self) -> dict[str, str]:
        rows = self._checked[1]
        left_out = {} if rows is None else rows.report.left_out
        return {step_id: reason_of(reason) for reason, ids in left_out.items() for step_id in ids}

    @cached_property
    def _links(self) -> list[Link]:
        return threads_of(self._steps)

    @cached_property
    def _choices(self) -> Counter[str]:
        """Number of steps of each call."""
        return Counter(step.call_id for step in self._steps)

    @cached_property
    def _findings(self) -> list[FindingView]:
        return [
            FindingView(
                code=one.code,
                grade=one.grade,
                message=one.message,
                step=None if one.step_id is None else self._index.get(one.step_id),
                position=one.position,
            )
            for one in self._checked[0]
        ]

    @cached_property
    def _findings_of(self) -> dict[int | None, list[FindingView]]:
        found: dict[int | None, list[FindingView]] = {}
        for one in self._findings:
            found.setdefault(one.step, []).append(one)
        return found

    @cached_property
    def _drift(self) -> list[DriftView]:
        rows = self._checked[1]
        return [
            DriftView(
                step=self._index[one.step_id],
                previous=self._index[one.previous_step_id],
                position=one.position,
                kind=one.kind,
                meaning=MEANINGS[one.kind],
                expected=list(one.expected),
                found=list(one.found),
                expected_text=self._text(one.expected),
                found_text=self._text(one.found),
            )
            for one in (() if rows is None else rows.report.drift)
        ]

    @cached_property
    def _drift_of(self) -> dict[int, DriftView]:
        return {one.step: one for one in self._drift}

    @cached_property
    def _runs_of(self) -> dict[int | None, list[ToolRun]]:
        found: dict[int | None, list[ToolRun]] = {}
        for run in self.trajectory.tool_runs:
            found.setdefault(self._index.get(run.step_id) if run.step_id is not None else None, []).append(run)
        return found

    @cached_property
    def _children(self) -> dict[int, list[str]]:
        parents = {step.id for step in self._steps}
        own = [one for one in self.family if one.parent == self.trajectory.id]
        return children_after(self._steps, [(one.id, one.parent_step, one.started) for one in own]) if parents else {}

    @cached_property
    def _lines(self) -> list[StepLine]:
        return [self._line(at, step) for at, step in enumerate(self._steps)]

    def _line(self, at: int, step: Step) -> StepLine:
        row, begin = self._places.get(step.id, (None, None))
        link, drift = self._links[at], self._drift_of.get(at)
        n_prompt, n_completion = lengths(step, is_alone=self._choices[step.call_id] == 1)
        calls = step.completion.tool_calls if step.completion is not None else ()
        return StepLine(
            index=at,
            id=step.id,
            call_id=step.call_id,
            agent=step.agent,
            model=step.model,
            status=step.status,
            finish=step.finish_reason,
            thread=link.thread,
            continues=link.continues,
            started=unix(step.started_at),
            latency=step.latency,
            first_token=step.time_to_first_token,
            n_prompt=n_prompt,
            n_completion=n_completion,
            mean_logprob=mean_logprob(step),
            row=row,
            begin=begin,
            left_out=self._left_out.get(step.id),
            reward=finite(step.reward),
            grade=worst(one.grade for one in self._findings_of.get(at, [])),
            drift=None if drift is None else drift.kind,
            tools=[call.name or "" for call in calls],
            excerpt=answer_excerpt(step),
        )

    def _step(self, at: int, *, tokens: bool) -> StepView:
        step = self._steps[at]
        usage = None if step.usage is None else {k: v for k, v in plain(step.usage).items() if v is not None}
        return StepView(
            line=self._lines[at],
            repeated=self._links[at].repeated,
            shown_by=self._links[at].shown_by,
            new=self._new_messages(at),
            answer=shown_answer(step),
            tool_runs=[self._run(run) for run in self._runs_of.get(at, [])],
            children=self._children.get(at, []),
            findings=self._findings_of.get(at, []),
            drift=self._drift_of.get(at),
            tokens=self.tokens(at) if tokens else None,
            attempts=[
                AttemptView(
                    started=unix(one.started_at), duration=one.duration, status=one.status, error=error_text(one.error)
                )
                for one in step.attempts
            ],
            error=error_text(step.error),
            token_issue=None if step.token_issue is None else f"{step.token_issue.code}: {step.token_issue.message}",
            exact_turn=None
            if step.exact_turn is None
            else step.exact_turn.sentence(self._index.get(step.exact_turn.step_id or "")),
            token_source=step.token_source,
            logprobs_mode=step.logprobs_mode,
            usage=usage,
            cost=None if step.cost is None else finite(step.cost.amount),
            currency=None if step.cost is None else step.cost.currency,
            sampling=plain(step.sampling),
            policy_version=None if step.policy_version is None else str(step.policy_version),
            advantage=finite(step.advantage),
            metadata=plain(step.metadata),
            engine=step.engine,
            protocol=step.protocol,
            response_model=step.response_model,
            response_id=step.response_id,
            stop_reason=None if step.stop_reason is None else str(step.stop_reason),
            offered=names_of_tools(step),
            has_bytes=step.request_bytes is not None or step.response_bytes is not None,
        )

    def _new_messages(self, at: int) -> list[Message]:
        step, link = self._steps[at], self._links[at]
        sent = list(step.messages or ())[link.repeated :]
        if link.repeated_text and sent and isinstance(sent[0], str):
            rest = sent[0][link.repeated_text :]
            return [Message(role="user", parts=[Part(kind="text", text=rest)])] if rest else []
        return shown_messages(step, sent)

    def _run(self, run: ToolRun) -> ToolRunView:
        shown = self._short_run(run)
        shown.arguments = None if run.arguments is None else text_of(run.arguments)
        shown.result = None if run.result is None else text_of(run.result)
        return shown

    def _short_run(self, run: ToolRun) -> ToolRunView:
        return ToolRunView(
            name=run.name,
            tool_call_id=run.tool_call_id,
            step=None if run.step_id is None else self._index.get(run.step_id),
            error=error_text(run.error),
            started=unix(run.started_at),
            duration=run.duration,
        )

    def _text(self, ids: Sequence[int]) -> str | None:
        return None if self._decode is None else "".join(self._decode.texts(list(ids)))

    def _source_of_texts(self) -> str | None:
        if any(step.token_texts is not None for step in self._steps):
            return "engine"
        return None if self._decode is None else "tokenizer"


_REASONING = ("reasoning_content", "reasoning", "thinking")
_MEDIA = {"image_url": "image", "input_audio": "audio", "file": "file"}
_SHOWN = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call", *_REASONING})


def shown_messages(step: Step, sent: Iterable[Any]) -> list[Message]:
    """Messages of a step's request, some or all of ``step.messages``, in their order."""
    return [message for group in grouped(step.protocol, sent) if group for message in _of_group(step.protocol, group)]


def shown_answer(step: Step) -> Message | None:
    """The completion of a step as a message; None where it has none."""
    report = ExportReport()
    message = answer(step, report=report)
    if message is None:
        return None
    shown = _of_chat(message)
    extra = None if step.completion is None else step.completion.extra
    if extra and any(what not in report.metadata for what in report.dropped):
        shown.parts.append(Part(kind="json", text=json_text(dict(extra))))
    return shown


def _of_group(protocol: str | None, group: tuple[Any, ...]) -> list[Message]:
    report = ExportReport()
    shown = [_of_chat(message) for message in convert(protocol, group, report)]
    if any(what not in report.metadata for what in report.dropped):
        # What has no place in a chat message: the whole of it, as it was sent.
        role = shown[-1].role if shown else _role(group)
        parts = [Part(kind="json", text=json_text(message)) for message in group]
        return [*shown, Message(role=role, parts=parts)]
    return shown


def _role(group: tuple[Any, ...]) -> str:
    role = group[0].get("role") if isinstance(group[0], dict) else None
    return role if isinstance(role, str) else "user"


def _of_chat(message: Any) -> Message:
    if not isinstance(message, dict):
        return Message(role="user", parts=[Part(kind="json", text=json_text(message))])
    role, name, call_id = message.get("role"), message.get("name"), message.get("tool_call_id")
    return Message(
        role=role if isinstance(role, str) else "user",
        parts=list(_parts(message)),
        name=name if isinstance(name, str) else None,
        tool_call_id=call_id if isinstance(call_id, str) else None,
    )


def _parts(message: dict[str, Any]) -> Iterator[Part]:
    reasoning = next((message[name] for name in _REASONING if message.get(name)), None)
    if reasoning is not None:
        yield Part(kind="reasoning", text=text_of(reasoning))
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        yield from _content(part)
    if message.get("refusal"):
        yield Part(kind="refusal", text=text_of(message["refusal"]))
    calls = message.get("tool_calls")
    older = message.get("function_call")
    for call in [*(calls if isinstance(calls, list) else []), *([] if older is None else [{"function": older}])]:
        yield _tool_call(call)
    others = {name: value for name, value in message.items() if name not in _SHOWN and value not in (None, [], {}, "")}
    if others:
        yield Part(kind="json", text=json_text(others))


def _content(part: Any) -> Iterator[Part]:
    if isinstance(part, str):
        if part:
            yield Part(kind="text", text=part)
    elif isinstance(part, dict):
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            yield Part(kind="text", text=part["text"])
        elif kind == "refusal":
            yield Part(kind="refusal", text=text_of(part.get("refusal")))
        elif isinstance(kind, str) and kind in _MEDIA:
            yield _media(kind, part)
        else:
            yield Part(kind="json", text=json_text(part))
    elif part is not None:
        yield Part(kind="json", text=json_text(part))


def _media(kind: str, part: dict[str, Any]) -> Part:
    inner = part.get(kind)
    if isinstance(inner, str):
        inner = {"url": inner}
    if not isinstance(inner, dict):
        return Part(kind="json", text=json_text(part))
    address = next((inner[name] for name in ("url", "data", "file_data", "file_id") if inner.get(name)), "")
    name = inner.get("filename") or inner.get("format")
    shown = Part(kind=_MEDIA[kind], text=text_of(address), name=name if isinstance(name, str) else None)  # type: ignore[arg-type]
    if shown.name is None and shown.text.startswith("data:"):
        shown.name = shown.text[5:].partition(";")[0].partition(",")[0] or None
    return shown


def _tool_call(call: Any) -> Part:
    inner = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
    if not isinstance(inner, dict):
        return Part(kind="tool_call", text=json_text(call))
    name, identity = inner.get("name"), call.get("id")
    return Part(
        kind="tool_call",
        text=text_of(inner.get("arguments", inner.get("input"))),
        name=name if isinstance(name, str) else None,
        id=identity if isinstance(identity, str) else None,
    )
