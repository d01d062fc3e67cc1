"""Copies of records with their texts changed. No copy keeps token ids of a text that was changed.

Everything that does not change is shared with the original: objects, lists of messages, token segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rollout_trace.data.extras import EXTRAS, ExtraIssue, JSONText
from rollout_trace.data.lists import FrozenList, ListSpan, TableSpan
from rollout_trace.data.model import Attempt, Step, Task, TokenIssue, ToolRun, new_step, shared
from rollout_trace.data.texts import Change, change_completion, change_error, change_value
from rollout_trace.data.token_texts import PackedTexts
from rollout_trace.data.tokens import as_int32
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, Trajectory, new_trajectory

COMPLETION_CHANGED = TokenIssue(
    code="redacted", message="text of the completion was redacted: its token ids, which would spell it, were removed."
)
PROMPT_CHANGED = TokenIssue(
    code="redacted",
    message="text of the prompt was redacted: the token ids, which would spell it, were removed.",
)
NO_TOKENS: Mapping[str, Any] = {
    "prompt_token_ids": None,
    "completion_token_ids": None,
    "logprobs": None,
    "top_logprobs": None,
    "token_texts": None,
    **dict.fromkeys(EXTRAS),
    "token_source": None,
    "logprobs_mode": None,
    "request_bytes": None,
    "response_bytes": None,
    "trainable": False,
}
"""The fields that a redacted step loses. The bodies hold texts and ids alike, and the alternatives their texts."""


def redacted_steps(steps: Iterable[Step], change: Change) -> list[Step]:
    """The steps of one trajectory with their texts changed; a step in which nothing changes is the same object.

    A step whose prompt or completion changes loses its token ids, logprobs, extras, lists in ``extra``, and bodies, is
    not trainable, and has the ``token_issue`` ``redacted``. So does a later step whose prompt ids repeat those of a
    completion that changed.
    """
    redaction = StepRedaction(change)
    return [redaction.step(step) for step in steps]


def redacted(trajectory: Trajectory, change: Change) -> Trajectory:
    """The trajectory with its texts changed as in ``redacted_steps``; itself if nothing changes.

    Changed are messages, tools, sampling values, completions, errors, tool runs, task data and metadata. Names, models,
    ids, and the numbers and times of the recorder are not: records are joined by them.
    """
    values: dict[str, Any] = {
        "steps": _same_or(trajectory.steps, redacted_steps(trajectory.steps, change)),
        "tool_runs": _same_or(
            trajectory.tool_runs, [_tool_run(run, at, change) for at, run in enumerate(trajectory.tool_runs)]
        ),
        "error": change_error(trajectory.error, "error", change),
        "stop_reason": change_value(trajectory.stop_reason, "stop_reason", change),
        "task": _task(trajectory.task, change),
        "environment": change_value(trajectory.environment, "environment", change),
        "metadata": change_value(trajectory.metadata, "metadata", change, numbers=True),
    }
    if all(value is getattr(trajectory, name) for name, value in values.items()):
        return trajectory
    return new_trajectory({**{name: getattr(trajectory, name) for name in TRAJECTORY_FIELDS}, **values})


def _same_or(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(map(lambda one, other: one is other, old, new)) else new


def _task(task: Task | None, change: Change) -> Task | None:
    if task is None:
        return None
    data = change_value(task.data, "task.data", change, numbers=True)
    return task if data is task.data else replace(task, data=data)


def _tool_run(run: ToolRun, at: int, change: Change) -> ToolRun:
    place = f"tool_runs[{at}]"
    values: dict[str, Any] = {
        name: change_value(getattr(run, name), f"{place}.{name}", change, numbers=True)
        for name in ("arguments", "result")
    }
    values["error"] = change_error(run.error, f"{place}.error", change)
    return run if all(value is getattr(run, name) for name, value in values.items()) else replace(run, **values)


class StepRedaction:
    """One pass over the steps of one trajectory, in their order. They share messages: each is changed once."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._lists: dict[int, _List] = {}
        self._known: dict[int, tuple[Any, Any]] = {}
        self._gone: list[bytes] = []
        """Token ids of completions that were changed, newest last."""

    def step(self, step: Step) -> Step:
        """The next step, as ``redacted_steps`` changes it."""
        change = self._change
        prompt = {
            "messages": self._items(shared(step, "messages"), "messages"),
            "tools": self._items(shared(step, "tools"), "tools"),
            "sampling": change_value(step.sampling, "sampling", change),
        }
        completion = {
            "completion": change_completion(step.completion, change, numbers=True),
            "stop_reason": change_value(step.stop_reason, "stop_reason", change),
            "token_texts": self._token_texts(step),
        }
        other = {
            "error": change_error(step.error, "error", change),
            "attempts": _attempts(step.attempts, change),
            "metadata": change_value(step.metadata, "metadata", change, numbers=True),
            "token_issue": _issue(step.token_issue, change),
            "usage": step.usage if step.usage is None else _usage(step.usage, change),
            **self._alternatives(step),
            "extra_issues": _extra_issues(step.extra_issues, change),
            "extra": change_value(step.extra, "extra", change),
            "request_bytes": self._body(step.request_bytes, "request_bytes"),
            "response_bytes": self._body(step.response_bytes, "response_bytes"),
        }
        values = {**prompt, **completion, **other}
        changed = {name: value for name, value in values.items() if value is not shared_or_own(step, name)}
        issue = self._issue_of(step, changed.keys() & prompt.keys(), changed.keys() & completion.keys())
        if issue is not None:
            changed |= {**NO_TOKENS, "token_issue": issue, **_without_ids(step, changed)}
        return new_step({**step.__getstate__(), **changed}) if changed else step

    def _issue_of(self, step: Step, in_prompt: Iterable[str], in_completion: Iterable[str]) -> TokenIssue | None:
        if in_completion:
            ids = step.completion_token_ids
            if ids is not None and len(ids):
                self._gone.append(ids.tobytes())
            return COMPLETION_CHANGED
        # Of a prompt that was sent as ids, or that goes on from an answer that the server keeps, there is no text.
        is_repeated = self._gone and any(repeats(ids, self._gone) for ids in (step.prompt_token_ids, *_sent_ids(step)))
        return PROMPT_CHANGED if in_prompt or is_repeated else None

    def _items(self, values: Any, place: str) -> Any:
        """A list of messages or tools with its items changed; the same object where none is."""
        if values is None:
            return None
        items = values.items if isinstance(values, ListSpan) else values
        known = self._lists.get(id(items))
        if known is None:
            known = self._lists[id(items)] = _List(items, place, self._change, self._known)
        if isinstance(values, TableSpan):
            known.change_to(len(items))
            return TableSpan(known.new, values.runs) if known.differs_in(values.runs) else values
        length = values.length if isinstance(values, ListSpan) else len(items)
        known.change_to(length)
        if not known.differs_in(((0, length),)):
            return values
        return ListSpan(known.new, length) if isinstance(values, ListSpan) else FrozenList(known.new)

    def _alternatives(self, step: Step) -> dict[str, Any]:
        """The alternatives to the tokens; None where one of them would change: they are not texts to be mended.

        Their ids too, which stand for the same texts.
        """
        top_logprobs = shared(step, "top_logprobs")
        # The same few words come again and again, and all have one place.
        known: dict[str, str] = {}

        def change(text: str, _: str) -> str:
            if text not in known:
                known[text] = self._change(text, "top_logprobs")
            return known[text]

        values = top_logprobs.items() if isinstance(top_logprobs, JSONText) else top_logprobs or ()
        if all(change_value(one, "", change) is one for one in values):
            return {"top_logprobs": top_logprobs}
        return {"top_logprobs": None, "top_tokens": None}

    def _token_texts(self, step: Step) -> PackedTexts | None:
        """The texts of the tokens; None where the text that they make would change."""
        texts: PackedTexts | None = shared(step, "token_texts")
        whole = None if texts is None else texts.joined()
        return texts if whole is None or self._change(whole, "token_texts") == whole else None

    def _body(self, body: bytes | None, place: str) -> bytes | None:
        """The body; None where its text would change: ids of that text may stand beside it."""
        if body is None:
            return None
        text = body.decode("utf-8", "surrogateescape")
        return body if self._change(text, place) == text else None


class _List:
    """A list that steps share, and its changed copy, as far as steps have needed it."""

    __slots__ = ("_change", "_differing", "_known", "_place", "items", "new")

    def __init__(self, items: Any, place: str, change: Change, known: dict[int, tuple[Any, Any]]) -> None:
        """``known``: the objects that other lists hold too, by ``id``, each with what became of it."""
        self.items = items  # Referenced: no other list can get its id.
        self.new: list[Any] = []
        self._differing: list[int] = []
        """Positions of the items that change, in order."""
        self._place = place
        self._change = change
        self._known = known

    def change_to(self, length: int) -> None:
        for at in range(len(self.new), length):
            item = self.items[at]
            known = self._known.get(id(item))
            changed = self._changed(item, at) if known is None else known[1]
            if changed is not item:
                self._differing.append(at)
            self.new.append(changed)

    def _changed(self, item: Any, at: int) -> Any:
        numbers = self._place == "messages" and not _is_ids(item)
        changed = change_value(item, f"{self._place}[{at}]", self._change, numbers=numbers)
        if isinstance(item, dict):
            # With the object: while it is referenced, no other has its id.
            self._known[id(item)] = item, changed
        return changed

    def differs_in(self, runs: Iterable[tuple[int, int]]) -> bool:
        found = self._differing
        return bool(found) and any(
            (at := bisect_left(found, first)) < len(found) and found[at] < end for first, end in runs
        )


_ID_FIELDS = ("input_ids", "token_ids")


def _sent_ids(step: Step) -> list[Any]:
    """The ids of a prompt that was sent as ids, where the engine's own do not stand for them."""
    lists = [step.sampling[name] for name in _ID_FIELDS if name in step.sampling] if step.sampling else []
    if step.messages and _is_ids(step.messages[0]):
        lists += step.messages if isinstance(step.messages[0], list) else [step.messages]
    return [ids for ids in map(_as_ids, lists) if ids is not None]


def _as_ids(values: Any) -> Any:
    try:
        return as_int32(values)
    except (ValueError, TypeError, OverflowError):
        return None


def _without_ids(step: Step, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a redacted step that held ids or tokens of its text."""
    fields: dict[str, Any] = {}
    extra = changed.get("extra", step.extra)
    if isinstance(extra, Mapping):
        # Lists may hold the text token by token, in which no rule finds it.
        kept = {name: value for name, value in extra.items() if not _holds_list(value)}
        fields["extra"] = extra if len(kept) == len(extra) else kept or None
    sampling = changed.get("sampling", step.sampling)
    if sampling and not sampling.keys().isdisjoint(_ID_FIELDS):
        fields["sampling"] = {name: value for name, value in sampling.items() if name not in _ID_FIELDS}
    if step.messages and _is_ids(step.messages[0]):
        fields["messages"] = None
    return fields


def _holds_list(value: Any) -> bool:
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            parts += part.values()
        elif not isinstance(part, (str, int, float, bool, type(None))):
            return True
    return False


def _is_ids(item: Any) -> bool:
    """Whether an item of a prompt is token ids, or one of them: numbers that are no text."""
    return isinstance(item, int) or (isinstance(item, list) and bool(item) and isinstance(item[0], int))


def repeats(prompt: Any, gone: list[bytes]) -> bool:
    """Whether prompt ids hold the ids of one of these completions."""
    if prompt is None or not gone:
        return False
    data = prompt.tobytes()
    return any(_aligned(data, ids) for ids in reversed(gone))


def _aligned(data: bytes, ids: bytes) -> bool:
    at = data.find(ids)
    while at % 4 and at != -1:
        at = data.find(ids, at + 1)
    return at != -1


def shared_or_own(step: Step, name: str) -> Any:
    """The value of a field as it is stored."""
    return shared(step, name) if name in ("messages", "tools", "top_logprobs", "token_texts") else getattr(step, name)


def _attempts(attempts: tuple[Attempt, ...], change: Change) -> tuple[Attempt, ...]:
    new = tuple(_attempt(one, f"attempts[{at}]", change) for at, one in enumerate(attempts))
    return attempts if all(one is other for one, other in zip(new, attempts, strict=True)) else new


def _attempt(attempt: Attempt, place: str, change: Change) -> Attempt:
    error = change_error(attempt.error, f"{place}.error", change)
    request_id = change_value(attempt.request_id, f"{place}.request_id", change)
    if error is attempt.error and request_id is attempt.request_id:
        return attempt
    return replace(attempt, error=error, request_id=request_id)


def _issue(issue: TokenIssue | None, change: Change) -> TokenIssue | None:
    if issue is None:
        return None
    message = change_value(issue.message, "token_issue.message", change)
    return issue if message is issue.message else replace(issue, message=message)


def _extra_issues(issues: tuple[ExtraIssue, ...], change: Change) -> tuple[ExtraIssue, ...]:
    messages = [change_value(one.message, f"extra_issues[{at}].message", change) for at, one in enumerate(issues)]
    if all(message is one.message for message, one in zip(messages, issues, strict=True)):
        return issues
    return tuple(replace(one, message=message) for message, one in zip(messages, issues, strict=True))


def _usage(usage: Any, change: Change) -> Any:
    extra = change_value(usage.extra, "usage.extra", change)
    return usage if extra is usage.extra else replace(usage, extra=extra)
