"""Ollama's /api/chat and /api/generate: text, thoughts and tool calls, as one object or as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rollout_trace.clients.loopback.messages import Response, json_bytes

from ._api import Api, Ask, Row, Turn
from ._delivery import BREAKS, Delivery
from ._sampling import Completion, Token, text_in

_Json = dict[str, Any]

_CREATED = "2026-11-22T10:00:00.123456Z"
_BROKEN = b'{"model": "broken", "message": {'


class OllamaApi(Api):
    """POST /api/chat; `OllamaGenerateApi` is POST /api/generate."""

    protocol = "ollama.chat"
    ends: ClassVar[tuple[str, ...]] = ("/api/chat",)
    is_chat: ClassVar[bool] = True

    def limits(self, request: Mapping[str, Any]) -> _Json:
        options = request.get("options") or {}
        limit = options.get("num_predict")
        return {"max_tokens": limit if limit and limit > 0 else None, "stop": options.get("stop")}

    def is_stream(self, ask: Ask) -> bool:
        # Unless it is refused: a stream is what this server sends.
        return ask.request.get("stream") is not False

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        completion = rows[0].completion
        calls = [call for _, call in _calls(turn, completion)]
        text, thinking = completion.text("content"), completion.text("reasoning")
        body = self._body(turn, completion, text, thinking, calls) | self._end(turn, completion)
        # As in a stream, where tokens without a text have no object, nor logprobs.
        shown = [token for group, _ in self._groups(turn, completion) for token in group]
        return body | _logprobs(turn, shown)

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        completion = rows[0].completion
        values = [
            self._body(turn, completion, text_in(group, "content"), text_in(group, "reasoning"), calls)
            | _logprobs(turn, group)
            for group, calls in self._groups(turn, completion)
        ]
        values.append(self._body(turn, completion, "", "", []) | self._end(turn, completion))
        lines = [json_bytes(value) + b"\n" for value in values]
        return delivery.stream(lines, _BROKEN + b"\n", json_bytes({"error": BREAKS}) + b"\n", "application/x-ndjson")

    def refusal(self, ask: Ask | None, status: int, message: str, param: str | None = None) -> _Json:
        return {"error": message}

    @staticmethod
    def _groups(turn: Turn, completion: Completion) -> Iterator[tuple[Sequence[Token], list[_Json]]]:
        """The tokens of each object of a stream, and the calls that are whole with them; without text there is none."""
        for group, _ in turn.groups(completion.tokens):
            calls = [call for at, call in _calls(turn, completion) if any(token is at for token in group)]
            if calls or text_in(group, "content") or text_in(group, "reasoning"):
                yield group, calls

    def _body(self, turn: Turn, completion: Completion, text: str, thinking: str, calls: list[_Json]) -> _Json:
        said: _Json = ({"thinking": thinking} if thinking else {}) | ({"tool_calls": calls} if calls else {})
        if self.is_chat:
            message = {"role": "assistant", "content": text, **said, **completion.reply.extra_message}
            said = {"message": message}
        else:
            said = {"response": text, **said}
        return {"model": turn.model, "created_at": _CREATED, **said, "done": False} | turn.extra([completion])

    def _end(self, turn: Turn, completion: Completion) -> _Json:
        reason = "length" if completion.finish_reason == "length" else "stop"
        text = completion.text("reasoning") + completion.text("content")
        context = [*turn.prompt_ids, *turn.tokenizer.encode(text)]
        return {
            "done": True,
            "done_reason": completion.reply.finish_reason or reason,
            **({} if self.is_chat or turn.request.get("raw") else {"context": context}),
            "total_duration": 5_000_000,
            "load_duration": 1_000_000,
            "prompt_eval_count": len(turn.prompt_ids),
            "eval_count": len(completion.tokens),
            "prompt_eval_duration": 1_500_000,
            "eval_duration": 2_500_000,
            **(completion.reply.usage or {}),
        }


class OllamaGenerateApi(OllamaApi):
    """POST /api/generate."""

    protocol = "ollama.generate"
    ends = ("/api/generate",)
    is_chat = False


def _calls(turn: Turn, completion: Completion) -> Iterator[tuple[Token, _Json]]:
    """Each tool call, and the token that it is whole with."""
    if completion.call_cut:
        return
    for token in completion.tokens:
        if token.effect is not None and token.effect.kind == "call_end":
            call = token.effect.call
            # As it was written: an object of the stream has its text.
            arguments = json.loads(completion.text("call_arguments", call))
            function = {"index": call, "name": completion.text("call_name", call), "arguments": arguments}
            yield token, {"id": turn.call_id(0, call), "function": function}


def _logprobs(turn: Turn, tokens: Sequence[Token]) -> _Json:
    if not turn.request.get("logprobs") or not tokens:
        return {}
    top = turn.request.get("top_logprobs") or 0
    return {"logprobs": [_entry(turn, token, value, top) for token in tokens for value in token.logprobs]}


def _entry(turn: Turn, token: Token, logprob: float, top: int) -> _Json:
    own = {"token": token.text, "logprob": logprob, "bytes": list(token.text.encode())}
    ranked = [{"token": text, "logprob": value} for _, text, value in turn.ranked(token, logprob, top)]
    return own | {"top_logprobs": ranked} if top else own
