"""Calls by Messages or Responses, answered by an engine that gives token ids on chat alone: litellm translates them.

The engine is asked for whole answers: in streams with ids, vLLM sends pieces with nothing in them, between which
translators tear tool calls apart. The program gets a stream all the same, made of the whole answer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import guard
from rollout_trace.clients.loopback.exchange import ProgramRequest, whole_body
from rollout_trace.clients.loopback.messages import (
    ConnectionCut,
    RequestRecord,
    Response,
    anthropic_error,
    json_bytes,
    json_response,
)
from rollout_trace.wire.errors import error_of

if TYPE_CHECKING:
    from rollout_trace.record.settings import Settings

_Json = dict[str, Any]
Send = Callable[[ProgramRequest, RequestRecord], Response]

_ENDS = {"anthropic.messages": "/messages", "openai.responses": "/responses"}
"""What their addresses end with, where that of chat ends with ``/chat/completions``."""
_NOT_CHAT = ("anthropic.com", "chatgpt.com")
"""Hosts of providers that have no engine behind them, and that ``by_host`` does not name."""
_LOST = {
    "anthropic.messages": "This loses marks for the cache, context_management, betas, signatures of thinking, "
    "is_error of tool results and disable_parallel_tool_use; stop_sequence becomes end_turn; system messages inside "
    "the conversation become messages of the user.",
    "openai.responses": "This loses encrypted reasoning and tools of the provider, such as its web search; "
    "namespaces become part of tool names, and the input of a custom tool becomes one argument.",
}
_KEPT_OF_ERRORS = ("retry-after", "retry-after-ms", "x-should-retry")
_CHARACTERS = 4
"""Bytes of a request that are taken for one token, where the server's context is nearly full."""


def is_wanted(protocol: str, url: str, settings: Settings) -> bool:
    """Whether a call is to be translated: its engine gives ids, and gives them on chat.

    Args:
        protocol: of the call.
        url: its address.
        settings: how it is recorded.
    """
    if protocol not in _ENDS or not urlsplit(url).path.endswith(_ENDS[protocol]):
        return False
    host = urlsplit(url).hostname or ""
    if any(host == one or host.endswith(f".{one}") for one in _NOT_CHAT):
        return False
    found = settings if settings.source is None else settings.source(lambda: url)
    engine = None if found is None else found.engine
    return engine is not None and engine.has_ids and "openai.chat" in engine.ask


class Translator:
    """Answers calls of one program by its engine's chat API.

    Args:
        forward: sends a request that is not recorded.
    """

    def __init__(self, forward: Send) -> None:
        self._forward = forward
        self._contexts: dict[tuple[str, str], int | None] = {}

    def answer(self, protocol: str, request: ProgramRequest, record: RequestRecord, send: Send) -> Response | None:
        """The answer to a request of ``is_wanted``; None where it is to be forwarded as it is.

        Args:
            protocol: of the request.
            request: the program's.
            record: the same, as it came.
            send: sends the request for chat, recorded.

        Raises:
            ConnectionCut: the engine gave no answer, or cut it.
        """
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(body, dict) or body.get("previous_response_id") or body.get("background"):
            # What the engine itself keeps of earlier answers, it alone can continue.
            return None
        translate = _translator()
        if translate is None:
            return None
        guard.warn_once(
            f"translated:{protocol}",
            f"calls by {protocol} are translated to chat, on which the engine gives token ids. {_LOST[protocol]}",
        )
        is_streamed = bool(body.pop("stream", False))
        chat = _Chat(self, request, record, send, protocol)
        try:
            made = translate(protocol, body, chat)
        except Exception as error:
            if chat.cut is not None:
                raise chat.cut from None
            if chat.refusal is not None:
                return chat.refusal
            guard.failed("translate", None, error)
            return None
        if not is_streamed:
            return json_response(200, made)
        events = _message_events(made) if protocol == "anthropic.messages" else _response_events(made)
        return Response(200, [("content-type", "text/event-stream; charset=utf-8")], [b"".join(events)], chunked=True)

    def context_of(self, url: str, model: str, record: RequestRecord) -> int | None:
        """The most tokens of prompt and answer together, where the server's list of models says it."""
        base = url.removesuffix("/chat/completions")
        if (base, model) not in self._contexts:
            own = replace(record, method="GET", body=b"")
            try:
                answer = self._forward(ProgramRequest("GET", f"{base}/models", record.headers, b""), own)
                listed = json.loads(whole_body(answer))["data"]
                # A server of one model may answer to any name.
                of_model = [one for one in listed if one["id"] == model] or (listed if len(listed) == 1 else [])
                found = next((one.get("max_model_len") for one in of_model), None)
            except (ConnectionCut, ValueError, KeyError, TypeError, AttributeError):
                found = None
            self._contexts[base, model] = found if isinstance(found, int) else None
        return self._contexts[base, model]


class _Chat:
    """The chat API behind one request: sends what the translator makes of it."""

    def __init__(
        self, translator: Translator, request: ProgramRequest, record: RequestRecord, send: Send, protocol: str
    ) -> None:
        self._translator = translator
        self._send = send
        self._protocol = protocol
        url, _, _ = request.url.partition("?")
        self._url = f"{url.removesuffix(_ENDS[protocol])}/chat/completions"
        # Engines read the key of OpenAI's clients.
        key = request.headers.get("x-api-key")
        added = [("authorization", f"Bearer {key}")] if key and "authorization" not in request.headers else []
        self._headers = {**request.headers, **dict(added)}
        self._record = replace(
            record, headers=self._headers, header_lines=[*record.header_lines, *added], path=urlsplit(self._url).path
        )
        self.cut: ConnectionCut | None = None
        """Where the engine gave no answer."""
        self.refusal: Response | None = None
        """The engine's, for the program."""

    def ask(self, content: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body of the answer to a request for chat."""
        body = json.loads(content)
        model = str(body.get("model"))
        most = next((name for name in ("max_tokens", "max_completion_tokens") if body.get(name)), None)
        if most is not None:
            context = self._translator.context_of(self._url, model, self._record)
            if context is not None and body[most] + len(content) // _CHARACTERS > context:
                # The answer ends where the context does.
                del body[most]
        request = ProgramRequest("POST", self._url, self._headers, json_bytes(body))
        try:
            answer = self._send(request, replace(self._record, body=request.body))
            found = whole_body(answer)
        except ConnectionCut as error:
            self.cut = error
            raise
        headers = list(answer.headers)
        if answer.status >= 400:
            kept = [one for one in headers if one[0] in _KEPT_OF_ERRORS]
            message = error_of(found, answer.status).message
            wrong = {"error": {"message": message, "type": "engine", "code": answer.status}}
            told = anthropic_error(answer.status, message) if self._protocol == "anthropic.messages" else wrong
            self.refusal = json_response(answer.status, told, kept)
        return answer.status, headers, found


@cache
def _translator() -> Callable[[str, _Json, _Chat], _Json] | None:
    """Asks for an answer in another protocol; None where litellm is not installed."""
    is_users = "litellm" in sys.modules
    # Else it asks the network for its list of prices, for ten seconds where there is none.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import httpx
        import litellm
        import mcp  # litellm imports it for tools, and does not require it.  # noqa: F401
        from litellm.llms.custom_httpx.http_handler import HTTPHandler
    except ImportError as error:
        guard.warn_once(
            "no_translator",
            "this engine gives token ids only on chat, and the program speaks another protocol, so its calls are "
            f'recorded without ids. To get ids, install the translator in a checkout: pip install ".[clis]" ({error}).',
        )
        return None
    if not is_users:
        litellm.suppress_debug_info = True

    class Client(httpx.Client):
        """Gives what the translator sends to ``_Chat``. As a class of its own it is no client that is recorded."""

        def __init__(self, chat: _Chat) -> None:
            super().__init__(trust_env=False)
            self._chat = chat

        def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            status, headers, content = self._chat.ask(request.content)
            return httpx.Response(status, headers=headers, content=content, request=request)

    def translate(protocol: str, body: _Json, chat: _Chat) -> _Json:
        own = {"model": f"hosted_vllm/{body['model']}", "api_base": "http://engine.invalid/v1", "api_key": "none"}
        with Client(chat) as client:
            options = {**body, **own, "client": HTTPHandler(client=client), "stream": False, "num_retries": 0}
            if protocol == "anthropic.messages":
                made: Any = litellm.anthropic.messages.create(**options)
            else:
                made = litellm.responses(**options, use_chat_completions_api=True)
        found = made if isinstance(made, dict) else made.model_dump(exclude_none=True)
        return {**found, "model": body["model"]}

    return translate


def _event(kind: str, value: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json_bytes({"type": kind, **value}))


def _message_events(message: _Json) -> Iterator[bytes]:
    """A message of the Messages API as the events of its stream."""
    usage = {**(message.get("usage") or {})}
    nothing_yet: _Json = {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    yield _event("message_start", {"message": {**message, **nothing_yet}})
    for index, block in enumerate(message["content"]):
        empty, *deltas = _deltas(block)
        yield _event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ended = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    yield _event("message_delta", {"delta": ended, "usage": usage})
    yield _event("message_stop", {})


def _deltas(block: _Json) -> list[_Json]:
    """How a block begins, and what follows."""
    if block["type"] == "text":
        return [{**block, "text": ""}, {"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        signature = block.get("signature") or ""
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        signed = {"type": "signature_delta", "signature": signature}
        return [{**block, "thinking": "", "signature": ""}, thought, signed]
    if block["type"] == "tool_use":
        return [{**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return [block]


_TEXTS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""The field of an item that comes in pieces, and what its events are called."""


def _response_events(response: _Json) -> Iterator[bytes]:
    """A response of the Responses API as the events of its stream."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    found: list[tuple[str, _Json]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(response["output"]):
        found += [(kind, {"output_index": index, **value}) for kind, value in _item_events(item)]
    is_cut = response.get("status") == "incomplete"
    found.append(("response.incomplete" if is_cut else "response.completed", {"response": response}))
    for number, (kind, value) in enumerate(found):
        yield _event(kind, {**value, "sequence_number": number})


def _item_events(item: _Json) -> Iterator[tuple[str, _Json]]:
    named = {"item_id": item.get("id")}
    field, kind = _TEXTS.get(item["type"], ("content", ""))
    parts = item.get("content") if item["type"] == "message" else None
    empty = {**item, "status": "in_progress", **({field: "" if kind else []} if field in item else {})}
    yield "response.output_item.added", {"item": empty}
    if kind:
        yield f"{kind}.delta", {**named, "delta": item[field]}
        yield f"{kind}.done", {**named, field: item[field]}
    for at, part in enumerate(parts or ()):
        place = {**named, "content_index": at}
        text = part.get("text", "")
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
        yield "response.output_text.delta", {**place, "delta": text, "logprobs": []}
        yield "response.output_text.done", {**place, "text": text, "logprobs": []}
        yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"item": item}
