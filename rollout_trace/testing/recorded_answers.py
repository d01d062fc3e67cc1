"""The answers that a recorded trajectory has, to be given again: their bytes where they were kept, else equal ones."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rollout_trace._python import cached_property
from rollout_trace.clients.loopback.messages import SECRET_HEADER, RequestRecord, Response, refusal
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import Step
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief
from rollout_trace.wire import PROTOCOLS, decode
from rollout_trace.wire.chat_messages import joined_texts
from rollout_trace.wire.protocols import model_in_path, record_of

from ._api import Api, Ask, Turn
from ._normal_form import compared_body, without_capture_fields
from ._sampling import Completion, Sampler
from .replay import response_of
from .script import Answer, Fault, Reply, ToolCall
from .scripted import ScriptedServer

ANSWER_HEADER = "x-rollout-trace-answer"
"""Header of a request that is answered from the recording: the number of the recorded call, or ``refused``."""
REFUSED = "refused"


@dataclass(frozen=True)
class RecordedAnswer:
    """One recorded call."""

    protocol: str
    steps: Sequence[Step]
    """One for each choice."""
    exchange: Exchange | None
    """Its bytes; None where they were not kept."""

    @cached_property
    def asked(self) -> dict[str, Any]:
        """Returns the recorded request in the form used for comparison."""
        return asked_form(self.protocol, self.steps[0])


def answers_of(trajectory: Trajectory, count: int | None) -> list[RecordedAnswer]:
    """The calls of a trajectory in the order in which they began; the first ``count`` (None: all) can be answered.

    Raises ValueError where there are fewer, or one of those has no answer that can be given again.
    """
    calls: dict[str, list[Step]] = {}
    for step in trajectory.steps:
        calls.setdefault(step.call_id, []).append(step)
    if count is None:
        count = len(calls)
    elif not 0 < count <= len(calls):
        raise ValueError(
            f"step={count}: trajectory {brief(trajectory.id)} has {len(calls)} model calls. Give how many of them the "
            f"recording answers, from 1 to {len(calls)}."
        )
    kept = {one.call_id: one for one in trajectory.exchanges if one.protocol is not None and one.status is not None}
    found = []
    for at, (call_id, steps) in enumerate(calls.items()):
        exchange = kept.get(call_id) or _kept_bytes(steps[0])
        problem = _problem(steps[0], exchange) if at < count else None
        if problem is not None:
            raise ValueError(f"the recording cannot answer step {brief(steps[0].id)}: it {problem}.")
        found.append(RecordedAnswer(steps[0].protocol or "", steps, exchange))
    return found


def _problem(step: Step, exchange: Exchange | None) -> str | None:
    """Why a call cannot be answered again; None where it can."""
    if step.protocol not in PROTOCOLS or not record_of(step.protocol).paths:
        return f"has the protocol {step.protocol!r}: only calls over HTTP can be answered"
    completion = step.completion
    if exchange is not None:
        return None
    if completion is None:
        return None if step.error is not None else f"has no answer ({step.status}): fork before it"
    is_signed = step.protocol == "anthropic.messages" and bool(completion.reasoning)
    lost = "a refusal" if completion.refusal else "reasoning with a signature" if is_signed else None
    return None if lost is None else f"has {lost}, which its bytes alone hold: record with keep_bytes=True"


def _kept_bytes(step: Step) -> Exchange | None:
    if step.response_bytes is None or step.request_bytes is None:
        return None
    last = step.attempts[-1] if step.attempts else None
    content_type = None if last is None else last.content_type
    return Exchange(
        name=step.call_id,
        method="POST",
        path="/",
        request=step.request_bytes,
        status=200 if last is None or last.status is None else last.status,
        headers=(("content-type", content_type or "application/json"),),
        response=step.response_bytes,
        chunk_sizes=(len(step.response_bytes),),
        protocol=step.protocol,
        call_id=step.call_id,
    )


def asked_form(protocol: str, step: Step) -> dict[str, Any]:
    """Returns a step's request in the form used for comparison, without the fields that a recorder adds."""
    body = {record_of(protocol).request.messages: list(step.messages or ()), **(step.sampling or {})}
    body |= {"tools": list(step.tools)} if step.tools else {}
    return {"model": step.model, **compared_body(protocol, body)}


def asked_now(protocol: str, path: str, body: bytes) -> dict[str, Any]:
    """Returns a request in that form."""
    (step, *_) = decode(protocol, body, b"", model=model_in_path(protocol, path))
    return asked_form(protocol, step)


class AnswerServer(ScriptedServer):
    """Gives recorded answers again. Which one, the header ``x-rollout-trace-answer`` of a request says."""

    keeps_requests = False

    def __init__(self, answers: Sequence[RecordedAnswer]) -> None:
        super().__init__(self._reply)
        self._answers = answers
        self._secret = secrets.token_urlsafe(32)
        self._sampler = _WholeAnswers(self.tokenizer, 0)
        self.difference = ""
        """Why a request is refused."""

    def headers(self, number: int | str) -> dict[str, str]:
        """The headers of a request that this answer, or ``refused``, is given to."""
        return {ANSWER_HEADER: str(number), SECRET_HEADER: self._secret}

    def _refusal_of_head(self, record: RequestRecord) -> Response | None:
        # Not by its host, which is that of the model. No page knows the secret.
        given = record.headers.get(SECRET_HEADER, "").encode("utf-8", "replace")
        is_ours = secrets.compare_digest(given, self._secret.encode())
        return None if is_ours else refusal("not_found", "There is nothing here.")

    def answer(self, record: RequestRecord) -> Response:
        """Answer one request (called by the server)."""
        number = record.headers[ANSWER_HEADER]
        if number == REFUSED:
            return refusal("not_recorded", " ".join(self.difference.split()))
        exchange = self._answers[int(number)].exchange
        if exchange is not None and _is_streamed(exchange) == self._asks_for_stream(record):
            return response_of(exchange)
        # Made anew: ids would be those of this server's tokenizer, and none are given.
        record.body = json.dumps(without_capture_fields(json.loads(record.body))).encode()
        return super().answer(record)

    def _asks_for_stream(self, record: RequestRecord) -> bool:
        api = self._api_of(record)
        request = {} if api is None else self._parse(record, api.path_model(record.path))
        return api is not None and api.is_stream(Ask(record, request, self.tokenizer))

    def _reply(self, request: Mapping[str, Any], choice: int, *, record: RequestRecord) -> Answer:
        steps = self._of(record).steps
        step = steps[min(choice, len(steps) - 1)]
        completion, error = step.completion, step.error
        if completion is None:
            message = "the recorded call failed" if error is None else error.message
            facts = {} if error is None else {"type": error.type, "code": error.code}
            return Fault(status=(error and error.status) or 500, body={"error": {"message": message, **facts}})
        calls = [ToolCall(call.name or "", call.arguments or "{}") for call in completion.tool_calls]
        text = joined_texts(completion.content)
        # Parts without text are no text; an answer of an empty one is answered so again.
        text = text if isinstance(completion.content, str) else text or None
        return Reply(text, calls, completion.reasoning, finish_reason=step.finish_reason)

    def _of(self, record: RequestRecord) -> RecordedAnswer:
        return self._answers[int(record.headers[ANSWER_HEADER])]

    def _turn(self, api: Api, ask: Ask, prompt: Sequence[int]) -> Turn:
        made = super()._turn(api, ask, prompt)
        completions = [step.completion for step in self._of(ask.record).steps]
        ids = [() if one is None else tuple(call.id for call in one.tool_calls) for one in completions]
        facts = {one.name: getattr(made, one.name) for one in fields(Turn)}
        return _SameIds(**facts, ids=ids, response_id=self._of(ask.record).steps[0].response_id)


@dataclass(frozen=True)
class _SameIds(Turn):
    """An answer that has, as its tool calls have, the id that was recorded."""

    ids: Sequence[Sequence[str | None]] = field(default=(), kw_only=True)
    response_id: str | None = field(default=None, kw_only=True)

    @cached_property
    def id(self) -> str:
        return self.response_id or super().id

    def call_id(self, choice: int, call: int) -> str:
        known = self.ids[choice][call] if choice < len(self.ids) and call < len(self.ids[choice]) else None
        return super().call_id(choice, call) if known is None else known


class _WholeAnswers(Sampler):
    """Does not cut: the model did, if it did."""

    def sample(self, reply: Reply, prompt: Sequence[int], request: Mapping[str, Any]) -> Completion:
        return super().sample(reply, prompt, {})


def _is_streamed(exchange: Exchange) -> bool:
    kind = exchange.content_type
    return "event-stream" in kind or "ndjson" in kind or exchange.response[:1] == b"["
