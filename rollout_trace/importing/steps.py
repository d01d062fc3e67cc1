"""Steps of an import: token arrays checked as those of the wire are, prompts that share what they repeat.

Requests and answers that a source keeps are decoded by the protocols of the wire.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, get_args

from rollout_trace.data.extras import PolicySpan, as_policy_spans
from rollout_trace.data.lists import ListSpan
from rollout_trace.data.model import (
    Attempt,
    Cost,
    LogprobsMode,
    Step,
    StepStatus,
    TokenIssue,
    TokenSource,
    ToolRun,
    Usage,
    amend,
)
from rollout_trace.data.tokens import TokenStore, readonly
from rollout_trace.file.decode import facts_of, run_of
from rollout_trace.file.plain import dumps
from rollout_trace.importing.fields import Fields
from rollout_trace.importing.imported import ImportReport
from rollout_trace.wire import align
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.steps import Stores, exchange_of

REBUILT = {"messages_source": "rebuilt"}
"""Metadata of steps whose messages were put together from a transcript, not taken from a request."""


def missing_ids(message: str) -> TokenIssue:
    """The issue of a step without ids."""
    return TokenIssue(code="ids_missing", message=message)


def token_fields(
    store: TokenStore,
    *,
    prompt: list[int] | None,
    completion: list[int] | None,
    logprobs: list[float | None] | None,
    missing: str,
    source: TokenSource = "engine",
    counted: int | None = None,
    issue: TokenIssue | None = None,
) -> dict[str, Any]:
    """The fields of a step that hold its tokens. Arrays that break a rule are withheld, with the issue of the wire.

    Args:
        store: of the trajectory.
        prompt: ids of the whole prompt; ``completion`` and ``logprobs`` are of the answer alone.
        missing: the message of the issue where there are no completion ids.
        counted: tokens of the completion by the engine's usage; None where it is not known, or is of several choices.
        issue: what the source itself holds against the ids, which then are kept as they are.
    """
    choice = ChoiceFacts(
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=logprobs,
        token_source=source if completion is not None else None,
        # NaN stands for a missing one in the arrays of a step; as a value of the source it is none.
        issue=issue,
    )
    align.check([choice], None if counted is None else Usage(output=counted))
    prompt_span, completion_span = store.add(choice.prompt_token_ids, choice.completion_token_ids)
    found = choice.issue
    if found is None and completion_span is None:
        found = missing_ids(missing)
    return {
        "prompt_token_ids": prompt_span,
        "completion_token_ids": completion_span,
        "logprobs": None if choice.logprobs is None else readonly(choice.logprobs),
        "token_source": None if completion_span is None else source,
        "token_issue": found,
    }


def logprob_of(row: Fields) -> float | None:
    """The logprob of a token, as OpenAI writes it. NaN and infinities are for the rules of logprobs."""
    value = row.get("logprob")
    return value if isinstance(value, float) else row.number("logprob")


class SharedStores(Stores):
    """Storage of one trajectory, for messages that every call of a source repeats."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[bytes, Any] = {}

    def add_messages(self, messages: list[Any]) -> ListSpan:
        """Stores the messages of a prompt, equal ones as one object."""
        # By digest: the texts too would double the memory of each message.
        keys = [blake2b(dumps(one), digest_size=16).digest() for one in messages]
        return self.messages.add_items([self._known.setdefault(*pair) for pair in zip(keys, messages, strict=True)])


def number(steps: list[Step], report: ImportReport) -> None:
    """Sets the positions of the steps of a trajectory, and counts what of their tokens the source does not have."""
    for at, step in enumerate(steps):
        amend(step, index=at)
        report.miss_tokens(step.completion_token_ids, step.logprobs)


class Thread:
    """A conversation that grows: the messages of each prompt are the first of one list."""

    def __init__(self, items: list[Any] | None = None) -> None:
        self.items: list[Any] = [] if items is None else items

    def add(self, *messages: Any) -> None:
        """Appends messages."""
        self.items.extend(messages)

    def span(self) -> ListSpan:
        """The messages so far, for a step: later ones do not show in it."""
        return ListSpan(self.items, len(self.items))

    def fork(self, length: int | None = None) -> Thread:
        """A conversation that begins with the first ``length`` messages of this one."""
        return Thread(self.items[:length])

    def end(self, time: datetime | None = None) -> Point:
        """The place behind the messages so far."""
        return Point(self, len(self.items), time)


@dataclass(slots=True)
class Point:
    """A place in a conversation: messages may follow it."""

    thread: Thread
    length: int
    time: datetime | None = None

    def branch(self) -> Thread:
        """Returns a conversation that continues here; a copy if another one already does."""
        return self.thread if len(self.thread.items) == self.length else self.thread.fork(self.length)


def policy_version(fields: Fields, name: str) -> str | int | None:
    """A version of the weights: a number, or a text."""
    if isinstance(fields.get(name), str):
        return fields.text(name)
    return fields.count(name)


_STATUSES = frozenset(get_args(StepStatus))
_SOURCES = frozenset(get_args(TokenSource))
_MODES = frozenset(get_args(LogprobsMode))


def status_of(text: str | None) -> StepStatus:
    """A status of a step as our exports write it; ``ok`` for any other text."""
    return text if text in _STATUSES else "ok"  # type: ignore[return-value]


def mode_of(text: str | None) -> LogprobsMode | None:
    """Returns the mode of logprobs as our exports write it; None for any other text."""
    return text if text in _MODES else None  # type: ignore[return-value]


def exported_facts(fields: Fields, own: str, made: str, ids: set[str]) -> dict[str, Any]:
    """The fields of a step that our exports of documents keep beside what the format has.

    ``own`` is the field with the step's id, ``made`` its id without one; it is added to the ``ids`` of the document.
    """
    name = fields.name(own)
    name = name if name is not None and name not in ids else made
    ids.add(name)
    facts: dict[str, Any] = {"id": name, "call_id": name, "token_source": None, "metadata": dict(REBUILT)}
    if not fields:
        return facts
    source = fields.text("token_source")
    return {
        **facts,
        "call_id": fields.name("call_id") or name,
        "status": status_of(fields.text("status")),
        "trainable": fields.flag("trainable") is not False,
        "reward": fields.number("reward"),
        "policy_version": policy_version(fields, "policy_version"),
        "policy_spans": _policy_spans(fields),
        "token_source": source if source in _SOURCES else None,
        "metadata": {**fields.mapping("metadata"), **REBUILT},
        "finish_reason": fields.text("finish_reason"),
    }


def _policy_spans(fields: Fields) -> tuple[PolicySpan, ...] | None:
    rows = fields.items("policy_spans")
    try:
        return as_policy_spans(rows) if rows else None
    except ValueError:
        fields.wrong("policy_spans", "a list of [begin, end, version]")
        return None


def advantages(fields: Fields, name: str) -> Any:
    """Advantages of tokens, a list; None where one is no finite number."""
    values = fields.numbers(name)
    return values if values and all(one is not None and math.isfinite(one) for one in values) else None


def recorded_facts(fields: Fields) -> dict[str, Any]:
    """The fields of a step that our own exports keep under ``recorded``; empty for documents of others."""
    record = fields.object("recorded")
    try:
        return facts_of(record.values) if record else {}
    except ValueError as error:
        fields.wrong("recorded", f"facts of a step as our exports write them ({error})")
        return {}


def recorded_run(fields: Fields, result: Any) -> ToolRun | None:
    """The tool run that our own exports keep under ``recorded``; None in documents of others."""
    record = fields.object("recorded")
    try:
        return run_of(record.values, result) if record else None
    except ValueError as error:
        fields.wrong("recorded", f"a tool run as our exports write it ({error})")
        return None


def usd(amount: float | None) -> Cost | None:
    """A cost in US dollars, as the source gives it."""
    return None if amount is None else Cost(amount=amount, source="unknown")


def protocol_of(request: Any, response: Any) -> str:
    """The protocol of a request and its answer, by the names that they have."""
    body = request if isinstance(request, dict) else {}
    answer = response if isinstance(response, dict) else {}
    if answer.get("object") == "response" or ("input" in body and "messages" not in body):
        return "openai.responses"
    if answer.get("type") == "message" or isinstance(answer.get("content"), list):
        return "anthropic.messages"
    if "prompt" in body and "messages" not in body:
        return "openai.completions"
    return "openai.chat"


def exchange_steps(
    stores: Stores,
    call_id: str,
    protocol: str,
    request: Any,
    response: Any,
    *,
    status: int = 200,
    started_at: datetime | None = None,
    latency: float | None = None,
) -> list[Step]:
    """The steps of one exchange, one for each choice. ``response``: an answer, or the list of a stream's chunks."""
    if isinstance(response, list):
        body = b"".join(b"data: " + dumps(chunk) + b"\n\n" for chunk in response) + b"data: [DONE]\n\n"
        request = {**request, "stream": True} if isinstance(request, dict) else request
    else:
        body = dumps(response)
        # The answer of a stream was put together by the source: it is no stream any more.
        request = {**request, "stream": False} if isinstance(request, dict) else request
    steps, _ = exchange_of(
        call_id,
        protocol,
        dumps(request) if isinstance(request, dict) else None,
        body,
        content_type="text/event-stream" if isinstance(response, list) else "application/json",
        status=status,
        stores=stores,
    )
    attempt = Attempt(started_at=started_at, duration=latency, status=status)
    for step in steps:
        amend(step, started_at=started_at, latency=latency, attempts=(attempt,))
    return steps
