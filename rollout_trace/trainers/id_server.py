"""A chat endpoint on 127.0.0.1 for an agent's own client, in front of a policy that takes and returns ids."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, Protocol

from rollout_trace.clients.loopback.messages import ConnectionCut, RequestRecord, Response, json_bytes, json_response
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.clients.loopback.watched import is_closed
from rollout_trace.guard import describe
from rollout_trace.local_requests import why_foreign

SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
     "presence_penalty", "frequency_penalty", "repetition_penalty"}
)  # fmt: skip
"""Request fields that are sampling parameters of the engines."""
_TAKEN = SAMPLING | {
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "max_completion_tokens", "n",
    "stream", "stream_options", "logprobs", "return_token_ids", "return_weight_versions", "kv_transfer_params", "user",
    "metadata", "store", "chat_template_kwargs",
}  # fmt: skip
_CHAT, _TOKENIZE = "v1/chat/completions", "tokenize"
_LOOK = 0.2
"""Seconds between two looks whether an answer that is being sampled is still waited for."""


class Answer(NamedTuple):
    """An answer sampled by the policy."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None
    """One logprob for each id; None if they were not requested."""
    message: Mapping[str, Any]
    """The message: ``content``, and ``tool_calls`` if there are any."""
    finish_reason: str
    version: int | str | None = None
    experts: Any = None
    """Experts of prompt and answer [positions, layers, k], as lists."""


class Policy(Protocol):
    """The policy of one run."""

    def render(self, request: Mapping[str, Any], *, is_open: bool) -> list[int]:
        """Returns the ids of a request's messages; with ``is_open``, followed by the beginning of an answer."""

    def sample(self, request: Mapping[str, Any], prompt: list[int]) -> Future[Answer]:
        """Starts sampling an answer. Raises ValueError if the request cannot be served."""


class IdServer(LoopbackServer):
    """Answers ``/RUN/v1/chat/completions`` and ``/RUN/tokenize`` as vLLM does, each run by its own policy.

    ``policy_of`` returns that of a run by its secret name, or None. ``close`` waits for answers in flight: do not call
    it in an event loop in which a policy samples.
    """

    keeps_requests = False

    def __init__(self, policy_of: Callable[[str], Policy | None]) -> None:
        super().__init__()
        self._policy_of = policy_of

    def respond(self, record: RequestRecord) -> Response:
        """Returns the answer to a request, or an error of our own, which clients do not retry."""
        try:
            return self.answer(record)
        except ConnectionCut:
            raise
        except Exception as error:
            return _refused(400, str(error) if isinstance(error, ValueError) else describe(error))

    def _refusal_of_head(self, record: RequestRecord) -> Response | None:
        why = why_foreign(record.header_lines, int(self.url.rpartition(":")[2]))
        return None if why is None else _refused(403, why)

    def answer(self, record: RequestRecord) -> Response:
        """Answers one request (called by the server)."""
        run, _, path = record.path[1:].partition("/")
        policy = self._policy_of(run)
        if policy is None or path not in (_CHAT, _TOKENIZE):
            return _refused(404, "There is nothing here: the run has ended, or the address is wrong.")
        request = json.loads(record.body)
        if path == _TOKENIZE:
            tokens = policy.render(request, is_open=request.get("add_generation_prompt", True))
            return json_response(200, {"count": len(tokens), "tokens": tokens})
        _check(request)
        prompt = (request.get("kv_transfer_params") or {}).get("prompt_token_ids")
        prompt = policy.render(request, is_open=True) if prompt is None else prompt
        answers = []
        for at in range(request.get("n") or 1):
            # As vLLM has it: with one seed for all, the answers would be the same.
            own = {} if request.get("seed") is None else {"seed": request["seed"] + at}
            answers.append(self._waited(policy.sample({**request, **own}, list(prompt)), record, run))
        if not request.get("stream"):
            return json_response(200, _whole(request, prompt, answers))
        events = [b"data: %b\n\n" % json_bytes(event) for event in _events(request, prompt, answers)]
        return Response(200, [("content-type", "text/event-stream")], [*events, b"data: [DONE]\n\n"], chunked=True)

    def _waited(self, sampled: Future[Answer], record: RequestRecord, run: str) -> Answer:
        """The answer, which is sampled no further where its client has gone, its run has ended or the server closes."""
        while not wait((sampled,), _LOOK).done:
            is_left = record.socket is None or is_closed(record.socket, 0)
            if is_left or self.closing.is_set() or self._policy_of(run) is None:
                sampled.cancel()
                raise ConnectionCut
        return sampled.result()


def _check(request: Mapping[str, Any]) -> None:
    others = sorted(name for name, value in request.items() if value is not None and name not in _TAKEN)
    if others:
        raise ValueError(f"the trainer's policy takes no {', '.join(others)}.")
    if request.get("tool_choice") not in (None, "auto", "none"):
        raise ValueError("the trainer's policy cannot be made to call a tool. Give tool_choice='auto' or 'none'.")


def _refused(status: int, message: str) -> Response:
    return json_response(status, {"error": {"message": message, "type": "rollout_trace", "code": status}})


def _body(request: Mapping[str, Any], kind: str) -> dict[str, Any]:
    made = {"object": kind, "created": int(time.time()), "model": request.get("model")}
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", **made}


def _whole(request: Mapping[str, Any], prompt: Sequence[int], answers: Sequence[Answer]) -> dict[str, Any]:
    choices = [
        {"index": at, "message": {"role": "assistant", **one.message}, **_tokens(request, one)}
        for at, one in enumerate(answers)
    ]
    ids = {"prompt_token_ids": prompt} if request.get("return_token_ids") else {}
    return {**_body(request, "chat.completion"), "choices": choices, "usage": _usage(prompt, answers), **ids}


def _events(request: Mapping[str, Any], prompt: Sequence[int], answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer. An answer is in one of them: the policy gives it whole."""
    body = _body(request, "chat.completion.chunk")
    ids = {"prompt_token_ids": prompt} if request.get("return_token_ids") else {}
    for at, one in enumerate(answers):
        delta = {"role": "assistant", "content": ""}
        yield {**body, "choices": [{"index": at, "delta": delta, "finish_reason": None}], **ids}
        calls = one.message.get("tool_calls")
        numbered = {"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]} if calls else {}
        yield {**body, "choices": [{"index": at, "delta": {**one.message, **numbered}, **_tokens(request, one)}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**body, "choices": [], "usage": _usage(prompt, answers)}


def _tokens(request: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Returns what a choice has besides its message."""
    found: dict[str, Any] = {"finish_reason": answer.finish_reason, "logprobs": None}
    if request.get("logprobs") and answer.logprobs is not None:
        named = zip(answer.ids, answer.logprobs, strict=True)
        found["logprobs"] = {
            "content": [
                {"token": f"token_id:{one}", "logprob": value, "bytes": None, "top_logprobs": []}
                for one, value in named
            ]
        }
    if request.get("return_token_ids"):
        found["token_ids"] = list(answer.ids)
    if request.get("return_weight_versions") and answer.version is not None and answer.ids:
        found["weight_versions"] = [{"version": answer.version, "start": 0, "end": len(answer.ids)}]
    if answer.experts is not None:
        found["routed_experts"] = answer.experts
    return found


def _usage(prompt: Sequence[int], answers: Sequence[Answer]) -> dict[str, int]:
    sampled = sum(len(one.ids) for one in answers)
    return {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
