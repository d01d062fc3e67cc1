"""The Responses API of the scripted server: its input as chat messages, its answers, and those that it stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_bytes, json_response

from ._api import Api, Ask, BadRequest, Row, Turn, chat_messages
from ._delivery import Delivery, vllm_error
from ._sampling import Completion, Token, text_in
from .tokenizer import PartKind

_Json = dict[str, Any]


def responses_object(turn: Turn, completion: Completion) -> _Json:
    """The body of an unstreamed answer."""
    incomplete = completion.finish_reason == "length"
    shown = {}
    if turn.request.get("enable_response_messages"):
        # The parts of the prompt and of the answer as the model had them.
        parts = (("input_messages", turn.prompt_ids), ("output_messages", completion.ids))
        shown = {name: [_raw(turn, ids)] for name, ids in parts}
    counts = turn.usage([completion])
    return _head(turn) | {
        "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
        "output": list(_output(turn, completion)),
        "status": "incomplete" if incomplete else "completed",
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        },
        **shown,
    }


def _raw(turn: Turn, ids: Sequence[int]) -> _Json:
    return {"message": turn.tokenizer.decode(ids), "tokens": list(ids), "type": "raw_message_tokens"}


def _head(turn: Turn) -> _Json:
    """A response that has just begun."""
    return {
        "id": turn.id,
        "created_at": turn.created,
        "error": None,
        "incomplete_details": None,
        "instructions": turn.request.get("instructions"),
        "metadata": turn.request.get("metadata"),
        "model": turn.model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": turn.request.get("temperature", 1.0),
        "tool_choice": turn.request.get("tool_choice", "auto"),
        "tools": turn.request.get("tools", []),
        "top_p": turn.request.get("top_p", 1.0),
        "max_output_tokens": turn.request.get("max_output_tokens"),
        "status": "in_progress",
        "usage": None,
    } | {name: turn.request[name] for name in ("previous_response_id", "background") if turn.request.get(name)}


def _output(turn: Turn, completion: Completion) -> Iterator[_Json]:
    """The finished items, in the order in which they were sampled."""
    reasoning, text = completion.text("reasoning"), completion.text("content")
    calls = completion.call_count + completion.call_cut
    if reasoning:
        yield _reasoning(turn, reasoning)
    if text or not calls:
        yield _message(turn, text, "completed", _entries(turn, completion.tokens, with_bytes=True))
    for call in range(calls):
        # A limit can cut off only the last call.
        yield _call(turn, completion, call, "completed" if call < completion.call_count else "incomplete")


def _reasoning(turn: Turn, text: str | None = None) -> _Json:
    content = None if text is None else [{"type": "reasoning_text", "text": text}]
    status = "in_progress" if text is None else "completed"
    return {"id": f"rs_{turn.id}", "type": "reasoning", "summary": [], "content": content, "status": status}


def _message(turn: Turn, text: str, status: str, logprobs: Sequence[_Json] = ()) -> _Json:
    content = [_part(text, logprobs)] if status == "completed" else []
    return {"id": f"msg_{turn.id}", "content": content, "role": "assistant", "status": status, "type": "message"}


def _part(text: str, logprobs: Sequence[_Json] = ()) -> _Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": list(logprobs)}


def _entries(turn: Turn, tokens: Sequence[Token], *, with_bytes: bool) -> list[_Json]:
    """The logprobs of tokens, if the request includes them; in vLLM's events they have no bytes."""
    if "message.output_text.logprobs" not in (turn.request.get("include") or ()):
        return []
    top = turn.request.get("top_logprobs") or 0

    def entry(text: str, logprob: float) -> _Json:
        return {"token": text, "logprob": logprob} | ({"bytes": list(text.encode())} if with_bytes else {})

    def entries(token: Token, logprob: float) -> _Json:
        ranked = [entry(text, value) for _, text, value in turn.ranked(token, logprob, top)]
        return entry(token.text, logprob) | {"top_logprobs": ranked}

    return [entries(token, value) for token in tokens for value in token.logprobs]


def _call(turn: Turn, completion: Completion, call: int, status: str) -> _Json:
    return {
        "arguments": "" if status == "in_progress" else completion.text("call_arguments", call),
        "call_id": turn.call_id(0, call),
        "name": completion.text("call_name", call),
        "type": "function_call",
        "id": f"fc_{turn.call_id(0, call)}",
        "status": status,
    }


def responses_events(turn: Turn, completion: Completion) -> Iterator[_Json]:
    """The events of a streamed answer; `type` is also the name of the event."""
    for number, event in enumerate(_events(turn, completion)):
        yield {**event, "sequence_number": number}


def _events(turn: Turn, completion: Completion) -> Iterator[_Json]:
    yield {"type": "response.created", "response": _head(turn)}
    yield {"type": "response.in_progress", "response": _head(turn)}
    calls = 0
    for index, item in enumerate(_output(turn, completion)):
        here: _Json = {"item_id": item["id"], "output_index": index}
        if item["type"] == "reasoning":
            begun, body = _reasoning(turn), _reasoning_events(turn, completion, item, here)
        elif item["type"] == "message":
            begun, body = _message(turn, "", "in_progress"), _text_events(turn, completion, item, here)
        else:
            begun = _call(turn, completion, calls, "in_progress")
            body, calls = _call_events(turn, completion, calls, item, here), calls + 1
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield from body
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    done = responses_object(turn, completion)
    yield {"type": f"response.{done['status']}", "response": done}


def _reasoning_events(turn: Turn, completion: Completion, item: _Json, here: _Json) -> Iterator[_Json]:
    here = {**here, "content_index": 0}
    for _, delta in _pieces(turn, completion, "reasoning"):
        yield {"type": "response.reasoning_text.delta", **here, "delta": delta}
    yield {"type": "response.reasoning_text.done", **here, "text": item["content"][0]["text"]}


def _text_events(turn: Turn, completion: Completion, item: _Json, here: _Json) -> Iterator[_Json]:
    here = {**here, "content_index": 0}
    (part,) = item["content"]
    yield {"type": "response.content_part.added", **here, "part": _part("")}
    for group, delta in _pieces(turn, completion, "content"):
        logprobs = _entries(turn, group, with_bytes=False)
        yield {"type": "response.output_text.delta", **here, "delta": delta, "logprobs": logprobs}
    yield {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **here, "part": part}


def _call_events(turn: Turn, completion: Completion, call: int, item: _Json, here: _Json) -> Iterator[_Json]:
    for _, delta in _pieces(turn, completion, "call_arguments", call):
        yield {"type": "response.function_call_arguments.delta", **here, "delta": delta}
    done = {"arguments": item["arguments"], "name": item["name"]}
    yield {"type": "response.function_call_arguments.done", **here, **done}


def _pieces(turn: Turn, completion: Completion, kind: PartKind, call: int = 0) -> Iterator[tuple[Sequence[Token], str]]:
    """The pieces of one field's text, with the tokens of each: one for each group of tokens that has any of it."""
    for group, _ in turn.groups(completion.tokens):
        delta = text_in(group, kind, call)
        if delta:
            yield group, delta


class _Stored(NamedTuple):
    messages: list[_Json]  # without instructions, which belong to one request
    body: _Json


class ResponsesApi(Api):
    """POST …/responses. GET and DELETE …/responses/ID are of stored ones: all but those with `store: false`.

    A request with `background` is answered as queued; the answer is there when it is asked for.
    """

    protocol = "openai.responses"
    ends = ("/responses",)
    takes_ids = True
    prefix = "resp_"

    def __init__(self) -> None:
        self._stored: dict[str, _Stored] = {}
        self._guard = threading.Lock()

    def messages(self, ask: Ask) -> list[_Json]:
        return self._with_earlier(ask.request, super().messages(ask))

    def _with_earlier(self, request: Mapping[str, Any], own: list[_Json]) -> list[_Json]:
        """The messages of a request, with those of the response that it continues behind its instructions."""
        previous = request.get("previous_response_id")
        if previous is None:
            return own
        with self._guard:
            found = self._stored.get(previous)
        if found is None:
            raise BadRequest(f"Response with id '{previous}' not found.", "previous_response_id", 404)
        begin = _instructions(request)
        return [*own[:begin], *found.messages, *own[begin:]]

    def limits(self, request: Mapping[str, Any]) -> _Json:
        return {"max_tokens": request.get("max_output_tokens")}

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        body = self._keep(turn, rows[0].completion)
        queued: _Json = {"status": "queued", "output": [], "usage": None, "incomplete_details": None}
        return body | queued if turn.request.get("background") else body

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        self._keep(turn, rows[0].completion)
        return delivery.events(responses_events(turn, rows[0].completion), named=True)

    def stored(self, record: RequestRecord) -> Response:
        """Answer GET, DELETE or POST …/cancel of a stored response."""
        response_id = record.path.removesuffix("/cancel").rpartition("/")[2]
        with self._guard:
            found = self._stored.get(response_id)
            if record.method == "DELETE":
                self._stored.pop(response_id, None)
        if found is None:
            what = f"Response with id '{response_id}' not found."
            return json_response(404, vllm_error(404, what, param="response_id"))
        if record.method == "DELETE":
            return json_response(200, {"id": response_id, "object": "response", "deleted": True})
        return json_response(200, found.body)

    def _keep(self, turn: Turn, completion: Completion) -> _Json:
        body = responses_object(turn, completion)
        if turn.request.get("store") is not False:
            asked = self._with_earlier(turn.request, chat_messages(self.protocol, json_bytes(turn.request)))
            # A call that was cut off is none that the next request repeats.
            whole = [item for item in body["output"] if item["status"] != "incomplete"]
            answer = chat_messages(self.protocol, json_bytes({"input": whole}))
            messages = [*asked[_instructions(turn.request) :], *answer]
            with self._guard:
                self._stored[turn.id] = _Stored(messages, body)
        return body


def _instructions(request: Mapping[str, Any]) -> int:
    """Number of messages that a request's instructions are."""
    return int(request.get("instructions") is not None)
