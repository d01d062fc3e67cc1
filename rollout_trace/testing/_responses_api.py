"""The Responses API of the scripted server, with the responses that it stores."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ._api import Api, Ask, BadRequest
from ._delivery import Delivery, vllm_error
from ._messages import RequestRecord, Response, json_response
from ._responses import responses_events, responses_object
from ._responses_input import conversation
from ._sampling import Completion
from ._turn import Row, Turn

_Json = dict[str, Any]


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
        return self._messages(ask.request)

    def prompts(self, ask: Ask) -> list[list[int]]:
        return [ask.tokenizer.apply_chat_template(self._messages(ask.request), ask.request.get("tools"))]

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
            return json_response(
                404, vllm_error(404, f"Response with id '{response_id}' not found.", param="response_id")
            )
        if record.method == "DELETE":
            return json_response(200, {"id": response_id, "object": "response", "deleted": True})
        return json_response(200, found.body)

    def _messages(self, request: Mapping[str, Any], *, instructions: bool = True) -> list[_Json]:
        previous = request.get("previous_response_id")
        earlier: list[_Json] = []
        if previous is not None:
            with self._guard:
                found = self._stored.get(previous)
            if found is None:
                raise BadRequest(f"Response with id '{previous}' not found.", "previous_response_id", 404)
            earlier = found.messages
        asked = request if instructions else {**request, "instructions": None}
        return conversation(asked, earlier)

    def _keep(self, turn: Turn, completion: Completion) -> _Json:
        body = responses_object(turn, completion)
        if turn.request.get("store") is not False:
            messages = [*self._messages(turn.request, instructions=False), _answer(turn, completion)]
            with self._guard:
                self._stored[turn.id] = _Stored(messages, body)
        return body


def _answer(turn: Turn, completion: Completion) -> _Json:
    """The answer as the chat message that renders to the ids that were sampled."""
    message: _Json = {"role": "assistant"}
    reasoning, text = completion.text("reasoning"), completion.text("content")
    if reasoning:
        message["reasoning"] = reasoning
    if text:
        message["content"] = text
    calls = [
        {
            "id": turn.call_id(0, call),
            "function": {
                "name": completion.text("call_name", call),
                "arguments": completion.text("call_arguments", call),
            },
        }
        for call in range(completion.call_count)
    ]
    return message | ({"tool_calls": calls} if calls else {})
