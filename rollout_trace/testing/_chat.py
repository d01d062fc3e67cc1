"""Chat completions in the JSON shape of vLLM 0.32: key names, key order, and the keys that are null."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_trace.clients.loopback.messages import Response

from ._api import Api, Ask, Row, Turn, interleaved, objects
from ._delivery import Delivery
from ._sampling import Completion, Effect, Token, text_in

_Json = dict[str, Any]


class ChatApi(Api):
    """POST …/chat/completions."""

    protocol = "openai.chat"
    ends = ("/chat/completions",)
    takes_ids = True
    prefix = "chatcmpl-"

    def messages(self, ask: Ask) -> list[_Json]:
        return list(objects(ask.request.get("messages"), "messages"))  # type: ignore[arg-type]

    def count(self, request: Mapping[str, Any]) -> int:
        return request.get("n") or 1

    def whole(self, turn: Turn, rows: Sequence[Row]) -> _Json:
        completions = [row.completion for row in rows]
        return {
            **turn.head("chat.completion"),
            "choices": [_choice(turn, i, completion) for i, completion in enumerate(completions)],
            "service_tier": None,
            "system_fingerprint": turn.fingerprint,
            "usage": turn.usage(completions),
            "prompt_logprobs": None,
            "prompt_token_ids": turn.ids_or_none(turn.prompt_ids),
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        } | turn.extra(completions)

    def stream(self, ask: Ask, delivery: Delivery, turn: Turn, rows: Sequence[Row]) -> Response:
        return delivery.events(_events(turn, [row.completion for row in rows]))


def _choice(turn: Turn, index: int, completion: Completion) -> _Json:
    return {
        "index": index,
        "message": _message(turn, index, completion),
        "logprobs": _logprobs(turn, completion.tokens),
        "finish_reason": _finish_reason(turn, completion),
        "stop_reason": completion.stop_reason,
        "token_ids": turn.ids_or_none(completion.ids),
        "routed_experts": None,
    }


def _finish_reason(turn: Turn, completion: Completion) -> str:
    # vLLM returns "stop" where the request named the tool
    if completion.finish_reason == "tool_calls" and isinstance(turn.request.get("tool_choice"), dict):
        return completion.reply.finish_reason or "stop"
    return completion.finish_reason


def _message(turn: Turn, index: int, completion: Completion) -> _Json:
    # a truncated call cannot be parsed: vLLM puts its raw text into the content, and returns no call at all
    calls = [] if completion.call_cut else [_call(turn, index, completion, i) for i in range(completion.call_count)]
    content: str | None = completion.text("content")
    if completion.call_cut:
        content = turn.tokenizer.decode(completion.ids)
    elif not content and (calls or completion.text("reasoning")):
        content = "" if turn.request.get("tool_choice", "auto") not in ("auto", "none") else None
    message: _Json = {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if calls:
        message["tool_calls"] = calls
    message["reasoning"] = completion.text("reasoning") or None
    return message | dict(completion.reply.extra_message)


def _call(turn: Turn, choice: int, completion: Completion, call: int) -> _Json:
    name, arguments = completion.text("call_name", call), completion.text("call_arguments", call)
    function = {"name": name, "arguments": arguments}
    return {"id": turn.call_id(choice, call), "type": "function", "function": function}


def _logprobs(turn: Turn, tokens: Sequence[Token]) -> _Json | None:
    if not turn.request.get("logprobs"):
        return None
    top = turn.request.get("top_logprobs") or 0
    return {"content": [_entry(turn, token, value, top) for token in tokens for value in token.logprobs]}


def _entry(turn: Turn, token: Token, logprob: float, top: int) -> _Json:
    ranked = [(turn.name_id(i, text), value) for i, text, value in turn.ranked(token, logprob, top)]
    return {
        "token": turn.name_id(token.id, token.text),
        "logprob": logprob,
        "bytes": list(token.text.encode()),
        "top_logprobs": [{"token": t, "logprob": value, "bytes": list(t.encode())} for t, value in ranked],
    }


def _events(turn: Turn, completions: Sequence[Completion]) -> Iterator[_Json]:
    """The events of a streamed answer, without the final `[DONE]`."""
    done = [0] * len(completions)
    for i, completion in enumerate(completions):
        delta = {"role": "assistant", "content": ""} | dict(completion.reply.extra_message)
        first = {"index": i, "delta": delta, "logprobs": None, "finish_reason": None}
        prompt = {"prompt_token_ids": turn.ids_or_none(turn.prompt_ids), "prompt_text": None}
        yield _chunk(turn, [first], completions) | turn.running_usage(done) | prompt
    streams = [_choice_events(turn, i, completion) for i, completion in enumerate(completions)]
    for i, (choice, count) in interleaved(streams):
        done[i] += count
        if choice is not None:
            chunk = _chunk(turn, [choice], completions) | turn.last_fingerprint(choice)
            yield chunk | turn.running_usage(done)
    yield from turn.usage_event(_chunk(turn, [], completions), completions)


def _chunk(turn: Turn, choices: list[_Json], completions: Sequence[Completion]) -> _Json:
    return turn.head("chat.completion.chunk") | {"choices": choices} | turn.extra(completions)


def _choice_events(turn: Turn, index: int, completion: Completion) -> Iterator[tuple[_Json | None, int]]:
    """The `choices` entry of each group of tokens (None: empty, which vLLM skips), and its token count."""
    quiet = not (turn.request.get("logprobs") or turn.request.get("return_token_ids"))
    for group, last in turn.groups(completion.tokens):
        delta = _delta(turn, index, completion, group)
        event: _Json = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(turn, group),
            "finish_reason": _finish_reason(turn, completion) if last else None,
        }
        if last:
            event["stop_reason"] = completion.stop_reason
        event["token_ids"] = turn.ids_or_none([token.id for token in group])
        yield (None if quiet and not delta and not last else event), len(group)


def _delta(turn: Turn, index: int, completion: Completion, group: Sequence[Token]) -> _Json:
    effects = [token.effect for token in group if token.effect is not None and token.effect.text]
    reasoning, content = text_in(group, "reasoning"), text_in(group, "content")
    calls = _call_deltas(turn, index, completion, effects)
    delta: _Json = {}
    if content or calls:
        delta["content"] = content or None
    if reasoning:
        delta["reasoning"] = reasoning
    if calls:
        delta["tool_calls"] = calls
    return delta


def _call_deltas(turn: Turn, choice: int, completion: Completion, effects: Sequence[Effect]) -> list[_Json]:
    deltas: dict[int, _Json] = {}
    for effect in effects:
        if effect.kind == "call_name":
            begun: _Json = {"id": turn.call_id(choice, effect.call), "type": "function"}
            begun |= _index(completion, effect.call)
            deltas[effect.call] = begun | {"function": {"name": effect.text}}
        elif effect.kind == "call_arguments":
            delta = deltas.setdefault(effect.call, _index(completion, effect.call) | {"function": {}})
            function = delta["function"]
            function["arguments"] = function.get("arguments", "") + effect.text
    return list(deltas.values())


def _index(completion: Completion, call: int) -> _Json:
    shown: dict[str, _Json] = {"normal": {"index": call}, "null": {"index": None}, "missing": {}}
    return shown[completion.reply.tool_index]
